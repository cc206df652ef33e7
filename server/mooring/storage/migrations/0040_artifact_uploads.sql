-- Small blobs that tenants upload: the platform keeps their bytes, below the place that they belong to.

CREATE TABLE artifact_upload (
  id text COLLATE "C" CONSTRAINT artifact_upload_pkey PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL REFERENCES tenant (id),
  project_id text COLLATE "C",
  location text COLLATE "C" NOT NULL CONSTRAINT artifact_upload_taken UNIQUE,
  digest text COLLATE "C" NOT NULL,
  content bytea NOT NULL CONSTRAINT artifact_upload_is_small CHECK (length(content) BETWEEN 1 AND 131072),
  created_at timestamptz NOT NULL,
  CONSTRAINT artifact_upload_is_the_digest CHECK (digest = 'sha256:' || encode(sha256(content), 'hex')),
  CONSTRAINT artifact_upload_location_is_own CHECK (
    location = 'upload:' || tenant_id || coalesce('/' || project_id, '') || '/' || substr(digest, 8)),
  CONSTRAINT artifact_upload_project_of_tenant FOREIGN KEY (tenant_id, project_id) REFERENCES project (tenant_id, id)
);
CREATE INDEX artifact_upload_by_tenant ON artifact_upload (tenant_id, project_id);
SELECT tenant_lock('artifact_upload');
GRANT SELECT, INSERT ON artifact_upload TO mooring_tenant;

-- The limits of core/catalog/artifact_upload.py; those who upload at the same time wait for one lock of the tenant.
CREATE FUNCTION artifact_upload_fits() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
DECLARE
  used record;
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('uploads ' || NEW.tenant_id, 0));
  SELECT count(*) AS blobs, coalesce(sum(length(content)), 0) AS bytes,
         count(*) FILTER (WHERE project_id IS NOT DISTINCT FROM NEW.project_id) AS blobs_here,
         coalesce(sum(length(content)) FILTER (WHERE project_id IS NOT DISTINCT FROM NEW.project_id), 0) AS bytes_here
    INTO used FROM artifact_upload WHERE tenant_id = NEW.tenant_id;
  IF used.blobs >= 2000 OR used.bytes + length(NEW.content) > 67108864
     OR used.blobs_here >= 500 OR used.bytes_here + length(NEW.content) > 16777216 THEN
    RAISE EXCEPTION 'no room for another upload' USING ERRCODE = 'check_violation', CONSTRAINT = 'artifact_upload_fits';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER artifact_upload_fits BEFORE INSERT ON artifact_upload
  FOR EACH ROW EXECUTE FUNCTION artifact_upload_fits();

ALTER TABLE artifact DROP CONSTRAINT artifact_source_type_known,
  ADD CONSTRAINT artifact_source_type_known
    CHECK (source_type IN ('oci', 'https', 's3', 'huggingface', 'file', 'upload')) NOT VALID;
ALTER TABLE artifact VALIDATE CONSTRAINT artifact_source_type_known;
CREATE INDEX artifact_by_upload ON artifact (location) WHERE source_type = 'upload';
