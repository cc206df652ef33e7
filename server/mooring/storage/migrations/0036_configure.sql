-- An operation that changes the configuration of a running instance.

ALTER TABLE operation DROP CONSTRAINT operation_kind_known,
  ADD CONSTRAINT operation_kind_known CHECK (kind IN (
    'deploy', 'add', 'drain', 'remove', 'replace', 'upgrade', 'rollback', 'reconcile', 'repair', 'restart', 'configure',
    'action', 'attach', 'detach', 'decommission')) NOT VALID;
ALTER TABLE operation VALIDATE CONSTRAINT operation_kind_known;
DROP INDEX operation_one_of_the_whole;
CREATE UNIQUE INDEX operation_one_of_the_whole ON operation (instance_id)
  WHERE kind IN ('deploy', 'upgrade', 'rollback', 'reconcile', 'repair', 'restart', 'configure')
    AND status NOT IN ('succeeded', 'failed', 'cancelled');
