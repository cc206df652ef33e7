-- Many launches of one version at the same moment do not wait for each other.
--
-- A hold and the move that retires what it holds wait for one lock. Holds took it alone, so that every launch of a version
-- waited for the commit of the one before; they share it now, and only who retires takes it alone.
CREATE OR REPLACE FUNCTION artifact_hold_digest_is_there() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(hashtextextended('digest ' || NEW.digest, 0));
  IF NOT EXISTS (
    SELECT FROM artifact a
     WHERE a.digest = NEW.digest AND a.promotion <> 'retired'
       AND (a.tenant_id IS NULL OR (a.tenant_id = NEW.tenant_id AND (a.project_id IS NULL OR a.project_id = NEW.project_id)))) THEN
    RAISE EXCEPTION 'no artifact of this digest is there to be used'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'artifact_hold_digest_is_there';
  END IF;
  RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION artifact_hold_version_is_there() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  PERFORM pg_advisory_xact_lock_shared(hashtextextended('version ' || NEW.version_id, 0));
  IF NOT EXISTS (SELECT FROM app_version v WHERE v.id = NEW.version_id AND v.promotion NOT IN ('draft', 'retired')
                 AND NEW.digest = ANY (v.digests) AND (v.tenant_id IS NULL OR v.tenant_id = NEW.tenant_id)) THEN
    RAISE EXCEPTION 'no such version is there to be used'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'artifact_hold_version_is_there';
  END IF;
  RETURN NEW;
END $$;

-- What looks for the open operations of an instance finds them by the instance: while few are open, an index of all open
-- ones by their deadline looks as good to the planner, and is read as a whole for each instance.
DROP INDEX operation_by_deadline;
CREATE INDEX operation_by_deadline ON operation (deadline_at) WHERE finished_at IS NULL;
