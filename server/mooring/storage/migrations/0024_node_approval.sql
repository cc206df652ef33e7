-- A machine may have to be accepted before it gets work, and what it reports is compared with what was planned for it
-- (expects) and with what it had before (baseline).

ALTER TABLE enrolment_token
  ADD COLUMN approval text NOT NULL DEFAULT 'automatic'
    CONSTRAINT enrolment_token_approval_known CHECK (approval IN ('automatic', 'required')),
  ADD COLUMN expects jsonb;

ALTER TABLE node
  ADD COLUMN approval text NOT NULL DEFAULT 'automatic'
    CONSTRAINT node_approval_known CHECK (approval IN ('automatic', 'required')),
  ADD COLUMN expects jsonb,
  ADD COLUMN baseline jsonb,
  ADD COLUMN attested_at timestamptz;   -- when the attestation command last saw its inventory
SELECT lifecycle_requires('node', 'status', '{pending,ready,draining,drained}', 'inventory');
CREATE INDEX node_to_attest ON node (id) WHERE status = 'pending' AND attested_at IS NULL;

-- How many tasks of a project are open, without those that begin and end its allocations: those are never refused.
CREATE INDEX task_open_of_project ON task (project_id)
  WHERE status IN ('queued', 'claimed', 'cancelling') AND type NOT IN ('sandbox.create', 'sandbox.destroy', 'teardown.verify');
