-- Secrets that people store in a project, and that a launch names.

CREATE TABLE project_secret (
  id text COLLATE "C" CONSTRAINT project_secret_pkey PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL CONSTRAINT project_secret_name_form CHECK (name ~ '^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$'),
  description text NOT NULL DEFAULT '' CONSTRAINT project_secret_description_length CHECK (length(description) <= 500),
  secret_id text COLLATE "C" NOT NULL,
  version integer NOT NULL CONSTRAINT project_secret_version_counts CHECK (version >= 1),
  created_by text COLLATE "C" NOT NULL,
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  rotated_at timestamptz,
  CONSTRAINT project_secret_of_one_project UNIQUE (tenant_id, project_id, id),
  CONSTRAINT project_secret_name_taken UNIQUE (project_id, name),
  CONSTRAINT project_secret_project_of_tenant FOREIGN KEY (tenant_id, project_id) REFERENCES project (tenant_id, id),
  CONSTRAINT project_secret_value_of_tenant FOREIGN KEY (tenant_id, secret_id) REFERENCES secret (tenant_id, id)
);
CREATE UNIQUE INDEX project_secret_by_value ON project_secret (secret_id);
SELECT tenant_lock('project_secret');
GRANT SELECT, INSERT, UPDATE, DELETE ON project_secret TO mooring_tenant;

-- A value goes with its secret, or when another replaces it: nothing is left that could still be opened.
CREATE FUNCTION project_secret_drops_value() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM secret WHERE id = OLD.secret_id;
  RETURN NULL;
END $$;
CREATE TRIGGER project_secret_drops_value AFTER DELETE ON project_secret
  FOR EACH ROW EXECUTE FUNCTION project_secret_drops_value();
CREATE TRIGGER project_secret_drops_replaced_value AFTER UPDATE OF secret_id ON project_secret
  FOR EACH ROW WHEN (OLD.secret_id <> NEW.secret_id) EXECUTE FUNCTION project_secret_drops_value();

-- A grant names a secret of the project too; when that is deleted, its grants go with it, and the audit trail has them.
ALTER TABLE secret_grant ADD COLUMN project_secret_id text COLLATE "C",
  ADD CONSTRAINT secret_grant_project_secret_of_project FOREIGN KEY (tenant_id, project_id, project_secret_id)
    REFERENCES project_secret (tenant_id, project_id, id) ON DELETE CASCADE,
  DROP CONSTRAINT secret_grant_is_of_one_kind,
  ADD CONSTRAINT secret_grant_is_of_one_kind CHECK (num_nonnulls(runtime_secret_id, repository, project_secret_id) = 1);
CREATE INDEX secret_grant_by_project_secret ON secret_grant (project_secret_id) WHERE project_secret_id IS NOT NULL;

ALTER TABLE instance ADD COLUMN secrets jsonb NOT NULL DEFAULT '{}';
COMMENT ON COLUMN instance.secrets IS 'The secrets of the project that the launch names: variable, name of the secret.';
CREATE INDEX instance_with_secrets ON instance (project_id)
  WHERE secrets <> '{}' AND status IN ('created', 'starting', 'running');
