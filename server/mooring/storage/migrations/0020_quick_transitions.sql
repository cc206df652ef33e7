-- A transition is checked without a look at its whole row
--
-- That a generation grows by one with each transition was decided by a function that made JSON of the row before and after, whatever
-- documents stand in it. The condition of the trigger decides it from two numbers; the function is called for what is refused.

CREATE OR REPLACE FUNCTION generation_counts_transitions() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'the generation grows by one with each transition, and only then'
    USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME;
END $$;

CREATE FUNCTION lifecycle_count(relation regclass, name text, status_column text, generation_column text)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format(
    'CREATE OR REPLACE TRIGGER %1$I BEFORE UPDATE ON %2$s FOR EACH ROW
       WHEN ((OLD.%3$I IS DISTINCT FROM NEW.%3$I OR OLD.%4$I IS DISTINCT FROM NEW.%4$I)
             AND NEW.%4$I IS DISTINCT FROM OLD.%4$I + 1)
       EXECUTE FUNCTION generation_counts_transitions(%3$L, %4$L)',
    name, relation, status_column, generation_column);
END $$;
COMMENT ON FUNCTION lifecycle_count IS 'Refuses a transition whose generation does not grow by one, and growth without a transition.';

ALTER FUNCTION lifecycle_attach RENAME TO lifecycle_back;
COMMENT ON FUNCTION lifecycle_back IS 'The first part of lifecycle_attach; the trigger that it makes is replaced by the second.';
CREATE FUNCTION lifecycle_attach(relation regclass, machine text, status_column text, generation_column text)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM lifecycle_back(relation, machine, status_column, generation_column);
  PERFORM lifecycle_count(relation, relation::text || '_' || generation_column || '_counts', status_column, generation_column);
END $$;
COMMENT ON FUNCTION lifecycle_attach IS 'Binds a status column and its generation to a machine: no status without its transition.';

DO $$
DECLARE
  found record;
BEGIN
  FOR found IN
    SELECT t.tgrelid::regclass AS relation, t.tgname AS name,
           string_to_array(encode(t.tgargs, 'escape'), '\000') AS words
      FROM pg_trigger t WHERE t.tgfoid = 'generation_counts_transitions()'::regprocedure
  LOOP
    PERFORM lifecycle_count(found.relation, found.name, found.words[1], found.words[2]);
  END LOOP;
END $$;
