-- Passkeys of users: public keys, and no secret.

CREATE TABLE passkey (
  id text COLLATE "C" CONSTRAINT passkey_pkey PRIMARY KEY,
  tenant_id text COLLATE "C",
  user_id text COLLATE "C" NOT NULL CONSTRAINT passkey_user REFERENCES "user" (id),
  credential_id bytea NOT NULL CONSTRAINT passkey_credential_taken UNIQUE
    CONSTRAINT passkey_credential_length CHECK (length(credential_id) BETWEEN 16 AND 1023),
  public_key bytea NOT NULL CONSTRAINT passkey_public_key_length CHECK (length(public_key) <= 2000),
  sign_count bigint NOT NULL,
  name text NOT NULL CONSTRAINT passkey_name_length CHECK (length(name) BETWEEN 1 AND 100),
  transports text[] NOT NULL,
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  last_used_at timestamptz,
  CONSTRAINT passkey_user_of_tenant FOREIGN KEY (tenant_id, user_id) REFERENCES "user" (tenant_id, id)
);
CREATE INDEX passkey_by_user ON passkey (user_id, id);
SELECT tenant_lock('passkey');
GRANT SELECT, INSERT, UPDATE, DELETE ON passkey TO mooring_tenant;
