-- A command of a visit may have pipes instead of a terminal, a directory and an environment: those of the login place
-- that an app declares. What stands keeps its terminal.

ALTER TABLE visit
  ADD COLUMN terminal boolean NOT NULL DEFAULT true,
  ADD COLUMN directory text,
  ADD COLUMN environment jsonb;
