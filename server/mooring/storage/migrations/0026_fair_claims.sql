-- Claims that are fair between the allocations and tenants of one node.
--
-- A claim walks over the allocations of a node that have something queued, and counts what its agent holds of each. The
-- lanes: 0 ends an owner and never waits for room, 1 runs beside an owner's other tasks, 2 runs in the owner's order.

CREATE FUNCTION task_lane(type text) RETURNS smallint LANGUAGE sql IMMUTABLE PARALLEL SAFE
  RETURN CASE WHEN type IN ('sandbox.destroy', 'teardown.verify') THEN 0
              WHEN type IN ('tunnel.open', 'log.read') THEN 1 ELSE 2 END;

CREATE INDEX task_waiting ON task (node_id, allocation_id, task_lane(type), id) WHERE status = 'queued';
CREATE INDEX task_held ON task (node_id, allocation_id, task_lane(type)) WHERE status IN ('claimed', 'cancelling');
DROP INDEX task_queued;   -- `task_waiting` begins with the node too
CREATE INDEX task_open_command ON task (project_id, allocation_id)   -- interactive commands that are open or about to be
  WHERE type = 'tunnel.open' AND status IN ('queued', 'claimed', 'cancelling') AND arguments ? 'argv';
