-- The nouns of the runtime, as far as their lifecycles and closing records go. Later migrations widen these tables;
-- what is here already is what must never be untrue: a status without its transition, `stopped` or `removed` without
-- a closing record, a reference across tenants.

CREATE TABLE node (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" CONSTRAINT node_is_platforms CHECK (tenant_id IS NULL),
  status text NOT NULL,
  generation bigint NOT NULL DEFAULT 0,
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL
);
SELECT lifecycle_attach('node', 'node', 'status', 'generation');

CREATE TABLE artifact (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" REFERENCES tenant (id),
  promotion text NOT NULL,
  promotion_generation bigint NOT NULL DEFAULT 0,
  trust text NOT NULL,
  trust_generation bigint NOT NULL DEFAULT 0,
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL
);
SELECT lifecycle_attach('artifact', 'promotion', 'promotion', 'promotion_generation');
SELECT lifecycle_attach('artifact', 'trust', 'trust', 'trust_generation');
SELECT tenant_lock('artifact');
GRANT SELECT, INSERT, UPDATE ON artifact TO mooring_tenant;

CREATE TABLE app_version (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" REFERENCES tenant (id),
  promotion text NOT NULL,
  promotion_generation bigint NOT NULL DEFAULT 0,
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL
);
SELECT lifecycle_attach('app_version', 'promotion', 'promotion', 'promotion_generation');
SELECT tenant_lock('app_version');
GRANT SELECT, INSERT, UPDATE ON app_version TO mooring_tenant;

CREATE FUNCTION project_noun(noun text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format(
    'CREATE TABLE %1$I (
       id text COLLATE "C" PRIMARY KEY,
       tenant_id text COLLATE "C" NOT NULL,
       project_id text COLLATE "C" NOT NULL,
       status text NOT NULL,
       generation bigint NOT NULL DEFAULT 0,
       revision bigint NOT NULL DEFAULT 0,
       created_at timestamptz NOT NULL,
       CONSTRAINT %2$I UNIQUE (tenant_id, project_id, id),
       CONSTRAINT %3$I FOREIGN KEY (tenant_id, project_id) REFERENCES project (tenant_id, id))',
    noun, noun || '_of_one_project', noun || '_project_of_tenant');
  EXECUTE format('CREATE INDEX %I ON %I (project_id, id)', noun || '_by_project', noun);
  PERFORM lifecycle_attach(noun::regclass, noun, 'status', 'generation');
  PERFORM tenant_lock(noun::regclass);
  EXECUTE format('GRANT SELECT, INSERT, UPDATE ON %I TO mooring_tenant', noun);
END $$;
COMMENT ON FUNCTION project_noun IS 'Makes the table of a noun that lives in a project and has a lifecycle.';

-- Nothing is made in a project while it is deleted: both sides meet on the project's row.
CREATE FUNCTION project_is_open() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  PERFORM FROM project WHERE id = NEW.project_id AND deleted_at IS NULL FOR SHARE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'the project is deleted' USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME;
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER service_account_project_is_open AFTER INSERT ON service_account
  FOR EACH ROW EXECUTE FUNCTION project_is_open();
CREATE CONSTRAINT TRIGGER webhook_project_is_open AFTER INSERT ON webhook
  FOR EACH ROW WHEN (NEW.project_id IS NOT NULL) EXECUTE FUNCTION project_is_open();
CREATE CONSTRAINT TRIGGER membership_project_is_open AFTER INSERT ON membership
  FOR EACH ROW WHEN (NEW.project_id IS NOT NULL) EXECUTE FUNCTION project_is_open();

SELECT project_noun('allocation');
SELECT project_noun('instance');
SELECT project_noun('member');
SELECT project_noun('operation');
SELECT project_noun('task');
SELECT project_noun('attachment');

CREATE CONSTRAINT TRIGGER allocation_project_is_open AFTER INSERT ON allocation
  FOR EACH ROW EXECUTE FUNCTION project_is_open();
CREATE CONSTRAINT TRIGGER instance_project_is_open AFTER INSERT ON instance
  FOR EACH ROW EXECUTE FUNCTION project_is_open();
CREATE CONSTRAINT TRIGGER attachment_project_is_open AFTER INSERT ON attachment
  FOR EACH ROW EXECUTE FUNCTION project_is_open();

CREATE FUNCTION project_deleted_is_empty() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  IF EXISTS (SELECT FROM service_account WHERE project_id = NEW.id AND status <> 'deleted')
     OR EXISTS (SELECT FROM webhook WHERE project_id = NEW.id)
     OR EXISTS (SELECT FROM allocation WHERE project_id = NEW.id AND status <> 'released')
     OR EXISTS (SELECT FROM instance WHERE project_id = NEW.id AND status <> 'stopped')
     OR EXISTS (SELECT FROM attachment WHERE project_id = NEW.id AND status NOT IN ('detached', 'refused')) THEN
    RAISE EXCEPTION 'the project still holds something'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'project_deleted_is_empty';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER project_deleted_is_empty AFTER UPDATE ON project FOR EACH ROW
  WHEN (OLD.deleted_at IS NULL AND NEW.deleted_at IS NOT NULL) EXECUTE FUNCTION project_deleted_is_empty();

