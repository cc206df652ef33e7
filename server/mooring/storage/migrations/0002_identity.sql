-- Tenants, projects, users, memberships, service accounts, tokens, break-glass.
--
-- Each reference between two things of a tenant carries the tenant, so that a reference across tenants cannot be
-- written down at all.

CREATE TABLE tenant (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL GENERATED ALWAYS AS (id) STORED,
  slug text NOT NULL CONSTRAINT tenant_slug_form CHECK (slug ~ '^[a-z][a-z0-9-]{1,38}[a-z0-9]$'),
  display_name text NOT NULL CONSTRAINT tenant_display_name_length CHECK (length(display_name) BETWEEN 1 AND 200),
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  CONSTRAINT tenant_slug_taken UNIQUE (slug)
);
SELECT tenant_lock('tenant');
GRANT SELECT, UPDATE ON tenant TO mooring_tenant;

CREATE TABLE project (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL REFERENCES tenant (id),
  slug text NOT NULL CONSTRAINT project_slug_form CHECK (slug ~ '^[a-z][a-z0-9-]{1,38}[a-z0-9]$'),
  display_name text NOT NULL CONSTRAINT project_display_name_length CHECK (length(display_name) BETWEEN 1 AND 200),
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  deleted_at timestamptz,
  CONSTRAINT project_of_one_tenant UNIQUE (tenant_id, id)
);
CREATE UNIQUE INDEX project_slug_taken ON project (tenant_id, slug) WHERE deleted_at IS NULL;
SELECT tenant_lock('project');
GRANT SELECT, INSERT, UPDATE ON project TO mooring_tenant;

CREATE TABLE "user" (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" REFERENCES tenant (id),  -- none: a user of the platform's
  email text NOT NULL CONSTRAINT user_email_form CHECK (email = lower(email) AND email ~ '^[^@\s]+@[^@\s]+$' AND length(email) <= 254),
  display_name text NOT NULL CONSTRAINT user_display_name_length CHECK (length(display_name) BETWEEN 1 AND 200),
  password_hash text,
  one_time_hash bytea,             -- SHA-256 of the one-time sign-in code
  one_time_expires_at timestamptz,
  disabled_at timestamptz,
  tokens_from timestamptz,         -- tokens made before count no more: the password was changed or taken away
  tokens_except text COLLATE "C",  -- but for the one by which the user changed it
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  CONSTRAINT user_email_taken UNIQUE NULLS NOT DISTINCT (tenant_id, email),
  CONSTRAINT user_of_one_tenant UNIQUE (tenant_id, id),
  CONSTRAINT user_one_time_expires CHECK ((one_time_hash IS NULL) = (one_time_expires_at IS NULL))
);
SELECT tenant_lock('"user"');
GRANT SELECT, INSERT, UPDATE ON "user" TO mooring_tenant;

CREATE TABLE membership (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C",
  project_id text COLLATE "C",
  user_id text COLLATE "C" NOT NULL REFERENCES "user" (id),
  role text NOT NULL,
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  CONSTRAINT membership_taken UNIQUE NULLS NOT DISTINCT (user_id, project_id, role),
  CONSTRAINT membership_user_of_tenant FOREIGN KEY (tenant_id, user_id) REFERENCES "user" (tenant_id, id),
  CONSTRAINT membership_project_of_tenant FOREIGN KEY (tenant_id, project_id) REFERENCES project (tenant_id, id),
  CONSTRAINT membership_role_fits_place CHECK (CASE
    WHEN project_id IS NOT NULL THEN tenant_id IS NOT NULL AND role IN ('project_admin', 'project_member', 'project_viewer')
    WHEN tenant_id IS NOT NULL THEN role IN ('tenant_admin')
    ELSE role IN ('platform_admin', 'platform_operator') END)
);
CREATE INDEX membership_by_tenant ON membership (tenant_id, id);
CREATE INDEX membership_by_project ON membership (project_id, id) WHERE project_id IS NOT NULL;
SELECT tenant_lock('membership');
GRANT SELECT, INSERT, DELETE ON membership TO mooring_tenant;

-- A user of one tenant, or of the platform, never holds a role elsewhere. The composite key does not see a NULL.
CREATE FUNCTION membership_stays_home() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  IF (SELECT tenant_id FROM "user" WHERE id = NEW.user_id) IS DISTINCT FROM NEW.tenant_id THEN
    RAISE EXCEPTION 'a user holds roles only at home' USING ERRCODE = 'check_violation', CONSTRAINT = 'membership_stays_home';
  END IF;
  RETURN NEW;
END $$;
CREATE CONSTRAINT TRIGGER membership_stays_home AFTER INSERT OR UPDATE ON membership
  FOR EACH ROW EXECUTE FUNCTION membership_stays_home();

-- No place loses its last admin who can sign in, whichever two go at once: both wait for one lock, then count anew.
CREATE FUNCTION membership_keeps_an_admin() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
DECLARE
  home text := OLD.tenant_id;
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('admins of ' || coalesce(home, 'platform'), 0));
  IF NOT EXISTS (
    SELECT FROM membership m JOIN "user" u ON u.id = m.user_id
     WHERE m.tenant_id IS NOT DISTINCT FROM home AND u.disabled_at IS NULL
       AND m.role = CASE WHEN home IS NULL THEN 'platform_admin' ELSE 'tenant_admin' END) THEN
    RAISE EXCEPTION 'nobody would be left to administer this place'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'membership_keeps_an_admin';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER membership_keeps_an_admin AFTER DELETE ON membership DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (OLD.role IN ('tenant_admin', 'platform_admin')) EXECUTE FUNCTION membership_keeps_an_admin();
