-- A staged version that nothing uses may get other required actions; the rest of its manifest stays as it was checked.

CREATE OR REPLACE FUNCTION app_version_is_immutable() RETURNS trigger
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  IF OLD.promotion = 'staged' AND NEW.promotion = 'staged'
     AND NEW.manifest - 'required_actions' = OLD.manifest - 'required_actions'
     AND (NEW.digests, NEW.app_id, NEW.app_slug, NEW.version, NEW.version_order)
         IS NOT DISTINCT FROM (OLD.digests, OLD.app_id, OLD.app_slug, OLD.version, OLD.version_order)
     AND NEW.staged_digest = NEW.manifest_digest THEN
    PERFORM pg_advisory_xact_lock(hashtextextended('version ' || NEW.id, 0));
    IF NOT EXISTS (SELECT FROM artifact_hold WHERE version_id = NEW.id) THEN
      RETURN NEW;
    END IF;
  END IF;
  RAISE EXCEPTION 'a version changes only while it is a draft, and never its number'
    USING ERRCODE = 'check_violation', CONSTRAINT = 'app_version_is_immutable';
END $$;
