-- A tenant's source may have a credential for a private registry: a secret of one of the tenant's projects.

ALTER TABLE project_secret ADD CONSTRAINT project_secret_of_one_tenant UNIQUE (tenant_id, id);
ALTER TABLE artifact_source
  ADD COLUMN username text CONSTRAINT artifact_source_username_length CHECK (length(username) BETWEEN 1 AND 255),
  ADD COLUMN project_secret_id text COLLATE "C",
  ADD COLUMN token_host text CONSTRAINT artifact_source_token_host_length CHECK (length(token_host) BETWEEN 1 AND 259),
  ADD CONSTRAINT artifact_source_of_one_tenant UNIQUE (tenant_id, id),
  ADD CONSTRAINT artifact_source_credential_is_tenants CHECK (username IS NULL OR tenant_id IS NOT NULL),
  ADD CONSTRAINT artifact_source_credential_has_username
    CHECK (username IS NOT NULL OR num_nonnulls(project_secret_id, token_host) = 0),
  ADD CONSTRAINT artifact_source_secret_of_tenant FOREIGN KEY (tenant_id, project_secret_id)
    REFERENCES project_secret (tenant_id, id) ON DELETE SET NULL (project_secret_id);
CREATE INDEX artifact_source_by_secret ON artifact_source (project_secret_id) WHERE project_secret_id IS NOT NULL;

ALTER TABLE secret_grant ADD COLUMN source_id text COLLATE "C",
  ADD CONSTRAINT secret_grant_source_has_repository CHECK (source_id IS NULL OR repository IS NOT NULL),
  ADD CONSTRAINT secret_grant_source_of_tenant FOREIGN KEY (tenant_id, source_id)
    REFERENCES artifact_source (tenant_id, id) ON DELETE CASCADE;
CREATE INDEX secret_grant_by_source ON secret_grant (source_id) WHERE source_id IS NOT NULL;
