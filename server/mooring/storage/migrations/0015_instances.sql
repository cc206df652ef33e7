-- Instances, members and operations, the claims of adapters, and what apps report that they used.
--
-- On one instance one operation of the whole is open at a time, and one for each member: both are kept here, whoever
-- asks. An allocation holds the members of one instance, unless both allow to share it. A claim is a row beside the
-- instance, so that a heartbeat does not touch what people read.

ALTER TABLE instance
  ADD COLUMN name text COLLATE "C" NOT NULL
    CONSTRAINT instance_name_form CHECK (name ~ '^[a-z][a-z0-9-]{1,38}[a-z0-9]$'),
  ADD COLUMN app_id text COLLATE "C" NOT NULL REFERENCES app (id),
  ADD COLUMN app_slug text COLLATE "C" NOT NULL,
  ADD COLUMN app_category text COLLATE "C" NOT NULL,
  ADD COLUMN version_id text COLLATE "C" NOT NULL REFERENCES app_version (id),
  ADD COLUMN version text COLLATE "C" NOT NULL,
  ADD COLUMN channel text,
  ADD COLUMN pin jsonb NOT NULL,            -- version_id, version, manifest_digest, artifacts: role → digest
  ADD COLUMN previous_pin jsonb,            -- what a rollback goes back to
  ADD COLUMN config jsonb NOT NULL,
  ADD COLUMN config_hidden text[] NOT NULL DEFAULT '{}',   -- where in it secrets stand, which no view shows
  ADD COLUMN topology jsonb NOT NULL,       -- component key → how many members are wanted
  ADD COLUMN placement jsonb NOT NULL,      -- the capacity that an add asks for when it is told of none
  ADD COLUMN operating_mode text NOT NULL,
  ADD COLUMN control_plane_scope text NOT NULL,
  ADD COLUMN runtime_backend text NOT NULL,
  ADD COLUMN bound_capacity_shape text,
  ADD COLUMN topology_mode text CONSTRAINT instance_topology_mode_length CHECK (length(topology_mode) <= 64),
  ADD COLUMN service_account_id text COLLATE "C" NOT NULL,
  ADD COLUMN health text NOT NULL DEFAULT 'unknown'
    CONSTRAINT instance_health_known CHECK (health IN ('healthy', 'degraded', 'unknown')),
  ADD COLUMN health_detail text CONSTRAINT instance_health_detail_length CHECK (length(health_detail) <= 1000),
  ADD COLUMN health_at timestamptz,
  ADD COLUMN endpoints jsonb NOT NULL DEFAULT '[]',
  ADD COLUMN adapter_detail jsonb NOT NULL DEFAULT '{}',
  ADD COLUMN failure_detail text CONSTRAINT instance_failure_detail_length CHECK (length(failure_detail) <= 4000),
  ADD COLUMN last_lines text[],
  ADD COLUMN stop_requested_at timestamptz,
  ADD COLUMN requested_by text COLLATE "C" NOT NULL,
  ADD COLUMN correlation_id text NOT NULL,
  ADD COLUMN trace_id text NOT NULL,
  ADD CONSTRAINT instance_account_of_tenant FOREIGN KEY (tenant_id, service_account_id)
    REFERENCES service_account (tenant_id, id);
CREATE UNIQUE INDEX instance_name_taken ON instance (project_id, name) WHERE status <> 'stopped';
CREATE INDEX instance_open ON instance (status, id) WHERE status <> 'stopped';
CREATE INDEX instance_by_account ON instance (service_account_id, id) WHERE status <> 'stopped';
CREATE INDEX instance_by_app ON instance (app_id, id);

