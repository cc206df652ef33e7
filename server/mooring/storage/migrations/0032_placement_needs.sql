-- What placement has to keep of a launch: the facts that the app needs of a node, and the node where its other slices are.

ALTER TABLE allocation
  ADD COLUMN needs jsonb NOT NULL DEFAULT '[]'
    CONSTRAINT allocation_needs_length CHECK (length(needs::text) <= 50000),
  ADD COLUMN wanted_node_id text COLLATE "C" CONSTRAINT allocation_wanted_node REFERENCES node (id);
COMMENT ON COLUMN allocation.needs IS 'Facts that its node must have, as in a manifest.';
COMMENT ON COLUMN allocation.wanted_node_id IS 'It is placed on that node or not at all.';
