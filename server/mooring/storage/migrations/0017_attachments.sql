-- Attachments: a project's use of an instance of another project of its tenant; and the key of a cluster.

-- Secrets of clusters -----------------------------------------------------------------------------------------------------

ALTER TABLE runtime_secret DROP CONSTRAINT runtime_secret_purpose_known,
  ADD CONSTRAINT runtime_secret_purpose_known
    CHECK (purpose IN ('artifact_pull', 'app_access', 'member_secret', 'cluster_key'));
ALTER TABLE secret_grant DROP CONSTRAINT secret_grant_purpose_known,
  ADD CONSTRAINT secret_grant_purpose_known
    CHECK (purpose IN ('artifact_pull', 'app_access', 'member_secret', 'cluster_key'));

-- Attachments ---------------------------------------------------------------------------------------------------------------
-- Both projects are of one tenant: the attached one by the reference that every noun of a project has, the owning one
-- with its instance by the reference below.

ALTER TABLE attachment
  ADD COLUMN instance_id text COLLATE "C" NOT NULL,
  ADD COLUMN owning_project_id text COLLATE "C" NOT NULL,
  ADD COLUMN instance_name text COLLATE "C" NOT NULL,
  ADD COLUMN app_slug text COLLATE "C" NOT NULL,
  ADD COLUMN account_name text COLLATE "C" NOT NULL
    CONSTRAINT attachment_account_name_form CHECK (account_name ~ '^[a-z][a-z0-9-]{0,30}$'),
  ADD COLUMN operation_id text COLLATE "C" NOT NULL,     -- the last one that attaches or detaches it
  ADD COLUMN cancel_work boolean NOT NULL DEFAULT false,
  ADD COLUMN timeout_seconds integer CONSTRAINT attachment_timeout_counts CHECK (timeout_seconds >= 0),
  ADD COLUMN attempts integer NOT NULL DEFAULT 0,
  ADD COLUMN blocker text CONSTRAINT attachment_blocker_length CHECK (length(blocker) <= 1000),
  ADD COLUMN retry_at timestamptz,
  ADD COLUMN activated_at timestamptz,
  ADD COLUMN detach_requested_at timestamptz,
  ADD COLUMN requested_by text COLLATE "C" NOT NULL,
  ADD COLUMN correlation_id text NOT NULL,
  ADD COLUMN trace_id text NOT NULL,
  ADD CONSTRAINT attachment_reason_length CHECK (length(refusal_reason) <= 1000),
  ADD CONSTRAINT attachment_of_another CHECK (project_id <> owning_project_id),
  ADD CONSTRAINT attachment_instance_of_tenant FOREIGN KEY (tenant_id, owning_project_id, instance_id)
    REFERENCES instance (tenant_id, project_id, id),
  ADD CONSTRAINT attachment_operation_of_owner FOREIGN KEY (tenant_id, owning_project_id, operation_id)
    REFERENCES operation (tenant_id, project_id, id) DEFERRABLE INITIALLY DEFERRED;
SELECT lifecycle_requires('attachment', 'status', '{active}', 'activated_at');
CREATE UNIQUE INDEX attachment_one_of_project ON attachment (instance_id, project_id)
  WHERE status IN ('requested', 'active', 'detaching');
CREATE UNIQUE INDEX attachment_account_taken ON attachment (instance_id, account_name)
  WHERE status IN ('requested', 'active', 'detaching');
CREATE INDEX attachment_by_instance ON attachment (instance_id, id);
CREATE INDEX attachment_under_way ON attachment (instance_id) WHERE status IN ('requested', 'detaching');
CREATE INDEX attachment_retried ON attachment (retry_at) WHERE status = 'detaching';
CREATE INDEX attachment_by_operation ON attachment (operation_id);

-- A project attaches to what runs and is the tenant's; both sides meet on the instance's row.
CREATE FUNCTION attachment_instance_is_shared() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  PERFORM FROM instance WHERE id = NEW.instance_id AND status = 'running' AND control_plane_scope = 'tenant' FOR SHARE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'the instance is not there to be shared'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'attachment_instance_is_shared';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER attachment_instance_is_shared BEFORE INSERT ON attachment
  FOR EACH ROW EXECUTE FUNCTION attachment_instance_is_shared();

CREATE FUNCTION instance_stopped_is_detached() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  IF EXISTS (SELECT FROM attachment t WHERE t.instance_id = NEW.id AND t.status IN ('requested', 'active', 'detaching')) THEN
    RAISE EXCEPTION 'an instance is not stopped while a project is attached to it'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'instance_stopped_is_detached';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER instance_stopped_is_detached AFTER UPDATE ON instance
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.status = 'stopped') EXECUTE FUNCTION instance_stopped_is_detached();

ALTER TABLE operation DROP CONSTRAINT operation_kind_known,
  ADD CONSTRAINT operation_kind_known CHECK (kind IN (
    'deploy', 'add', 'drain', 'remove', 'replace', 'upgrade', 'rollback', 'reconcile', 'repair', 'restart', 'action',
    'attach', 'detach', 'decommission'));
CREATE UNIQUE INDEX operation_one_of_attachment ON operation ((request #>> '{attachment,id}'))
  WHERE kind IN ('attach', 'detach') AND status NOT IN ('succeeded', 'failed', 'cancelled');
CREATE INDEX operation_by_attachment ON operation ((request #>> '{attachment,id}'), id)
  WHERE request ? 'attachment';

-- Usage of attached projects ------------------------------------------------------------------------------------------------

ALTER TABLE usage_record ADD COLUMN covered_by_allocation boolean NOT NULL DEFAULT false;
CREATE INDEX usage_record_by_attached ON usage_record (attached_project_id, instance_id, id)
  WHERE attached_project_id IS NOT NULL;

CREATE FUNCTION usage_record_is_attached() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM attachment t WHERE t.instance_id = NEW.instance_id AND t.project_id = NEW.attached_project_id
                 AND t.activated_at IS NOT NULL) THEN
    RAISE EXCEPTION 'the project was never attached to the instance'
      USING ERRCODE = 'foreign_key_violation', CONSTRAINT = 'usage_record_is_attached';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER usage_record_is_attached BEFORE INSERT ON usage_record FOR EACH ROW
  WHEN (NEW.attached_project_id IS NOT NULL AND NEW.attached_project_id <> NEW.project_id)
  EXECUTE FUNCTION usage_record_is_attached();
