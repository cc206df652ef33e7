-- Artifacts: where their bytes lie, what was observed about them, whose signatures count, and what still uses them.
--
-- What the platform owns here (no tenant) is read by every tenant and written by none. A digest that something holds
-- is not retired, and what is retired is not held: both sides wait for one lock of the digest, then look anew.

CREATE FUNCTION shared_lock(relation regclass) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format(
    'CREATE POLICY shared_lock ON %s FOR SELECT TO mooring_tenant
       USING (tenant_id IS NULL AND current_setting(''mooring.tenant'', true) <> '''')', relation);
END $$;
COMMENT ON FUNCTION shared_lock IS 'Beside the tenant_lock of a table: the rows of the platform are read by every tenant.';

ALTER TABLE artifact
  ADD COLUMN project_id text COLLATE "C",
  ADD COLUMN visibility text NOT NULL,
  ADD COLUMN kind text NOT NULL CONSTRAINT artifact_kind_known CHECK (kind IN ('oci', 'blob')),
  ADD COLUMN source_type text NOT NULL
    CONSTRAINT artifact_source_type_known CHECK (source_type IN ('oci', 'https', 's3', 'huggingface', 'file')),
  ADD COLUMN location text NOT NULL CONSTRAINT artifact_location_length CHECK (length(location) BETWEEN 1 AND 1000),
  ADD COLUMN digest text COLLATE "C" NOT NULL CONSTRAINT artifact_digest_form CHECK (digest ~ '^sha256:[0-9a-f]{64}$'),
  ADD COLUMN algorithm text NOT NULL CONSTRAINT artifact_algorithm_known CHECK (algorithm IN ('sha256')),
  ADD COLUMN size_bytes bigint NOT NULL CONSTRAINT artifact_size_counts CHECK (size_bytes >= 0),
  ADD COLUMN media_type text NOT NULL,
  ADD COLUMN labels jsonb NOT NULL DEFAULT '{}',
  ADD COLUMN superseded_by text COLLATE "C",   -- an artifact that its place sees; artifacts are never deleted
  ADD COLUMN deprecation_reason text,
  ADD CONSTRAINT artifact_project_of_tenant FOREIGN KEY (tenant_id, project_id) REFERENCES project (tenant_id, id),
  ADD CONSTRAINT artifact_of_one_tenant UNIQUE (tenant_id, id),
  ADD CONSTRAINT artifact_taken UNIQUE NULLS NOT DISTINCT (tenant_id, project_id, location, digest),
  ADD CONSTRAINT artifact_visibility_fits_owner CHECK (CASE visibility
    WHEN 'platform' THEN tenant_id IS NULL AND project_id IS NULL
    WHEN 'tenant' THEN tenant_id IS NOT NULL AND project_id IS NULL
    WHEN 'project' THEN tenant_id IS NOT NULL AND project_id IS NOT NULL
    ELSE false END);
CREATE INDEX artifact_by_digest ON artifact (digest, id);
CREATE INDEX artifact_by_place ON artifact (tenant_id, project_id, id);
SELECT shared_lock('artifact');

CREATE FUNCTION artifact_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'what an artifact is never changes' USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME;
END $$;
CREATE TRIGGER artifact_is_immutable BEFORE UPDATE ON artifact FOR EACH ROW
  WHEN ((OLD.kind, OLD.source_type, OLD.location, OLD.digest, OLD.algorithm, OLD.size_bytes, OLD.media_type)
        IS DISTINCT FROM
        (NEW.kind, NEW.source_type, NEW.location, NEW.digest, NEW.algorithm, NEW.size_bytes, NEW.media_type))
  EXECUTE FUNCTION artifact_is_immutable();

-- What was observed -----------------------------------------------------------------------------------------------------

CREATE TABLE artifact_evidence (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" REFERENCES tenant (id),
  artifact_id text COLLATE "C" NOT NULL REFERENCES artifact (id),
  kind text NOT NULL CONSTRAINT artifact_evidence_kind_known CHECK (kind IN ('presence', 'signature')),
  digest text COLLATE "C" NOT NULL,
  observed_at timestamptz NOT NULL,
  present boolean NOT NULL DEFAULT true,
  size_bytes bigint,
  repository text,
  key_fingerprint text COLLATE "C",
  fault text CONSTRAINT artifact_evidence_fault_known
    CHECK (fault IN ('unknown_key', 'other_digest', 'other_repository', 'no_repository', 'malformed')),
  found_in text,       -- the digest of what was looked at
  form text,           -- of a signature: tag or bundle
  payload bytea,       -- of a signature that was found to hold: what was signed, and the signature
  signature bytea,
  CONSTRAINT artifact_evidence_artifact_of_tenant FOREIGN KEY (tenant_id, artifact_id) REFERENCES artifact (tenant_id, id)
);
CREATE INDEX artifact_evidence_by_artifact ON artifact_evidence (artifact_id, id);
SELECT tenant_lock('artifact_evidence');
SELECT shared_lock('artifact_evidence');
GRANT SELECT, INSERT ON artifact_evidence TO mooring_tenant;

CREATE TABLE artifact_check (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" REFERENCES tenant (id),
  artifact_id text COLLATE "C" NOT NULL REFERENCES artifact (id),
  name text NOT NULL CONSTRAINT artifact_check_name_known CHECK (name IN ('smoke')),
  subject text COLLATE "C" NOT NULL,   -- the digest of what was checked
  passed boolean NOT NULL,
  detail text NOT NULL,
  findings jsonb NOT NULL DEFAULT '[]',
  created_at timestamptz NOT NULL,
  CONSTRAINT artifact_check_artifact_of_tenant FOREIGN KEY (tenant_id, artifact_id) REFERENCES artifact (tenant_id, id)
);
CREATE INDEX artifact_check_by_artifact ON artifact_check (artifact_id, id);
SELECT tenant_lock('artifact_check');
SELECT shared_lock('artifact_check');
GRANT SELECT, INSERT ON artifact_check TO mooring_tenant;

-- What is allowed and trusted --------------------------------------------------------------------------------------------

CREATE TABLE artifact_source (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" REFERENCES tenant (id),   -- none: the platform's, for everybody
  name text NOT NULL CONSTRAINT artifact_source_name_length CHECK (length(name) BETWEEN 1 AND 200),
  pattern text NOT NULL CONSTRAINT artifact_source_pattern_length CHECK (length(pattern) BETWEEN 1 AND 1000),
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  reaches_private boolean NOT NULL DEFAULT false,
  CONSTRAINT artifact_source_taken UNIQUE NULLS NOT DISTINCT (tenant_id, pattern),
  CONSTRAINT artifact_source_private_is_platforms CHECK (NOT reaches_private OR tenant_id IS NULL)
);
SELECT tenant_lock('artifact_source');
SELECT shared_lock('artifact_source');
GRANT SELECT, INSERT, DELETE ON artifact_source TO mooring_tenant;

CREATE TABLE signer_key (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" REFERENCES tenant (id),   -- none: the platform's, which counts everywhere
  name text NOT NULL CONSTRAINT signer_key_name_length CHECK (length(name) BETWEEN 1 AND 200),
  algorithm text NOT NULL CONSTRAINT signer_key_algorithm_known CHECK (algorithm IN ('ecdsa-p256', 'ed25519')),
  public_key text NOT NULL,
  fingerprint text COLLATE "C" NOT NULL,
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  removed_at timestamptz
);
CREATE UNIQUE INDEX signer_key_taken ON signer_key (tenant_id, fingerprint) NULLS NOT DISTINCT WHERE removed_at IS NULL;
SELECT tenant_lock('signer_key');
SELECT shared_lock('signer_key');
GRANT SELECT, INSERT, UPDATE ON signer_key TO mooring_tenant;

-- What uses a digest ---------------------------------------------------------------------------------------------------

CREATE TABLE artifact_hold (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C" NOT NULL,
  digest text COLLATE "C" NOT NULL,
  holder_noun text NOT NULL,
  holder_id text COLLATE "C" NOT NULL,
  version_id text COLLATE "C",   -- the version through which it is used, where there is one
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  CONSTRAINT artifact_hold_project_of_tenant FOREIGN KEY (tenant_id, project_id) REFERENCES project (tenant_id, id),
  CONSTRAINT artifact_hold_taken UNIQUE NULLS NOT DISTINCT (digest, holder_noun, holder_id, version_id)
);
CREATE INDEX artifact_hold_by_version ON artifact_hold (version_id, id) WHERE version_id IS NOT NULL;
CREATE INDEX artifact_hold_by_holder ON artifact_hold (holder_id, id);
SELECT tenant_lock('artifact_hold');
GRANT SELECT, INSERT, DELETE ON artifact_hold TO mooring_tenant;

-- A holder uses what it sees: the platform's artifact, its tenant's, or its project's.
CREATE FUNCTION artifact_hold_digest_is_there() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('digest ' || NEW.digest, 0));
  IF NOT EXISTS (
    SELECT FROM artifact a
     WHERE a.digest = NEW.digest AND a.promotion <> 'retired'
       AND (a.tenant_id IS NULL OR (a.tenant_id = NEW.tenant_id AND (a.project_id IS NULL OR a.project_id = NEW.project_id)))) THEN
    RAISE EXCEPTION 'no artifact of this digest is there to be used'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'artifact_hold_digest_is_there';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER artifact_hold_digest_is_there BEFORE INSERT OR UPDATE OF digest ON artifact_hold
  FOR EACH ROW EXECUTE FUNCTION artifact_hold_digest_is_there();

CREATE FUNCTION artifact_retired_is_free() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('digest ' || NEW.digest, 0));
  IF EXISTS (
    SELECT FROM artifact_hold h
     WHERE h.digest = NEW.digest
       AND (NEW.tenant_id IS NULL OR (h.tenant_id = NEW.tenant_id AND (NEW.project_id IS NULL OR h.project_id = NEW.project_id)))) THEN
    RAISE EXCEPTION 'something still uses this digest'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'artifact_retired_is_free';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER artifact_retired_is_free BEFORE UPDATE ON artifact
  FOR EACH ROW WHEN (NEW.promotion = 'retired' AND OLD.promotion <> 'retired') EXECUTE FUNCTION artifact_retired_is_free();

-- The key that signs tokens for the platform's registry; its public half is a certificate.
ALTER TABLE platform_key
  DROP CONSTRAINT platform_key_purpose_known,
  ADD CONSTRAINT platform_key_purpose_known CHECK (purpose IN ('task_signing', 'registry_token')),
  DROP CONSTRAINT platform_key_algorithm_known,
  ADD CONSTRAINT platform_key_algorithm_known CHECK (algorithm IN ('ed25519', 'es256'));
