-- An operator cordons a node: it takes no new allocations, and what is on it goes on.

ALTER TABLE node ADD COLUMN cordoned_at timestamptz,
  ADD COLUMN cordon_reason text,
  ADD CONSTRAINT node_cordon_is_stated CHECK ((cordoned_at IS NULL) = (cordon_reason IS NULL)),
  ADD CONSTRAINT node_cordon_reason_length CHECK (length(cordon_reason) <= 1000);

CREATE OR REPLACE FUNCTION node_takes_work(wanted text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  -- Drain, cordon, retire and claim meet on the node's row: whichever comes second sees what the first did.
  PERFORM FROM node WHERE id = wanted AND status = 'ready' AND cordoned_at IS NULL AND NOT sweep_due FOR SHARE;
  RETURN FOUND;
END $$;
