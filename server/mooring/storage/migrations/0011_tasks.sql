-- Tasks for nodes, their logs and receipts, and the secrets that they are handed.
--
-- A task is named by (operation, step) or (allocation, step), once. Nothing is made for an owner once a task that ends
-- the owner was made, whoever asks: both sides meet on a lock of the allocation. A node's receipts are a chain: each
-- names the one before it, and the database takes no other.

ALTER TABLE task
  ADD COLUMN allocation_id text COLLATE "C" NOT NULL,
  ADD COLUMN node_id text COLLATE "C" NOT NULL REFERENCES node (id),
  ADD COLUMN owner text COLLATE "C" NOT NULL CONSTRAINT task_owner_of_allocation
    CHECK (owner = allocation_id OR starts_with(owner, allocation_id || '/')),
  ADD COLUMN instance_id text COLLATE "C",
  ADD COLUMN operation_id text COLLATE "C",
  ADD COLUMN step text COLLATE "C" NOT NULL CONSTRAINT task_step_length CHECK (length(step) BETWEEN 1 AND 128),
  ADD COLUMN type text COLLATE "C" NOT NULL CONSTRAINT task_type_length CHECK (length(type) BETWEEN 1 AND 64),
  ADD COLUMN arguments jsonb NOT NULL,
  ADD COLUMN maker text COLLATE "C" NOT NULL,   -- `system`, or a service account
  ADD COLUMN correlation_id text NOT NULL,
  ADD COLUMN trace_id text NOT NULL,
  ADD COLUMN expires_at timestamptz NOT NULL,
  ADD COLUMN fence bigint NOT NULL DEFAULT 0 CONSTRAINT task_fence_counts CHECK (fence >= 0),
  ADD COLUMN failure_code text,
  ADD COLUMN failure_detail text,
  ADD COLUMN exit_code integer,
  ADD COLUMN result jsonb,
  ADD COLUMN last_lines text[],
  ADD COLUMN progress jsonb,
  ADD COLUMN log_bytes bigint NOT NULL DEFAULT 0,
  ADD COLUMN log_truncated boolean NOT NULL DEFAULT false,
  ADD CONSTRAINT task_allocation_of_project FOREIGN KEY (tenant_id, project_id, allocation_id)
    REFERENCES allocation (tenant_id, project_id, id),
  ADD CONSTRAINT task_instance_of_project FOREIGN KEY (tenant_id, project_id, instance_id)
    REFERENCES instance (tenant_id, project_id, id),
  ADD CONSTRAINT task_operation_of_project FOREIGN KEY (tenant_id, project_id, operation_id)
    REFERENCES operation (tenant_id, project_id, id),
  ADD CONSTRAINT task_claim_has_fence CHECK (first_claimed_at IS NULL OR fence > 0);
SELECT lifecycle_requires('task', 'status', '{failed}', 'failure_code');
CREATE UNIQUE INDEX task_named_by_operation ON task (operation_id, step) WHERE operation_id IS NOT NULL;
CREATE UNIQUE INDEX task_named_by_allocation ON task (allocation_id, step) WHERE operation_id IS NULL;
CREATE INDEX task_queued ON task (node_id, id) WHERE status = 'queued';
CREATE INDEX task_by_lease ON task (lease_expires_at) WHERE status = 'claimed';
CREATE INDEX task_cancelling ON task (node_id, id) WHERE status = 'cancelling';
CREATE INDEX task_by_expiry ON task (expires_at) WHERE status IN ('queued', 'claimed', 'cancelling');
CREATE INDEX task_by_node ON task (node_id, id);
CREATE INDEX task_by_allocation ON task (allocation_id, id);
CREATE INDEX task_by_instance ON task (instance_id, id) WHERE instance_id IS NOT NULL;
ALTER TABLE task SET (fillfactor = 80);   -- leases are renewed in place

-- Closed owners -------------------------------------------------------------------------------------------------------

CREATE TABLE closed_owner (
  owner text COLLATE "C" CONSTRAINT closed_owner_pkey PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL,
  allocation_id text COLLATE "C" NOT NULL,
  task_id text COLLATE "C" NOT NULL,   -- the first task that ends it
  created_at timestamptz NOT NULL
);
COMMENT ON TABLE closed_owner IS 'Owners that a task was made to end; written by a trigger, with that task.';
SELECT tenant_lock('closed_owner');
GRANT SELECT ON closed_owner TO mooring_tenant;

