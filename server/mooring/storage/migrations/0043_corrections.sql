-- Corrections by hand: a person credits or charges a project, names the transaction that is corrected, and says why.
--
-- They are corrections as those of the worker are: of the same project, price and hour, numbered in the same series. Each
-- has one rated line of the source `correction`: the log does not explain it, the reason does.

ALTER TABLE ledger_transaction
  ADD COLUMN correction_reason text COLLATE "C"
    CONSTRAINT ledger_transaction_correction_reason_length CHECK (length(correction_reason) BETWEEN 10 AND 1000),
  ADD COLUMN corrected_by text COLLATE "C",
  ADD CONSTRAINT ledger_transaction_by_hand_is_explained CHECK (
    (correction_reason IS NULL) = (corrected_by IS NULL) AND (correction_reason IS NULL OR kind = 'correction'));

ALTER TABLE rated_usage DROP CONSTRAINT rated_usage_source_known,
  ADD CONSTRAINT rated_usage_source_known CHECK (source IN ('allocation', 'usage', 'correction'));

-- A tenant proves its own part of the ledger: which hours are charged is not secret.
GRANT SELECT ON billing_hour TO mooring_tenant;
