-- Why the artifacts that an instance runs are not trusted any more, and what the policy does about it.
--
-- It is the last conclusion of a worker; every use of the instance asks again. The first index finds the few that are
-- not trusted, the second what the worker has started for them.

ALTER TABLE instance ADD COLUMN distrust jsonb;
COMMENT ON COLUMN instance.distrust IS 'Untrusted artifacts with their reasons, the reaction and since when; null if trusted.';
CREATE INDEX instance_distrusted ON instance (id) WHERE distrust IS NOT NULL AND status <> 'stopped';
CREATE INDEX operation_of_distrust ON operation (instance_id, id)
  WHERE request ? 'untrusted' AND status NOT IN ('succeeded', 'failed', 'cancelled');
CREATE INDEX member_held_by_trust ON member (instance_id, id)
  WHERE holds @> '[{"owner": "trust"}]' AND status IN ('draining', 'drained');
