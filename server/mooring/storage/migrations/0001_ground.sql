-- The ground: lifecycles as rows, the second lock, and the records that every write leaves.
--
-- Two kinds of session use the database. The platform's own sessions own the tables. A session that acts for a tenant
-- takes the role mooring_tenant and names its tenant in the setting mooring.tenant; row-level security shows it that
-- tenant's rows and takes only such rows from it, whatever the program above believes.

CREATE FUNCTION tenant_lock(relation regclass) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', relation);
  EXECUTE format(
    'CREATE POLICY tenant_lock ON %s TO mooring_tenant
       USING (tenant_id = current_setting(''mooring.tenant'', true))
       WITH CHECK (tenant_id = current_setting(''mooring.tenant'', true))', relation);
END $$;
COMMENT ON FUNCTION tenant_lock IS 'Puts the second lock on a table that has a tenant_id.';

CREATE FUNCTION stale_write() RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'a row changed after it was read' USING ERRCODE = 'MR001', CONSTRAINT = 'stale_write';
END $$;
COMMENT ON FUNCTION stale_write IS 'Called by a write whose guard did not match: ends the statement and all it wrote.';

-- Lifecycles ---------------------------------------------------------------------------------------------------------

CREATE TABLE lifecycle_edge (
  machine text NOT NULL,
  source text NOT NULL,   -- '' for a birth
  trigger text NOT NULL,
  target text NOT NULL,
  CONSTRAINT lifecycle_edge_pkey PRIMARY KEY (machine, source, trigger, target)
);
COMMENT ON TABLE lifecycle_edge IS 'The lifecycle tables of the core, written by the migration command, never by hand.';

CREATE TABLE transition (
  machine text NOT NULL,
  subject_id text COLLATE "C" NOT NULL,
  generation bigint NOT NULL CONSTRAINT transition_generation_counts CHECK (generation >= 0),
  generation_before bigint GENERATED ALWAYS AS (CASE WHEN generation > 0 THEN generation - 1 END) STORED,
  tenant_id text COLLATE "C" NOT NULL,  -- 'platform' for what no tenant owns
  source text NOT NULL,
  trigger text NOT NULL,
  target text NOT NULL,
  occurred_at timestamptz NOT NULL,
  correlation_id text NOT NULL,
  CONSTRAINT transition_pkey PRIMARY KEY (machine, subject_id, generation),
  CONSTRAINT transition_of_one_tenant UNIQUE (machine, tenant_id, subject_id, generation, target),
  CONSTRAINT transition_birth_is_first CHECK ((generation = 0) = (source = '')),
  CONSTRAINT transition_edge_is_legal FOREIGN KEY (machine, source, trigger, target) REFERENCES lifecycle_edge,
  CONSTRAINT transition_follows_previous FOREIGN KEY (machine, tenant_id, subject_id, generation_before, source)
    REFERENCES transition (machine, tenant_id, subject_id, generation, target)
);
COMMENT ON TABLE transition IS 'Every step of every lifecycle; a status that no row here backs cannot be written.';
SELECT tenant_lock('transition');
GRANT SELECT, INSERT ON transition TO mooring_tenant;
GRANT SELECT ON lifecycle_edge TO mooring_tenant;

CREATE FUNCTION generation_counts_transitions() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  before jsonb := to_jsonb(OLD);
  after jsonb := to_jsonb(NEW);
BEGIN
  -- arguments: the status column and its generation column
  IF (after ->> TG_ARGV[1])::bigint <> (before ->> TG_ARGV[1])::bigint + 1 THEN
    RAISE EXCEPTION 'the generation grows by one with each transition, and only then'
      USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME;
  END IF;
  RETURN NEW;
END $$;

CREATE FUNCTION lifecycle_attach(relation regclass, machine text, status_column text, generation_column text)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  noun text := relation::text;
BEGIN
  EXECUTE format('ALTER TABLE %s ADD COLUMN %I text NOT NULL GENERATED ALWAYS AS (%L) STORED',
                 relation, status_column || '_machine', machine);
  IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = relation AND attname = 'lifecycle_tenant') THEN
    EXECUTE format($f$ALTER TABLE %s ADD COLUMN lifecycle_tenant text COLLATE "C"
                      GENERATED ALWAYS AS (coalesce(tenant_id, 'platform')) STORED$f$, relation);
  END IF;
  EXECUTE format(
    'ALTER TABLE %1$s ADD CONSTRAINT %2$I
       FOREIGN KEY (%3$I, lifecycle_tenant, id, %4$I, %5$I)
       REFERENCES transition (machine, tenant_id, subject_id, generation, target)
       DEFERRABLE INITIALLY DEFERRED',
    relation, noun || '_' || status_column || '_is_backed', status_column || '_machine', generation_column, status_column);
  EXECUTE format(
    'CREATE TRIGGER %1$I BEFORE UPDATE ON %2$s FOR EACH ROW
       WHEN (OLD.%3$I IS DISTINCT FROM NEW.%3$I OR OLD.%4$I IS DISTINCT FROM NEW.%4$I)
       EXECUTE FUNCTION generation_counts_transitions(%3$L, %4$L)',
    noun || '_' || generation_column || '_counts', relation, status_column, generation_column);
END $$;
COMMENT ON FUNCTION lifecycle_attach IS 'Binds a status column and its generation to a machine: no status without its transition.';

-- Secrets at rest ----------------------------------------------------------------------------------------------------

