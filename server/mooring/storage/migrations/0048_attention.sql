-- What needs somebody is a small part of each table: partial indexes of just those rows.

CREATE INDEX instance_unwell ON instance (tenant_id, id)
  WHERE status = 'failed' OR (status = 'running' AND health = 'degraded') OR (distrust IS NOT NULL AND status <> 'stopped');
CREATE INDEX operation_blocked_of_tenant ON operation (tenant_id, id) WHERE status = 'blocked';
CREATE INDEX allocation_release_failed ON allocation (tenant_id, id) WHERE status = 'release_failed';
CREATE INDEX slot_cleanup_blocked ON slot (node_id) WHERE status = 'cleanup_blocked';
CREATE INDEX node_waiting_for_approval ON node (id) WHERE status = 'pending';
CREATE INDEX service_account_key_expiring ON service_account_key (expires_at)
  WHERE revoked_at IS NULL AND expires_at IS NOT NULL;
