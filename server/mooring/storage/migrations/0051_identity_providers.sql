-- Sign-in by OpenID Connect: the providers that an admin set up, whom they know, and the challenges of running sign-ins.

CREATE TABLE identity_provider (
  id text COLLATE "C" CONSTRAINT identity_provider_pkey PRIMARY KEY,
  tenant_id text COLLATE "C" CONSTRAINT identity_provider_tenant REFERENCES tenant (id),  -- null: for users of the platform
  name text NOT NULL CONSTRAINT identity_provider_name_length CHECK (length(name) BETWEEN 1 AND 100),
  issuer text NOT NULL CONSTRAINT identity_provider_issuer_length CHECK (length(issuer) BETWEEN 1 AND 500),
  client_id text NOT NULL CONSTRAINT identity_provider_client_id_length CHECK (length(client_id) BETWEEN 1 AND 200),
  secret_id text COLLATE "C" CONSTRAINT identity_provider_secret REFERENCES secret (id),  -- null: a public client
  scopes text[] NOT NULL,
  email_domains text[] NOT NULL,
  groups_claim text NOT NULL,
  group_roles jsonb NOT NULL,
  create_users boolean NOT NULL,
  link_by_email boolean NOT NULL,
  vouches_for_email boolean NOT NULL,
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  disabled_at timestamptz,
  CONSTRAINT identity_provider_issuer_taken UNIQUE NULLS NOT DISTINCT (tenant_id, issuer),
  CONSTRAINT identity_provider_of_one_tenant UNIQUE (tenant_id, id),
  CONSTRAINT identity_provider_secret_of_tenant FOREIGN KEY (tenant_id, secret_id) REFERENCES secret (tenant_id, id)
);
CREATE INDEX identity_provider_by_secret ON identity_provider (secret_id) WHERE secret_id IS NOT NULL;
SELECT tenant_lock('identity_provider');
GRANT SELECT, INSERT, UPDATE, DELETE ON identity_provider TO mooring_tenant;
CREATE TRIGGER identity_provider_drops_secret AFTER DELETE ON identity_provider
  FOR EACH ROW EXECUTE FUNCTION project_secret_drops_value();
CREATE TRIGGER identity_provider_drops_replaced_secret AFTER UPDATE OF secret_id ON identity_provider
  FOR EACH ROW WHEN (OLD.secret_id IS DISTINCT FROM NEW.secret_id) EXECUTE FUNCTION project_secret_drops_value();

CREATE TABLE user_identity (
  id text COLLATE "C" CONSTRAINT user_identity_pkey PRIMARY KEY,
  tenant_id text COLLATE "C",
  user_id text COLLATE "C" NOT NULL CONSTRAINT user_identity_user REFERENCES "user" (id),
  identity_provider_id text COLLATE "C" NOT NULL
    CONSTRAINT user_identity_provider REFERENCES identity_provider (id) ON DELETE CASCADE,
  subject text COLLATE "C" NOT NULL CONSTRAINT user_identity_subject_length CHECK (length(subject) BETWEEN 1 AND 255),
  created_at timestamptz NOT NULL,
  CONSTRAINT user_identity_taken UNIQUE (identity_provider_id, subject),
  CONSTRAINT user_identity_user_of_tenant FOREIGN KEY (tenant_id, user_id) REFERENCES "user" (tenant_id, id),
  CONSTRAINT user_identity_provider_of_tenant FOREIGN KEY (tenant_id, identity_provider_id)
    REFERENCES identity_provider (tenant_id, id) ON DELETE CASCADE
);
COMMENT ON TABLE user_identity IS 'Which user a provider means by a subject: the only way in which its users are found.';
CREATE INDEX user_identity_by_user ON user_identity (user_id);
SELECT tenant_lock('user_identity');
GRANT SELECT, INSERT, DELETE ON user_identity TO mooring_tenant;

ALTER TABLE membership
  ADD COLUMN identity_provider_id text COLLATE "C"
    CONSTRAINT membership_identity_provider REFERENCES identity_provider (id) ON DELETE SET NULL,
  ADD CONSTRAINT membership_identity_provider_of_tenant FOREIGN KEY (tenant_id, identity_provider_id)
    REFERENCES identity_provider (tenant_id, id) ON DELETE SET NULL (identity_provider_id);
COMMENT ON COLUMN membership.identity_provider_id IS 'The provider whose groups gave the role, and may take it away.';
CREATE INDEX membership_by_identity_provider ON membership (identity_provider_id)
  WHERE identity_provider_id IS NOT NULL;

CREATE TABLE sign_in_challenge (
  id text COLLATE "C" CONSTRAINT sign_in_challenge_pkey PRIMARY KEY,   -- SHA-256 of the challenge
  tenant_id text COLLATE "C",      -- of the user; null: nobody has signed in yet, or a user of the platform
  purpose text NOT NULL,
  user_id text COLLATE "C" CONSTRAINT sign_in_challenge_user REFERENCES "user" (id),
  revision bigint NOT NULL DEFAULT 0,
  expires_at timestamptz NOT NULL,
  CONSTRAINT sign_in_challenge_user_of_tenant FOREIGN KEY (tenant_id, user_id) REFERENCES "user" (tenant_id, id)
);
COMMENT ON TABLE sign_in_challenge IS 'What a sign-in that is under way must bring back, once and soon.';
CREATE INDEX sign_in_challenge_by_expiry ON sign_in_challenge (expires_at);
SELECT tenant_lock('sign_in_challenge');
GRANT SELECT, INSERT, DELETE ON sign_in_challenge TO mooring_tenant;