ALTER TABLE member
  ADD COLUMN component_key text COLLATE "C" NOT NULL,
  ADD COLUMN ordinal integer NOT NULL CONSTRAINT member_ordinal_counts CHECK (ordinal >= 0),
  ADD COLUMN name text COLLATE "C" NOT NULL,
  ADD COLUMN version_id text COLLATE "C" NOT NULL REFERENCES app_version (id),
  ADD COLUMN version text COLLATE "C" NOT NULL,
  ADD COLUMN owns_allocation boolean NOT NULL DEFAULT false,
  ADD COLUMN keep_allocation boolean NOT NULL DEFAULT false,
  ADD COLUMN shares boolean NOT NULL DEFAULT false,
  ADD COLUMN health text NOT NULL DEFAULT 'unknown'
    CONSTRAINT member_health_known CHECK (health IN ('healthy', 'degraded', 'unknown')),
  ADD COLUMN health_detail text CONSTRAINT member_health_detail_length CHECK (length(health_detail) <= 1000),
  ADD COLUMN health_at timestamptz,
  ADD COLUMN adapter_detail jsonb NOT NULL DEFAULT '{}',
  ADD COLUMN holds jsonb NOT NULL DEFAULT '[]',         -- who wants no new work on it: owner, reason, since
  ADD COLUMN replaces_id text COLLATE "C",
  ADD COLUMN last_operation_id text COLLATE "C",
  ADD COLUMN failure_detail text CONSTRAINT member_failure_detail_length CHECK (length(failure_detail) <= 4000),
  ADD COLUMN last_lines text[],
  ADD COLUMN blocker text CONSTRAINT member_blocker_length CHECK (length(blocker) <= 1000),
  ADD COLUMN teardown_task_id text COLLATE "C",
  ADD COLUMN teardown_attempts integer NOT NULL DEFAULT 0,
  ADD COLUMN retry_at timestamptz,
  ADD COLUMN correlation_id text NOT NULL,
  ADD COLUMN trace_id text NOT NULL;
CREATE UNIQUE INDEX member_place_taken ON member (instance_id, component_key, ordinal) WHERE status <> 'removed';
CREATE INDEX member_removing ON member (retry_at) WHERE status = 'removing';
CREATE INDEX member_coming ON member (instance_id) WHERE status IN ('requested', 'joining');
CREATE INDEX member_unwanted ON member (instance_id) WHERE status = 'failed' AND failure_code = 'cancelled';
CREATE INDEX member_left ON member (instance_id) WHERE status <> 'removed';

-- An allocation holds members of one instance: both sides meet on the allocation's row, as its release does.
CREATE FUNCTION member_allocation_is_free() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
DECLARE
  standing text;
BEGIN
  SELECT status INTO standing FROM allocation WHERE id = NEW.allocation_id FOR NO KEY UPDATE;
  IF standing NOT IN ('requested', 'provisioning', 'active') THEN
    RAISE EXCEPTION 'the allocation is %', standing
      USING ERRCODE = 'check_violation', CONSTRAINT = 'member_allocation_stands';
  END IF;
  IF EXISTS (SELECT FROM member m WHERE m.allocation_id = NEW.allocation_id AND m.instance_id <> NEW.instance_id
             AND NOT (m.shares AND NEW.shares)
             AND NOT EXISTS (SELECT FROM closing_record c WHERE c.member_id = m.id)) THEN
    RAISE EXCEPTION 'the allocation holds members of another instance'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'member_allocation_is_free';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER member_allocation_is_free AFTER INSERT ON member DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (NEW.allocation_id IS NOT NULL) EXECUTE FUNCTION member_allocation_is_free();

-- What a launch names may be the platform's or the tenant's own, and nobody else's: a reference alone does not say so.
CREATE FUNCTION version_is_in_sight() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM app_version v WHERE v.id = NEW.version_id
                    AND (v.tenant_id IS NULL OR v.tenant_id = NEW.tenant_id)) THEN
    RAISE EXCEPTION 'the tenant sees no such version'
      USING ERRCODE = 'foreign_key_violation', CONSTRAINT = 'version_is_in_sight';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER instance_version_is_in_sight AFTER INSERT OR UPDATE OF version_id, tenant_id ON instance
  FOR EACH ROW EXECUTE FUNCTION version_is_in_sight();
CREATE TRIGGER member_version_is_in_sight AFTER INSERT OR UPDATE OF version_id, tenant_id ON member
  FOR EACH ROW EXECUTE FUNCTION version_is_in_sight();
