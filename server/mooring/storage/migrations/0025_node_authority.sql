-- The authority that signs the client certificates of nodes: its key is stored as the other keys of the platform are.

ALTER TABLE platform_key
  DROP CONSTRAINT platform_key_purpose_known,
  ADD CONSTRAINT platform_key_purpose_known
    CHECK (purpose IN ('task_signing', 'task_signing_prepared', 'registry_token', 'node_authority'));
