-- The operator's view counts failures of the last hours, over all tenants.

CREATE INDEX operation_failed_lately ON operation (finished_at) WHERE status = 'failed';