CREATE FUNCTION instance_version_is_of_app() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM app_version v WHERE v.id = NEW.version_id AND v.app_id = NEW.app_id) THEN
    RAISE EXCEPTION 'the version is of another app'
      USING ERRCODE = 'foreign_key_violation', CONSTRAINT = 'instance_version_is_of_app';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER instance_version_is_of_app AFTER INSERT OR UPDATE OF version_id, app_id ON instance
  FOR EACH ROW EXECUTE FUNCTION instance_version_is_of_app();

-- Operations ------------------------------------------------------------------------------------------------------------

ALTER TABLE operation
  ADD COLUMN instance_id text COLLATE "C" NOT NULL,
  ADD COLUMN kind text NOT NULL CONSTRAINT operation_kind_known CHECK (kind IN (
    'deploy', 'add', 'drain', 'remove', 'replace', 'upgrade', 'rollback', 'reconcile', 'repair', 'restart', 'action',
    'decommission')),
  ADD COLUMN phase text NOT NULL DEFAULT 'adapter'
    CONSTRAINT operation_phase_known CHECK (phase IN ('adapter', 'platform')),
  ADD COLUMN member_ids text[] NOT NULL DEFAULT '{}',
  ADD COLUMN request jsonb NOT NULL,
  ADD COLUMN target_pin jsonb,
  ADD COLUMN steps jsonb NOT NULL DEFAULT '[]',
  ADD COLUMN progress jsonb,
  ADD COLUMN attempts integer NOT NULL DEFAULT 0,
  ADD COLUMN attempt_fence bigint,            -- under which claim the last attempt began
  ADD COLUMN deadline_at timestamptz NOT NULL,
  ADD COLUMN phase_deadline_at timestamptz,   -- until when the adapter has time for the graceful part
  ADD COLUMN dispatched_at timestamptz,       -- since when an adapter may take it
  ADD COLUMN started_at timestamptz,
  ADD COLUMN blocker_code text,
  ADD COLUMN cancel_reason text,
  ADD COLUMN output jsonb,
  ADD COLUMN evidence jsonb,
  ADD COLUMN failure_detail text CONSTRAINT operation_failure_detail_length CHECK (length(failure_detail) <= 4000),
  ADD COLUMN last_lines text[],
  ADD COLUMN read_only boolean NOT NULL DEFAULT false,
  ADD COLUMN requested_by text COLLATE "C" NOT NULL,
  ADD COLUMN correlation_id text NOT NULL,
  ADD COLUMN trace_id text NOT NULL,
  ADD CONSTRAINT operation_instance_of_project FOREIGN KEY (tenant_id, project_id, instance_id)
    REFERENCES instance (tenant_id, project_id, id),
  ADD CONSTRAINT operation_blocker_length CHECK (length(blocker) <= 1000);
CREATE UNIQUE INDEX operation_one_of_the_whole ON operation (instance_id)
  WHERE kind IN ('deploy', 'upgrade', 'rollback', 'reconcile', 'repair', 'restart')
    AND status NOT IN ('succeeded', 'failed', 'cancelled');
CREATE UNIQUE INDEX operation_one_decommission ON operation (instance_id)
  WHERE kind = 'decommission' AND status NOT IN ('succeeded', 'failed', 'cancelled');
CREATE INDEX operation_by_instance ON operation (instance_id, id);
CREATE INDEX operation_open ON operation (instance_id, id) WHERE status NOT IN ('succeeded', 'failed', 'cancelled');
CREATE INDEX operation_by_deadline ON operation (deadline_at) WHERE status NOT IN ('succeeded', 'failed', 'cancelled');
CREATE INDEX operation_read_only_over ON operation (finished_at) WHERE read_only AND finished_at IS NOT NULL;
CREATE INDEX operation_deploys_over ON operation ((request ->> 'version_id'), status, finished_at)
  WHERE kind = 'deploy' AND finished_at IS NOT NULL;

