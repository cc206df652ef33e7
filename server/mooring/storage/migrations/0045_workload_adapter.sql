-- The platform's own adapter for images and programs. Its public key is set once; operator accounts of apps without a key
-- of their own get it when a tenant's admin agrees. The row is the platform's: no tenant reads it directly.

CREATE TABLE workload_adapter (
  id text COLLATE "C" PRIMARY KEY,
  is_current boolean NOT NULL DEFAULT true
    CONSTRAINT workload_adapter_is_current CHECK (is_current) CONSTRAINT workload_adapter_only_one UNIQUE,
  public_key bytea CONSTRAINT workload_adapter_key_length CHECK (length(public_key) = 32),
  keys_before bytea[] NOT NULL DEFAULT '{}',
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL
);
