-- What a state promises, the row has: each column that a lifecycle requires in a state is there, and the database
-- refuses the state without it. A test derives all of these from the tables of the core and compares.

CREATE FUNCTION lifecycle_requires(relation regclass, status_column text, states text[], required text)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  constraint_name text := relation::text || '_' || required || '_required';
  named text := (SELECT string_agg(quote_literal(state), ', ' ORDER BY state) FROM unnest(states) state);
BEGIN
  -- Dropped first, so that a later migration states the whole anew when a lifecycle changes.
  EXECUTE format('ALTER TABLE %s DROP CONSTRAINT IF EXISTS %I', relation, constraint_name);
  EXECUTE format('ALTER TABLE %s ADD CONSTRAINT %I CHECK (%I NOT IN (%s) OR %I IS NOT NULL)',
                 relation, constraint_name, status_column, named, required);
END $$;
COMMENT ON FUNCTION lifecycle_requires IS
  'Refuses the states without the column. Two machines of one noun do not require one column: the second would replace the first.';

ALTER TABLE artifact
  ADD COLUMN deprecated_at timestamptz,
  ADD COLUMN retired_at timestamptz,
  ADD COLUMN rejection_reason text,
  ADD COLUMN revoked_at timestamptz,
  ADD COLUMN revocation_reason text;
SELECT lifecycle_requires('artifact', 'promotion', '{deprecated}', 'deprecated_at');
SELECT lifecycle_requires('artifact', 'promotion', '{retired}', 'retired_at');
SELECT lifecycle_requires('artifact', 'trust', '{rejected}', 'rejection_reason');
SELECT lifecycle_requires('artifact', 'trust', '{revoked}', 'revoked_at');
SELECT lifecycle_requires('artifact', 'trust', '{revoked}', 'revocation_reason');

ALTER TABLE app_version
  ADD COLUMN deprecated_at timestamptz,
  ADD COLUMN retired_at timestamptz;
SELECT lifecycle_requires('app_version', 'promotion', '{deprecated}', 'deprecated_at');
SELECT lifecycle_requires('app_version', 'promotion', '{retired}', 'retired_at');

ALTER TABLE node
  ADD COLUMN retired_at timestamptz,
  ADD COLUMN retirement_reason text;
SELECT lifecycle_requires('node', 'status', '{retired}', 'retired_at');
SELECT lifecycle_requires('node', 'status', '{retired}', 'retirement_reason');

ALTER TABLE allocation
  ADD COLUMN node_id text COLLATE "C" REFERENCES node (id),
  ADD COLUMN failed_at timestamptz,
  ADD COLUMN failure_code text,
  ADD COLUMN released_at timestamptz;
SELECT lifecycle_requires('allocation', 'status', '{provisioning,active}', 'node_id');
SELECT lifecycle_requires('allocation', 'status', '{failed}', 'failed_at');
SELECT lifecycle_requires('allocation', 'status', '{failed}', 'failure_code');
SELECT lifecycle_requires('allocation', 'status', '{released}', 'released_at');

ALTER TABLE instance
  ADD COLUMN failed_at timestamptz,
  ADD COLUMN failure_code text,
  ADD COLUMN stopped_at timestamptz,
  ADD COLUMN teardown_proof text
    CONSTRAINT instance_teardown_proof_known CHECK (teardown_proof IN ('receipts', 'written_off'));
SELECT lifecycle_requires('instance', 'status', '{failed}', 'failed_at');
SELECT lifecycle_requires('instance', 'status', '{failed}', 'failure_code');
SELECT lifecycle_requires('instance', 'status', '{stopped}', 'stopped_at');
SELECT lifecycle_requires('instance', 'status', '{stopped}', 'teardown_proof');

ALTER TABLE member
  ADD COLUMN allocation_id text COLLATE "C",
  ADD COLUMN failed_at timestamptz,
  ADD COLUMN failure_code text,
  ADD COLUMN removed_at timestamptz,
  ADD CONSTRAINT member_allocation_of_project FOREIGN KEY (tenant_id, project_id, allocation_id)
    REFERENCES allocation (tenant_id, project_id, id);