-- An action that only reads leaves no event: whoever waits for it, or would carry it out, is woken by a hint.
CREATE FUNCTION operation_hints() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  PERFORM pg_notify('mooring_hint', NEW.instance_id);
  RETURN NULL;
END $$;
CREATE TRIGGER operation_hints AFTER INSERT OR UPDATE ON operation
  FOR EACH ROW WHEN (NEW.read_only) EXECUTE FUNCTION operation_hints();

CREATE TABLE operation_member (
  operation_id text COLLATE "C" NOT NULL,
  member_id text COLLATE "C" NOT NULL,
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C" NOT NULL,
  open boolean NOT NULL,
  CONSTRAINT operation_member_pkey PRIMARY KEY (operation_id, member_id),
  CONSTRAINT operation_member_operation_of_project FOREIGN KEY (tenant_id, project_id, operation_id)
    REFERENCES operation (tenant_id, project_id, id) ON DELETE CASCADE,
  CONSTRAINT operation_member_member_of_project FOREIGN KEY (tenant_id, project_id, member_id)
    REFERENCES member (tenant_id, project_id, id)
);
CREATE UNIQUE INDEX operation_member_one_open ON operation_member (member_id) WHERE open;
CREATE INDEX operation_member_by_member ON operation_member (member_id, operation_id);
COMMENT ON TABLE operation_member IS 'Which members an operation concerns; written by a trigger, with the operation.';
SELECT tenant_lock('operation_member');
GRANT SELECT ON operation_member TO mooring_tenant;

CREATE FUNCTION operation_has_members() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  INSERT INTO operation_member (operation_id, member_id, tenant_id, project_id, open)
    SELECT NEW.id, m, NEW.tenant_id, NEW.project_id, NEW.kind IN ('add', 'drain', 'remove', 'replace')
      FROM unnest(NEW.member_ids) m ORDER BY m;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER operation_has_members AFTER INSERT ON operation DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (NEW.member_ids <> '{}') EXECUTE FUNCTION operation_has_members();

CREATE FUNCTION operation_lets_go() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  UPDATE operation_member SET open = false WHERE operation_id = NEW.id AND open;
  RETURN NULL;
END $$;
CREATE TRIGGER operation_lets_go AFTER UPDATE ON operation FOR EACH ROW
  WHEN (OLD.finished_at IS NULL AND NEW.finished_at IS NOT NULL) EXECUTE FUNCTION operation_lets_go();

-- Claims ----------------------------------------------------------------------------------------------------------------

CREATE TABLE instance_claim (
  instance_id text COLLATE "C" CONSTRAINT instance_claim_pkey PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C" NOT NULL,
  service_account_id text COLLATE "C" NOT NULL,
  holder text COLLATE "C",
  fence bigint NOT NULL DEFAULT 0 CONSTRAINT instance_claim_fence_counts CHECK (fence >= 0),
  wanted boolean NOT NULL DEFAULT false,   -- there may be something for an adapter to do: set here, cleared by a claim
  wanted_count bigint NOT NULL DEFAULT 0,  -- so that a claim does not clear what was set after it had looked
  claimed_at timestamptz,
  expires_at timestamptz,
  CONSTRAINT instance_claim_holder_has_lease CHECK (num_nonnulls(holder, claimed_at, expires_at) IN (0, 3)),
  CONSTRAINT instance_claim_instance_of_project FOREIGN KEY (tenant_id, project_id, instance_id)
    REFERENCES instance (tenant_id, project_id, id)
);
CREATE INDEX instance_claim_unheld ON instance_claim (service_account_id, instance_id) WHERE wanted AND expires_at IS NULL;
CREATE INDEX instance_claim_held ON instance_claim (service_account_id, expires_at, instance_id) INCLUDE (holder)
  WHERE wanted AND expires_at IS NOT NULL;
