-- Looks that an adapter takes in routine leave no event and no audit row. A hint wakes whoever hands them out, and at
-- their end the adapter and whoever waits for the task. They have a correlation id of their own; `cause_id` is that of
-- the launch.

ALTER TABLE task
  ADD COLUMN routine boolean NOT NULL DEFAULT false,
  ADD COLUMN cause_id text COLLATE "C";
COMMENT ON COLUMN task.routine IS 'A look of an adapter that is part of its routine: it leaves no event and no audit row.';
COMMENT ON COLUMN task.cause_id IS 'The correlation id of the launch, for tasks that belong to no operation.';
CREATE INDEX task_routine_over ON task (finished_at) WHERE routine;

CREATE FUNCTION task_routine_hints() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  PERFORM pg_notify('mooring_hint', NEW.id);
  IF TG_OP = 'UPDATE' THEN
    PERFORM pg_notify('mooring_hint', NEW.instance_id);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER task_routine_is_queued AFTER INSERT ON task
  FOR EACH ROW WHEN (NEW.routine) EXECUTE FUNCTION task_routine_hints();
CREATE TRIGGER task_routine_is_over AFTER UPDATE OF finished_at ON task
  FOR EACH ROW WHEN (NEW.routine AND OLD.finished_at IS NULL AND NEW.finished_at IS NOT NULL)
  EXECUTE FUNCTION task_routine_hints();