CREATE CONSTRAINT TRIGGER user_keeps_an_admin AFTER UPDATE ON "user" DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (OLD.disabled_at IS NULL AND NEW.disabled_at IS NOT NULL) EXECUTE FUNCTION membership_keeps_an_admin();

CREATE TABLE service_account (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C" NOT NULL,
  name text NOT NULL CONSTRAINT service_account_name_form CHECK (name ~ '^[a-z][a-z0-9-]{1,38}[a-z0-9]$'),
  description text NOT NULL DEFAULT '' CONSTRAINT service_account_description_length CHECK (length(description) <= 500),
  actions text[] NOT NULL,
  status text NOT NULL,
  generation bigint NOT NULL DEFAULT 0,
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  disabled_at timestamptz,
  deleted_at timestamptz,
  CONSTRAINT service_account_of_one_tenant UNIQUE (tenant_id, id),
  CONSTRAINT service_account_project_of_tenant FOREIGN KEY (tenant_id, project_id) REFERENCES project (tenant_id, id)
);
CREATE UNIQUE INDEX service_account_name_taken ON service_account (project_id, name) WHERE status <> 'deleted';
CREATE INDEX service_account_by_project ON service_account (project_id, id);
SELECT lifecycle_attach('service_account', 'service_account', 'status', 'generation');
SELECT tenant_lock('service_account');
GRANT SELECT, INSERT, UPDATE ON service_account TO mooring_tenant;

CREATE TABLE service_account_key (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL,
  service_account_id text COLLATE "C" NOT NULL,
  algorithm text NOT NULL CONSTRAINT service_account_key_algorithm_known CHECK (algorithm IN ('ed25519')),
  public_key bytea NOT NULL CONSTRAINT service_account_key_length CHECK (length(public_key) = 32),
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  expires_at timestamptz,
  revoked_at timestamptz,
  CONSTRAINT service_account_key_taken UNIQUE (service_account_id, public_key),
  CONSTRAINT service_account_key_of_tenant FOREIGN KEY (tenant_id, service_account_id) REFERENCES service_account (tenant_id, id)
);
SELECT tenant_lock('service_account_key');
GRANT SELECT, INSERT, UPDATE ON service_account_key TO mooring_tenant;

CREATE TABLE break_glass (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL REFERENCES tenant (id),
  user_id text COLLATE "C" NOT NULL REFERENCES "user" (id),
  role text NOT NULL CONSTRAINT break_glass_role_known CHECK (role IN ('tenant_admin', 'project_viewer')),
  reason text NOT NULL CONSTRAINT break_glass_reason_stated CHECK (length(trim(reason)) BETWEEN 10 AND 1000),
  expires_at timestamptz NOT NULL,
  created_at timestamptz NOT NULL,
  CONSTRAINT break_glass_of_one_tenant UNIQUE (tenant_id, id)
);
CREATE INDEX break_glass_by_tenant ON break_glass (tenant_id, id);
SELECT tenant_lock('break_glass');
GRANT SELECT ON break_glass TO mooring_tenant;

CREATE TABLE token (
  id text COLLATE "C" PRIMARY KEY,
  hash bytea NOT NULL CONSTRAINT token_hash_taken UNIQUE,   -- SHA-256 of the token
  kind text NOT NULL CONSTRAINT token_kind_known CHECK (kind IN ('session', 'personal', 'service_account', 'break_glass')),
  name text NOT NULL DEFAULT '' CONSTRAINT token_name_length CHECK (length(name) <= 100),
  tenant_id text COLLATE "C",
  user_id text COLLATE "C" REFERENCES "user" (id),
  service_account_id text COLLATE "C",
  key_id text COLLATE "C" REFERENCES service_account_key (id),
  break_glass_id text COLLATE "C",
  actions text[],                   -- a narrower list than its holder's; none: all that the holder has
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  revoked_at timestamptz,
  last_used_at timestamptz,
  CONSTRAINT token_has_one_holder CHECK (num_nonnulls(user_id, service_account_id) = 1),
  CONSTRAINT token_account_of_tenant FOREIGN KEY (tenant_id, service_account_id) REFERENCES service_account (tenant_id, id),
  CONSTRAINT token_break_glass_of_tenant FOREIGN KEY (tenant_id, break_glass_id) REFERENCES break_glass (tenant_id, id),
  CONSTRAINT token_service_account_has_tenant CHECK (service_account_id IS NULL OR tenant_id IS NOT NULL),
  CONSTRAINT token_break_glass_has_entry CHECK ((kind = 'break_glass') = (break_glass_id IS NOT NULL))
);
CREATE INDEX token_by_user ON token (user_id, id) WHERE user_id IS NOT NULL;
CREATE INDEX token_by_service_account ON token (service_account_id, id) WHERE service_account_id IS NOT NULL;
CREATE INDEX token_by_expiry ON token (expires_at);
CREATE INDEX token_by_revocation ON token (revoked_at) WHERE revoked_at IS NOT NULL;
SELECT tenant_lock('token');
GRANT SELECT, INSERT, UPDATE ON token TO mooring_tenant;

CREATE TABLE assertion (
  key_id text COLLATE "C" NOT NULL REFERENCES service_account_key (id),
  jti text COLLATE "C" NOT NULL,
  expires_at timestamptz NOT NULL,
  CONSTRAINT assertion_used_before PRIMARY KEY (key_id, jti)
);
COMMENT ON TABLE assertion IS 'The assertions that were exchanged, so that none is exchanged twice.';
CREATE INDEX assertion_by_expiry ON assertion (expires_at);