CREATE FUNCTION task_owner_is_open() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  IF NEW.type IN ('sandbox.destroy', 'teardown.verify') THEN
    PERFORM pg_advisory_xact_lock(hashtextextended('owner ' || NEW.allocation_id, 0));
    INSERT INTO closed_owner VALUES (NEW.owner, NEW.tenant_id, NEW.allocation_id, NEW.id, NEW.created_at)
      ON CONFLICT DO NOTHING;
    RETURN NEW;
  END IF;
  PERFORM pg_advisory_xact_lock_shared(hashtextextended('owner ' || NEW.allocation_id, 0));
  IF EXISTS (SELECT FROM closed_owner WHERE owner IN (NEW.owner, NEW.allocation_id)) THEN
    RAISE EXCEPTION 'the owner is closed' USING ERRCODE = 'check_violation', CONSTRAINT = 'task_owner_is_open';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER task_owner_is_open BEFORE INSERT ON task FOR EACH ROW EXECUTE FUNCTION task_owner_is_open();

-- Logs ----------------------------------------------------------------------------------------------------------------

CREATE TABLE task_log (
  task_id text COLLATE "C" NOT NULL,
  "offset" bigint NOT NULL CONSTRAINT task_log_offset_counts CHECK ("offset" >= 0),
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C" NOT NULL,
  chunk bytea NOT NULL CONSTRAINT task_log_chunk_length CHECK (length(chunk) BETWEEN 1 AND 262144),
  received_at timestamptz NOT NULL,
  CONSTRAINT task_log_pkey PRIMARY KEY (task_id, "offset"),
  CONSTRAINT task_log_task_of_project FOREIGN KEY (tenant_id, project_id, task_id)
    REFERENCES task (tenant_id, project_id, id)
);
SELECT tenant_lock('task_log');
GRANT SELECT ON task_log TO mooring_tenant;

-- Receipts ------------------------------------------------------------------------------------------------------------

CREATE TABLE receipt (
  id text COLLATE "C" CONSTRAINT receipt_pkey PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C" NOT NULL,
  task_id text COLLATE "C" NOT NULL,
  task_type text NOT NULL,
  node_id text COLLATE "C" NOT NULL REFERENCES node (id),
  allocation_id text COLLATE "C" NOT NULL,
  owner text COLLATE "C" NOT NULL,
  sequence bigint NOT NULL CONSTRAINT receipt_sequence_counts CHECK (sequence >= 1),
  previous text COLLATE "C" NOT NULL CONSTRAINT receipt_previous_form CHECK (previous ~ '^[0-9a-f]{64}$'),
  digest text COLLATE "C" NOT NULL CONSTRAINT receipt_digest_is_of_body CHECK (digest = encode(sha256(body), 'hex')),
  clean boolean NOT NULL,
  late boolean NOT NULL DEFAULT false,   -- it came when the task had been given up
  body bytea NOT NULL CONSTRAINT receipt_body_length CHECK (length(body) BETWEEN 2 AND 1048576),
  signature bytea NOT NULL CONSTRAINT receipt_signature_length CHECK (length(signature) = 64),
  looked_at timestamptz NOT NULL,
  created_at timestamptz NOT NULL,
  CONSTRAINT receipt_of_one_project UNIQUE (tenant_id, project_id, id),
  CONSTRAINT receipt_one_per_task UNIQUE (task_id),
  CONSTRAINT receipt_sequence_taken UNIQUE (node_id, sequence),
  CONSTRAINT receipt_task_of_project FOREIGN KEY (tenant_id, project_id, task_id)
    REFERENCES task (tenant_id, project_id, id),
  CONSTRAINT receipt_allocation_of_project FOREIGN KEY (tenant_id, project_id, allocation_id)
    REFERENCES allocation (tenant_id, project_id, id)
);
COMMENT ON TABLE receipt IS 'What a node signed that it found after a teardown; never changed, never deleted.';
CREATE INDEX receipt_by_project ON receipt (project_id, id);
CREATE INDEX receipt_by_allocation ON receipt (allocation_id, id);
SELECT tenant_lock('receipt');
GRANT SELECT ON receipt TO mooring_tenant;

CREATE FUNCTION receipt_follows_previous() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  IF (NEW.sequence = 1 AND NEW.previous <> repeat('0', 64))
     OR (NEW.sequence > 1 AND NOT EXISTS (
           SELECT FROM receipt r
            WHERE r.node_id = NEW.node_id AND r.sequence = NEW.sequence - 1 AND r.digest = NEW.previous)) THEN
    RAISE EXCEPTION 'the receipt does not follow the one before it'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'receipt_follows_previous';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER receipt_follows_previous BEFORE INSERT ON receipt FOR EACH ROW EXECUTE FUNCTION receipt_follows_previous();

CREATE FUNCTION receipt_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'a receipt is never changed' USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME;
END $$;
CREATE TRIGGER receipt_is_immutable BEFORE UPDATE OR DELETE ON receipt
  FOR EACH ROW EXECUTE FUNCTION receipt_is_immutable();

-- A receipt that comes after a write-off is added to the closing record, which stays a write-off.
CREATE FUNCTION receipt_joins_write_off() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  UPDATE closing_record c SET receipt = jsonb_build_object('receipt_id', NEW.id, 'clean', NEW.clean, 'late', true)
    FROM task t
   WHERE t.id = NEW.task_id AND c.member_id = t.member_id AND c.kind = 'write_off' AND c.receipt IS NULL;
  RETURN NULL;
