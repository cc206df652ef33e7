-- What the workers look for among many nodes and allocations is rare: nodes that are not heard of, or drain, and
-- allocations that are held up. With these, a look costs what it finds, and not what there is.

CREATE INDEX node_unreachable ON node (id) WHERE unreachable_since IS NOT NULL;
CREATE INDEX node_draining ON node (id) WHERE status = 'draining';
CREATE INDEX allocation_blocked ON allocation (id) WHERE blocker IS NOT NULL AND status <> 'released';