ALTER TABLE member
  ADD COLUMN instance_id text COLLATE "C" NOT NULL,
  ADD CONSTRAINT member_instance_of_project FOREIGN KEY (tenant_id, project_id, instance_id)
    REFERENCES instance (tenant_id, project_id, id);
CREATE INDEX member_by_instance ON member (instance_id, id);

ALTER TABLE task
  ADD COLUMN member_id text COLLATE "C",
  ADD COLUMN first_claimed_at timestamptz,
  ADD CONSTRAINT task_member_of_project FOREIGN KEY (tenant_id, project_id, member_id)
    REFERENCES member (tenant_id, project_id, id),
  ADD CONSTRAINT task_claim_is_dated CHECK (status IN ('queued', 'cancelled', 'expired') OR first_claimed_at IS NOT NULL);
CREATE INDEX task_by_member ON task (member_id, id) WHERE member_id IS NOT NULL;

CREATE TABLE closing_record (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C" NOT NULL,
  member_id text COLLATE "C" NOT NULL CONSTRAINT closing_record_one_per_member UNIQUE,
  kind text NOT NULL CONSTRAINT closing_record_kind_known CHECK (kind IN ('receipt', 'nothing_started', 'write_off')),
  receipt jsonb,
  node_id text COLLATE "C" REFERENCES node (id),
  reason text,
  may_be_left text,
  created_at timestamptz NOT NULL,
  CONSTRAINT closing_record_member_of_project FOREIGN KEY (tenant_id, project_id, member_id)
    REFERENCES member (tenant_id, project_id, id),
  CONSTRAINT closing_record_receipt_present CHECK (kind <> 'receipt' OR receipt IS NOT NULL),
  CONSTRAINT closing_record_write_off_stated CHECK (
    kind <> 'write_off' OR (node_id IS NOT NULL AND length(trim(reason)) >= 10 AND may_be_left IS NOT NULL))
);
SELECT tenant_lock('closing_record');
GRANT SELECT, INSERT ON closing_record TO mooring_tenant;

CREATE FUNCTION closing_record_is_true() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  IF NEW.kind = 'nothing_started' THEN
    IF EXISTS (SELECT FROM task WHERE member_id = NEW.member_id AND (first_claimed_at IS NOT NULL OR status = 'queued')) THEN
      RAISE EXCEPTION 'a task of this member was claimed, or still waits'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'closing_record_nothing_was_started';
    END IF;
  ELSIF NEW.kind = 'write_off' THEN
    IF NOT EXISTS (SELECT FROM node WHERE id = NEW.node_id AND status = 'retired') THEN
      RAISE EXCEPTION 'only what stood on a retired node is written off'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'closing_record_node_is_retired';
    END IF;
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER closing_record_is_true AFTER INSERT OR UPDATE ON closing_record
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION closing_record_is_true();

-- Nothing starts after its closing record.
CREATE FUNCTION task_member_is_open() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  PERFORM FROM member WHERE id = NEW.member_id FOR SHARE;
  IF EXISTS (SELECT FROM closing_record WHERE member_id = NEW.member_id) THEN
    RAISE EXCEPTION 'the member is closed' USING ERRCODE = 'check_violation', CONSTRAINT = 'task_member_is_open';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER task_member_is_open BEFORE INSERT ON task
  FOR EACH ROW WHEN (NEW.member_id IS NOT NULL) EXECUTE FUNCTION task_member_is_open();

CREATE FUNCTION closing_record_locks_member() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  PERFORM FROM member WHERE id = NEW.member_id FOR NO KEY UPDATE;
  RETURN NEW;
END $$;
CREATE TRIGGER closing_record_locks_member BEFORE INSERT ON closing_record
  FOR EACH ROW EXECUTE FUNCTION closing_record_locks_member();

CREATE FUNCTION member_removed_is_closed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM closing_record WHERE member_id = NEW.id) THEN
    RAISE EXCEPTION 'a member is not removed without its closing record'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'member_removed_needs_closing_record';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER member_removed_is_closed AFTER INSERT OR UPDATE ON member
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.status = 'removed') EXECUTE FUNCTION member_removed_is_closed();

CREATE FUNCTION instance_stopped_is_closed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  IF EXISTS (SELECT FROM member m WHERE m.instance_id = NEW.id
             AND NOT EXISTS (SELECT FROM closing_record c WHERE c.member_id = m.id)) THEN
    RAISE EXCEPTION 'an instance is not stopped without a closing record of each member'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'instance_stopped_needs_closing_records';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER instance_stopped_is_closed AFTER INSERT OR UPDATE ON instance
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.status = 'stopped') EXECUTE FUNCTION instance_stopped_is_closed();

-- A member cannot slip in while its instance is being stopped: both sides meet on the instance's row.
CREATE FUNCTION member_instance_is_open() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
DECLARE
  standing text;
BEGIN
  SELECT status INTO standing FROM instance WHERE id = NEW.instance_id FOR SHARE;
  IF standing IN ('stopping', 'stopped') THEN
    RAISE EXCEPTION 'the instance is %: no member is added', standing
      USING ERRCODE = 'check_violation', CONSTRAINT = 'member_instance_is_open';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER member_instance_is_open BEFORE INSERT ON member FOR EACH ROW EXECUTE FUNCTION member_instance_is_open();