CREATE INDEX member_by_allocation ON member (allocation_id, id) WHERE allocation_id IS NOT NULL;
SELECT lifecycle_requires('member', 'status', '{joining,ready,degraded,draining,drained}', 'allocation_id');
SELECT lifecycle_requires('member', 'status', '{failed}', 'failed_at');
SELECT lifecycle_requires('member', 'status', '{failed}', 'failure_code');
SELECT lifecycle_requires('member', 'status', '{removed}', 'removed_at');

ALTER TABLE operation
  ADD COLUMN blocker text,
  ADD COLUMN failure_code text,
  ADD COLUMN finished_at timestamptz;
SELECT lifecycle_requires('operation', 'status', '{blocked}', 'blocker');
SELECT lifecycle_requires('operation', 'status', '{failed}', 'failure_code');
SELECT lifecycle_requires('operation', 'status', '{succeeded,failed,cancelled}', 'finished_at');

ALTER TABLE task
  ADD COLUMN lease_expires_at timestamptz,
  ADD COLUMN finished_at timestamptz;
SELECT lifecycle_requires('task', 'status', '{claimed,cancelling}', 'lease_expires_at');
SELECT lifecycle_requires('task', 'status', '{succeeded,failed,cancelled,expired}', 'finished_at');

ALTER TABLE attachment
  ADD COLUMN detached_at timestamptz,
  ADD COLUMN refused_at timestamptz,
  ADD COLUMN refusal_reason text;
SELECT lifecycle_requires('attachment', 'status', '{detached}', 'detached_at');
SELECT lifecycle_requires('attachment', 'status', '{refused}', 'refused_at');
SELECT lifecycle_requires('attachment', 'status', '{refused}', 'refusal_reason');

SELECT lifecycle_requires('service_account', 'status', '{disabled}', 'disabled_at');
SELECT lifecycle_requires('service_account', 'status', '{deleted}', 'deleted_at');

-- References that did not carry the tenant yet --------------------------------------------------------------------------
--
-- A plain reference stays where the tenant may be none: PostgreSQL does not look at a composite key with a NULL in it.

ALTER TABLE webhook ADD CONSTRAINT webhook_of_one_tenant UNIQUE (tenant_id, id);
ALTER TABLE delivery
  ADD CONSTRAINT delivery_webhook_of_tenant FOREIGN KEY (tenant_id, webhook_id) REFERENCES webhook (tenant_id, id)
    ON DELETE CASCADE;
ALTER TABLE idempotency
  ADD CONSTRAINT idempotency_secret_of_tenant FOREIGN KEY (tenant_id, secret_id) REFERENCES secret (tenant_id, id)
    ON DELETE CASCADE;

-- A token is for a user of its own tenant; by break-glass it is for the platform's user who made the entry.
ALTER TABLE service_account_key
  ADD CONSTRAINT service_account_key_of_one_account UNIQUE (tenant_id, service_account_id, id);
ALTER TABLE break_glass ADD CONSTRAINT break_glass_of_one_user UNIQUE (tenant_id, id, user_id);
ALTER TABLE token
  ADD COLUMN user_tenant_id text COLLATE "C" GENERATED ALWAYS AS (CASE WHEN kind <> 'break_glass' THEN tenant_id END) STORED,
  ADD CONSTRAINT token_user_of_tenant FOREIGN KEY (user_tenant_id, user_id) REFERENCES "user" (tenant_id, id),
  ADD CONSTRAINT token_key_of_account FOREIGN KEY (tenant_id, service_account_id, key_id)
    REFERENCES service_account_key (tenant_id, service_account_id, id),
  ADD CONSTRAINT token_has_key_of_account CHECK ((service_account_id IS NULL) = (key_id IS NULL)),
  DROP CONSTRAINT token_break_glass_of_tenant,
  ADD CONSTRAINT token_break_glass_of_user FOREIGN KEY (tenant_id, break_glass_id, user_id)
    REFERENCES break_glass (tenant_id, id, user_id);

-- A node is nobody's but the platform's, and so it stays when somebody grants a tenant's session too much.
SELECT tenant_lock('node');