CREATE INDEX instance_claim_by_holder ON instance_claim (service_account_id, holder, instance_id) WHERE holder IS NOT NULL;
CREATE INDEX instance_claim_lapsing ON instance_claim (expires_at) WHERE holder IS NOT NULL;
ALTER TABLE instance_claim SET (fillfactor = 70);   -- leases are renewed in place
SELECT tenant_lock('instance_claim');
GRANT SELECT ON instance_claim TO mooring_tenant;
GRANT UPDATE (claimed_at) ON instance_claim TO mooring_tenant;   -- a guard locks the row, which is a right to change it

CREATE FUNCTION instance_has_claim() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  INSERT INTO instance_claim (instance_id, tenant_id, project_id, service_account_id)
    VALUES (NEW.id, NEW.tenant_id, NEW.project_id, NEW.service_account_id);
  RETURN NULL;
END $$;
CREATE TRIGGER instance_has_claim AFTER INSERT ON instance FOR EACH ROW EXECUTE FUNCTION instance_has_claim();

-- What adapters look at is what may be theirs to do: so a claim costs the same however many instances there are.
CREATE FUNCTION operation_wants_adapter() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  UPDATE instance_claim SET wanted = true, wanted_count = wanted_count + 1 WHERE instance_id = NEW.instance_id;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER operation_wants_adapter_at_birth AFTER INSERT ON operation DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (NEW.dispatched_at IS NOT NULL) EXECUTE FUNCTION operation_wants_adapter();
CREATE TRIGGER operation_wants_adapter AFTER UPDATE ON operation FOR EACH ROW
  WHEN (OLD.dispatched_at IS NULL AND NEW.dispatched_at IS NOT NULL) EXECUTE FUNCTION operation_wants_adapter();

-- A stopped instance is nobody's: whoever held it writes nothing more.
CREATE FUNCTION instance_ends_claim() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  UPDATE instance_claim SET holder = NULL, claimed_at = NULL, expires_at = NULL, wanted = false, fence = fence + 1
   WHERE instance_id = NEW.id;
  RETURN NULL;
END $$;
CREATE TRIGGER instance_ends_claim AFTER UPDATE ON instance FOR EACH ROW
  WHEN (OLD.status <> NEW.status AND NEW.status = 'stopped') EXECUTE FUNCTION instance_ends_claim();

CREATE TABLE adapter_presence (
  service_account_id text COLLATE "C" CONSTRAINT adapter_presence_pkey PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C" NOT NULL,
  holder text COLLATE "C" NOT NULL,
  seen_at timestamptz NOT NULL,
  CONSTRAINT adapter_presence_account_of_tenant FOREIGN KEY (tenant_id, service_account_id)
    REFERENCES service_account (tenant_id, id)
);
COMMENT ON TABLE adapter_presence IS 'When an adapter last asked for work under this account, to the nearest half minute.';
SELECT tenant_lock('adapter_presence');
GRANT SELECT ON adapter_presence TO mooring_tenant;

-- Adapters of apps ------------------------------------------------------------------------------------------------------

ALTER TABLE app ADD COLUMN adapter_key bytea CONSTRAINT app_adapter_key_length CHECK (length(adapter_key) = 32),
  ADD COLUMN adapter_keys_before bytea[] NOT NULL DEFAULT '{}';   -- what it was, for accounts that still have one
ALTER TABLE service_account ADD COLUMN app_id text COLLATE "C" REFERENCES app (id);   -- whose operator account it is
CREATE TRIGGER service_account_app_is_in_sight AFTER INSERT OR UPDATE OF app_id, tenant_id ON service_account
  FOR EACH ROW WHEN (NEW.app_id IS NOT NULL) EXECUTE FUNCTION entitlement_app_is_in_sight();
CREATE INDEX service_account_by_app ON service_account (app_id, id) WHERE app_id IS NOT NULL AND status <> 'deleted';
ALTER TABLE entitlement ADD COLUMN service_account_id text COLLATE "C",
  ADD CONSTRAINT entitlement_account_of_tenant FOREIGN KEY (tenant_id, service_account_id)
    REFERENCES service_account (tenant_id, id);
CREATE INDEX entitlement_by_account ON entitlement (service_account_id) WHERE service_account_id IS NOT NULL;
CREATE INDEX service_account_key_by_key ON service_account_key (public_key) WHERE revoked_at IS NULL;

