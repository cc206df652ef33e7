-- Terminals that a process of the platform holds: a reload of a page resumes them, and their user lists and ends them.

ALTER TABLE visit
  ADD COLUMN instance_id text COLLATE "C",
  ADD COLUMN held_until timestamptz,  -- NULL: a command that is not a terminal which can be resumed
  ADD COLUMN ended_at timestamptz;
CREATE INDEX visit_held_by_principal ON visit (project_id, principal_id, id)
  WHERE held_until IS NOT NULL AND ended_at IS NULL;
