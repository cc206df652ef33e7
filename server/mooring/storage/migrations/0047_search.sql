-- Search by the beginning of a name, and of an id within a tenant. Names compare byte by byte in every locale.

CREATE INDEX instance_by_name ON instance (tenant_id, name COLLATE "C");
CREATE INDEX allocation_by_name ON allocation (tenant_id, name COLLATE "C");
CREATE INDEX allocation_by_tenant ON allocation (tenant_id, id);
CREATE INDEX project_by_slug ON project (tenant_id, slug COLLATE "C");
CREATE INDEX user_by_email ON "user" (tenant_id, email COLLATE "C");
CREATE INDEX artifact_of_tenant_by_digest ON artifact (tenant_id, digest);
CREATE INDEX artifact_of_tenant ON artifact (tenant_id, id);
CREATE INDEX node_by_name ON node (name COLLATE "C");
CREATE INDEX tenant_by_slug ON tenant (slug COLLATE "C");
