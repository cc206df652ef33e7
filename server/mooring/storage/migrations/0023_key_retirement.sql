-- A successor retires the key before it: the private half of a retired key is deleted, so that nothing can sign with it
-- again. A key that the operator's offline root key vouches for has its signature and a number that only grows, its epoch.

ALTER TABLE platform_key
  ALTER COLUMN secret_id DROP NOT NULL,
  ADD COLUMN epoch bigint,
  ADD COLUMN root_signature bytea,
  DROP CONSTRAINT platform_key_purpose_known,
  ADD CONSTRAINT platform_key_purpose_known CHECK (purpose IN ('task_signing', 'task_signing_prepared', 'registry_token')),
  ADD CONSTRAINT platform_key_root_signs_an_epoch CHECK (root_signature IS NULL OR epoch IS NOT NULL);

UPDATE platform_key SET secret_id = NULL WHERE purpose = 'task_signing' AND retired_at IS NOT NULL;
DELETE FROM secret s WHERE s.purpose = 'task_signing' AND s.tenant_id IS NULL
   AND NOT EXISTS (SELECT FROM platform_key k WHERE k.secret_id = s.id);

ALTER TABLE platform_key ADD CONSTRAINT platform_key_retired_cannot_sign
  CHECK (purpose <> 'task_signing' OR (retired_at IS NULL) = (secret_id IS NOT NULL));

CREATE FUNCTION platform_key_drops_private_half() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM secret WHERE id = OLD.secret_id;
  RETURN NULL;
END $$;
CREATE TRIGGER platform_key_is_retired AFTER UPDATE ON platform_key FOR EACH ROW
  WHEN (OLD.secret_id IS NOT NULL AND NEW.secret_id IS NULL) EXECUTE FUNCTION platform_key_drops_private_half();
CREATE TRIGGER platform_key_is_dropped AFTER DELETE ON platform_key FOR EACH ROW
  WHEN (OLD.secret_id IS NOT NULL) EXECUTE FUNCTION platform_key_drops_private_half();
