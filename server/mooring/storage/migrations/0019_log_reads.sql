-- Reads of logs that people ask for: tasks that leave no event, so a hint wakes whoever hands them out, and that are
-- forgotten soon, since what they read may be confidential.

CREATE INDEX task_log_read_open ON task (node_id, owner)
  WHERE type = 'log.read' AND status IN ('queued', 'claimed', 'cancelling');
CREATE INDEX task_log_read_over ON task (finished_at) WHERE type = 'log.read';
CREATE INDEX task_program ON task (member_id, id)
  WHERE type IN ('service.start', 'container.launch', 'container.remove');   -- what of a member has a log

CREATE FUNCTION task_log_read_hints() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  PERFORM pg_notify('mooring_hint', NEW.id);
  RETURN NULL;
END $$;
CREATE TRIGGER task_log_read_hints AFTER INSERT ON task
  FOR EACH ROW WHEN (NEW.type = 'log.read' AND NEW.maker = 'system') EXECUTE FUNCTION task_log_read_hints();
