-- Lists of instances and operations over all projects of a tenant.

CREATE INDEX instance_by_tenant ON instance (tenant_id, id);
CREATE INDEX operation_by_tenant ON operation (tenant_id, id) WHERE NOT read_only;
CREATE INDEX operation_blocked ON operation (instance_id) WHERE status = 'blocked';