END $$;
CREATE TRIGGER receipt_joins_write_off AFTER INSERT ON receipt
  FOR EACH ROW WHEN (NEW.late) EXECUTE FUNCTION receipt_joins_write_off();

-- Secrets -------------------------------------------------------------------------------------------------------------

CREATE TABLE runtime_secret (
  id text COLLATE "C" CONSTRAINT runtime_secret_pkey PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C" NOT NULL,
  instance_id text COLLATE "C",
  allocation_id text COLLATE "C",
  name text COLLATE "C" NOT NULL CONSTRAINT runtime_secret_name_form CHECK (name ~ '^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$'),
  purpose text NOT NULL CONSTRAINT runtime_secret_purpose_known CHECK (purpose IN ('artifact_pull')),
  secret_id text COLLATE "C" REFERENCES secret (id),
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  destroyed_at timestamptz,
  CONSTRAINT runtime_secret_of_one_project UNIQUE (tenant_id, project_id, id),
  CONSTRAINT runtime_secret_has_one_home CHECK (num_nonnulls(instance_id, allocation_id) = 1),
  CONSTRAINT runtime_secret_destroyed_is_gone CHECK ((destroyed_at IS NULL) = (secret_id IS NOT NULL)),
  CONSTRAINT runtime_secret_value_of_tenant FOREIGN KEY (tenant_id, secret_id) REFERENCES secret (tenant_id, id),
  CONSTRAINT runtime_secret_instance_of_project FOREIGN KEY (tenant_id, project_id, instance_id)
    REFERENCES instance (tenant_id, project_id, id),
  CONSTRAINT runtime_secret_allocation_of_project FOREIGN KEY (tenant_id, project_id, allocation_id)
    REFERENCES allocation (tenant_id, project_id, id)
);
CREATE UNIQUE INDEX runtime_secret_name_taken ON runtime_secret (coalesce(instance_id, allocation_id), name)
  WHERE destroyed_at IS NULL;
CREATE UNIQUE INDEX runtime_secret_by_value ON runtime_secret (secret_id) WHERE secret_id IS NOT NULL;
SELECT tenant_lock('runtime_secret');
GRANT SELECT, INSERT, UPDATE ON runtime_secret TO mooring_tenant;

CREATE FUNCTION runtime_secret_is_destroyed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  DELETE FROM secret WHERE id = OLD.secret_id;
  RETURN NULL;
END $$;
CREATE TRIGGER runtime_secret_is_destroyed AFTER UPDATE ON runtime_secret FOR EACH ROW
  WHEN (OLD.secret_id IS NOT NULL AND NEW.secret_id IS NULL) EXECUTE FUNCTION runtime_secret_is_destroyed();

CREATE TABLE secret_grant (
  id text COLLATE "C" CONSTRAINT secret_grant_pkey PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C" NOT NULL,
  task_id text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL CONSTRAINT secret_grant_name_form CHECK (name ~ '^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$'),
  purpose text NOT NULL CONSTRAINT secret_grant_purpose_known CHECK (purpose IN ('artifact_pull')),
  runtime_secret_id text COLLATE "C",
  repository text,
  expires_at timestamptz NOT NULL,
  created_at timestamptz NOT NULL,
  CONSTRAINT secret_grant_named_once UNIQUE (task_id, name),
  CONSTRAINT secret_grant_is_of_one_kind CHECK (num_nonnulls(runtime_secret_id, repository) = 1),
  CONSTRAINT secret_grant_task_of_project FOREIGN KEY (tenant_id, project_id, task_id)
    REFERENCES task (tenant_id, project_id, id),
  CONSTRAINT secret_grant_secret_of_project FOREIGN KEY (tenant_id, project_id, runtime_secret_id)
    REFERENCES runtime_secret (tenant_id, project_id, id)
);
SELECT tenant_lock('secret_grant');
GRANT SELECT, INSERT ON secret_grant TO mooring_tenant;

-- A task gets what belongs to its own instance or allocation, for the purpose that it was kept for.
CREATE FUNCTION secret_grant_is_of_task() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  IF NOT EXISTS (
    SELECT FROM runtime_secret s JOIN task t ON t.id = NEW.task_id
     WHERE s.id = NEW.runtime_secret_id AND s.purpose = NEW.purpose AND s.destroyed_at IS NULL
       AND (s.instance_id = t.instance_id OR s.allocation_id = t.allocation_id)) THEN
    RAISE EXCEPTION 'the secret is not this task''s to have'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'secret_grant_is_of_task';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER secret_grant_is_of_task AFTER INSERT ON secret_grant DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (NEW.runtime_secret_id IS NOT NULL) EXECUTE FUNCTION secret_grant_is_of_task();