-- Usage that apps report --------------------------------------------------------------------------------------------------

CREATE TABLE usage_record (
  id text COLLATE "C" CONSTRAINT usage_record_pkey PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C" NOT NULL,
  instance_id text COLLATE "C" NOT NULL,
  record_id text COLLATE "C" NOT NULL CONSTRAINT usage_record_id_length CHECK (length(record_id) BETWEEN 1 AND 128),
  unit text COLLATE "C" NOT NULL,
  started_at timestamptz NOT NULL,
  ended_at timestamptz NOT NULL,
  quantity numeric NOT NULL CONSTRAINT usage_record_quantity_counts CHECK (quantity >= 0),
  attached_project_id text COLLATE "C",
  usage_source text NOT NULL DEFAULT 'app_runtime' CONSTRAINT usage_record_source_known CHECK (usage_source = 'app_runtime'),
  app_slug text COLLATE "C" NOT NULL,
  correlation_id text NOT NULL,
  trace_id text NOT NULL,
  created_at timestamptz NOT NULL,
  CONSTRAINT usage_record_interval CHECK (ended_at >= started_at),
  CONSTRAINT usage_record_taken UNIQUE (instance_id, record_id),
  CONSTRAINT usage_record_instance_of_project FOREIGN KEY (tenant_id, project_id, instance_id)
    REFERENCES instance (tenant_id, project_id, id),
  CONSTRAINT usage_record_attached_of_tenant FOREIGN KEY (tenant_id, attached_project_id) REFERENCES project (tenant_id, id)
);
CREATE INDEX usage_record_by_instance ON usage_record (instance_id, id);
SELECT tenant_lock('usage_record');
GRANT SELECT, INSERT ON usage_record TO mooring_tenant;

-- Secrets of apps ---------------------------------------------------------------------------------------------------------

ALTER TABLE runtime_secret DROP CONSTRAINT runtime_secret_purpose_known,
  ADD CONSTRAINT runtime_secret_purpose_known CHECK (purpose IN ('artifact_pull', 'app_access', 'member_secret'));
ALTER TABLE secret_grant DROP CONSTRAINT secret_grant_purpose_known,
  ADD CONSTRAINT secret_grant_purpose_known CHECK (purpose IN ('artifact_pull', 'app_access', 'member_secret'));

-- One timeline -------------------------------------------------------------------------------------------------------------
-- Events and audit rows stand in one order: an audit row has a place in the stream too, from the same sequence. Rows from
-- before have none, and are read from the audit trail alone.

ALTER TABLE audit
  ADD COLUMN epoch integer,
  ADD COLUMN tx bigint,
  ADD COLUMN seq bigint,
  ADD COLUMN app_instance_id text COLLATE "C";
ALTER TABLE audit
  ALTER COLUMN tx SET DEFAULT (pg_current_xact_id()::text)::bigint,
  ALTER COLUMN seq SET DEFAULT nextval('event_seq_seq');
DO $$ BEGIN
  EXECUTE format('ALTER TABLE audit ALTER COLUMN epoch SET DEFAULT %s', (SELECT current FROM event_epoch));
END $$;
GRANT USAGE ON SEQUENCE event_seq_seq TO mooring_tenant;
CREATE INDEX audit_by_instance ON audit (app_instance_id, epoch, tx, seq) WHERE app_instance_id IS NOT NULL;
CREATE INDEX event_by_instance ON event (app_instance_id, epoch, tx, seq) WHERE app_instance_id IS NOT NULL;

-- What is past its time ----------------------------------------------------------------------------------------------------

CREATE INDEX task_over ON task (finished_at)
  WHERE finished_at IS NOT NULL AND type NOT IN ('sandbox.create', 'sandbox.destroy', 'teardown.verify');
CREATE INDEX task_log_by_age ON task_log (received_at);
CREATE INDEX artifact_check_over ON artifact_check (finished_at) WHERE finished_at IS NOT NULL;
