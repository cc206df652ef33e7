-- Finds what a signer key signed, before somebody removes the key.

CREATE INDEX artifact_evidence_by_key ON artifact_evidence (key_fingerprint, artifact_id) WHERE kind = 'signature';