CREATE TABLE secret (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C",
  purpose text NOT NULL,
  master_key_id text NOT NULL,
  wrapped_key bytea NOT NULL,    -- the data key, encrypted by the master key
  ciphertext bytea NOT NULL,     -- nonce and AES-256-GCM, bound to id, tenant and purpose
  expires_at timestamptz,
  created_at timestamptz NOT NULL,
  CONSTRAINT secret_of_one_tenant UNIQUE (tenant_id, id)
);
CREATE INDEX secret_by_master_key ON secret (master_key_id, id);
CREATE INDEX secret_by_expiry ON secret (expires_at) WHERE expires_at IS NOT NULL;
SELECT tenant_lock('secret');
GRANT SELECT, INSERT, DELETE ON secret TO mooring_tenant;

CREATE TABLE platform_key (
  id text COLLATE "C" PRIMARY KEY,
  purpose text NOT NULL CONSTRAINT platform_key_purpose_known CHECK (purpose IN ('task_signing')),
  algorithm text NOT NULL CONSTRAINT platform_key_algorithm_known CHECK (algorithm IN ('ed25519')),
  public_key bytea NOT NULL,
  secret_id text COLLATE "C" NOT NULL REFERENCES secret (id),
  created_at timestamptz NOT NULL,
  retired_at timestamptz
);
CREATE UNIQUE INDEX platform_key_one_current ON platform_key (purpose) WHERE retired_at IS NULL;

-- What every write leaves ---------------------------------------------------------------------------------------------

CREATE TABLE event_epoch (
  current integer NOT NULL,
  cluster bigint,   -- the system identifier of the cluster in which this epoch began
  single boolean NOT NULL DEFAULT true CONSTRAINT event_epoch_is_one CHECK (single) UNIQUE
);
INSERT INTO event_epoch (current) VALUES (1);
GRANT SELECT ON event_epoch TO mooring_tenant;

CREATE TABLE event_horizon (   -- the last place that retention deleted: an older cursor has missed something
  epoch integer NOT NULL,
  tx bigint NOT NULL,
  seq bigint NOT NULL,
  single boolean NOT NULL DEFAULT true CONSTRAINT event_horizon_is_one CHECK (single) UNIQUE
);
INSERT INTO event_horizon VALUES (0, 0, 0);

CREATE TABLE event (
  epoch integer NOT NULL DEFAULT 1,   -- raised when the cluster's transaction ids begin anew
  tx bigint NOT NULL DEFAULT (pg_current_xact_id()::text)::bigint,
  seq bigint GENERATED ALWAYS AS IDENTITY,
  id text COLLATE "C" NOT NULL,
  type text NOT NULL,
  noun text NOT NULL,
  subject_id text COLLATE "C" NOT NULL,
  generation bigint,
  tenant_id text COLLATE "C",
  project_id text COLLATE "C",
  app_slug text,
  app_instance_id text COLLATE "C",
  actor_kind text NOT NULL,
  actor_id text COLLATE "C" NOT NULL,
  correlation_id text NOT NULL,
  trace_id text NOT NULL,
  occurred_at timestamptz NOT NULL,
  data jsonb NOT NULL DEFAULT '{}',
  CONSTRAINT event_pkey PRIMARY KEY (epoch, tx, seq)
);
COMMENT ON TABLE event IS 'What became true, in the order (epoch, tx, seq); readers stay behind the oldest open transaction.';
CREATE INDEX event_by_tenant ON event (tenant_id, epoch, tx, seq);
CREATE INDEX event_by_project ON event (project_id, epoch, tx, seq) WHERE project_id IS NOT NULL;
CREATE INDEX event_by_correlation ON event (correlation_id, epoch, tx, seq);
CREATE INDEX event_by_age ON event USING brin (occurred_at);
SELECT tenant_lock('event');
GRANT SELECT, INSERT ON event TO mooring_tenant;

CREATE TABLE audit (
  id text COLLATE "C" PRIMARY KEY,
  occurred_at timestamptz NOT NULL,
  outcome text NOT NULL CONSTRAINT audit_outcome_known CHECK (outcome IN ('done', 'denied', 'hidden', 'refused')),
  action text NOT NULL,
  noun text,
  subject_id text COLLATE "C",
  tenant_id text COLLATE "C",
  project_id text COLLATE "C",
  actor_kind text NOT NULL,
  actor_id text COLLATE "C" NOT NULL,
  token_id text COLLATE "C",
  break_glass_id text COLLATE "C",
  correlation_id text NOT NULL,
  trace_id text NOT NULL,
  before jsonb,
  after jsonb,
  reason text,
  route text,
  remote_address text
);
CREATE INDEX audit_by_tenant ON audit (tenant_id, id);
CREATE INDEX audit_by_project ON audit (project_id, id) WHERE project_id IS NOT NULL;
CREATE INDEX audit_of_platform ON audit (id)
  WHERE tenant_id IS NULL OR break_glass_id IS NOT NULL OR action = 'break_glass.open';
CREATE INDEX audit_by_correlation ON audit (correlation_id, id);
SELECT tenant_lock('audit');
GRANT SELECT, INSERT ON audit TO mooring_tenant;

CREATE TABLE idempotency (
  principal_id text COLLATE "C" NOT NULL,
  route text NOT NULL,
  key text COLLATE "C" NOT NULL,
  tenant_id text COLLATE "C",
  fingerprint bytea NOT NULL,
  status smallint NOT NULL,
  body bytea NOT NULL,            -- empty where the answer is sealed
  secret_id text COLLATE "C" REFERENCES secret (id) ON DELETE CASCADE,
  correlation_id text NOT NULL,
  created_at timestamptz NOT NULL,
  CONSTRAINT idempotency_pkey PRIMARY KEY (principal_id, route, key)
);
CREATE INDEX idempotency_by_age ON idempotency (created_at);
CREATE INDEX idempotency_by_secret ON idempotency (secret_id) WHERE secret_id IS NOT NULL;
SELECT tenant_lock('idempotency');
GRANT SELECT, INSERT ON idempotency TO mooring_tenant;
