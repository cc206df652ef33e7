-- Apps, versions, policy and entitlements.
--
-- What the platform owns has no tenant, and every tenant reads it; nobody but the platform writes it. A version is never
-- further than its artifacts, in both directions: whoever moves a version and whoever moves an artifact meet on the
-- artifacts' rows, and the one who comes second looks again.

-- Apps ----------------------------------------------------------------------------------------------------------------

CREATE TABLE app (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" REFERENCES tenant (id),
  slug text COLLATE "C" NOT NULL CONSTRAINT app_slug_form CHECK (slug ~ '^[a-z][a-z0-9-]{1,38}[a-z0-9]$'),
  display_name text NOT NULL CONSTRAINT app_display_name_length CHECK (length(display_name) BETWEEN 1 AND 200),
  category text COLLATE "C" NOT NULL CONSTRAINT app_category_form CHECK (category ~ '^[a-z][a-z0-9_]{1,39}$'),
  description text NOT NULL CONSTRAINT app_description_length CHECK (length(description) <= 4000),
  icon text NOT NULL CONSTRAINT app_icon_length CHECK (length(icon) <= 2048),
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  CONSTRAINT app_slug_taken UNIQUE NULLS NOT DISTINCT (tenant_id, slug),
  CONSTRAINT app_of_one_tenant UNIQUE (tenant_id, id)
);
CREATE INDEX app_by_tenant ON app (tenant_id, id);
CREATE INDEX app_by_category ON app (category, id);
SELECT tenant_lock('app');
SELECT shared_lock('app');
GRANT SELECT, INSERT, UPDATE ON app TO mooring_tenant;

-- A slug begins action keys (`app.<slug>.…`): within one tenant's sight it means one app. So the platform's slugs are no
-- tenant's and the other way round; tenants do not see each other. The lock makes two who come at once take turns.
CREATE FUNCTION app_slug_means_one() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('app slug ' || NEW.slug, 0));
  IF EXISTS (SELECT FROM app WHERE slug = NEW.slug AND id <> NEW.id AND (tenant_id IS NULL) <> (NEW.tenant_id IS NULL)) THEN
    RAISE EXCEPTION 'an app with this slug exists' USING ERRCODE = 'unique_violation', CONSTRAINT = 'app_slug_means_one';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER app_slug_means_one AFTER INSERT OR UPDATE OF slug, tenant_id ON app
  FOR EACH ROW EXECUTE FUNCTION app_slug_means_one();

-- The words of an app's card, for search by their beginnings. Text comparisons are the only ones that may use an index
-- under row-level security; a full-text index would stay unused there.
CREATE TABLE app_word (
  app_id text COLLATE "C" NOT NULL CONSTRAINT app_word_app_id_fkey REFERENCES app (id) ON DELETE CASCADE,
  tenant_id text COLLATE "C",
  word text COLLATE "C" NOT NULL,
  CONSTRAINT app_word_pkey PRIMARY KEY (app_id, word),
  CONSTRAINT app_word_of_tenant FOREIGN KEY (tenant_id, app_id) REFERENCES app (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX app_word_by_word ON app_word (word, app_id);
SELECT tenant_lock('app_word');
SELECT shared_lock('app_word');
GRANT SELECT ON app_word TO mooring_tenant;

CREATE FUNCTION app_words() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
DECLARE
  card text := lower(concat_ws(' ', NEW.slug, NEW.category, NEW.display_name, NEW.description));
BEGIN
  DELETE FROM app_word WHERE app_id = NEW.id;
  INSERT INTO app_word (app_id, tenant_id, word)
    SELECT DISTINCT NEW.id, NEW.tenant_id, left(word, 100)
      FROM (SELECT regexp_split_to_table(card, '\s+') UNION SELECT regexp_split_to_table(card, '[^[:alnum:]]+')) w(word)
     WHERE word <> '';
  RETURN NULL;
END $$;
CREATE TRIGGER app_words AFTER INSERT OR UPDATE OF slug, category, display_name, description ON app
  FOR EACH ROW EXECUTE FUNCTION app_words();

-- Versions ------------------------------------------------------------------------------------------------------------

ALTER TABLE app_version
  ADD COLUMN app_id text COLLATE "C" NOT NULL,
  ADD COLUMN app_slug text COLLATE "C" NOT NULL,
  ADD COLUMN version text COLLATE "C" NOT NULL,
  ADD COLUMN version_order text COLLATE "C" NOT NULL,
  ADD COLUMN manifest jsonb NOT NULL,
  ADD COLUMN manifest_digest text COLLATE "C" NOT NULL,
  ADD COLUMN digests text[] NOT NULL,
  ADD COLUMN staged_digest text COLLATE "C",
  ADD COLUMN canary_percentage numeric(5, 2)
    CONSTRAINT app_version_percentage_is_one CHECK (canary_percentage > 0 AND canary_percentage <= 100),
  ADD COLUMN superseded_by text COLLATE "C",
  ADD COLUMN deprecation_reason text,
  ADD CONSTRAINT app_version_number_taken UNIQUE (app_id, version_order),
  ADD CONSTRAINT app_version_of_one_tenant UNIQUE (tenant_id, id),
  ADD CONSTRAINT app_version_app_id_fkey FOREIGN KEY (app_id) REFERENCES app (id),
  ADD CONSTRAINT app_version_app_of_tenant FOREIGN KEY (tenant_id, app_id) REFERENCES app (tenant_id, id),
  ADD CONSTRAINT app_version_superseded_by_fkey FOREIGN KEY (superseded_by) REFERENCES app_version (id),
  ADD CONSTRAINT app_version_successor_of_tenant FOREIGN KEY (tenant_id, superseded_by) REFERENCES app_version (tenant_id, id),
  ADD CONSTRAINT app_version_staged_is_stated
    CHECK (promotion NOT IN ('staged', 'canary', 'active', 'deprecated') OR staged_digest IS NOT NULL),
  ADD CONSTRAINT app_version_staged_is_the_manifest CHECK (staged_digest = manifest_digest),
  ADD CONSTRAINT app_version_canary_has_percentage CHECK ((promotion = 'canary') = (canary_percentage IS NOT NULL));
CREATE INDEX app_version_offered ON app_version (app_id, version_order)
  WHERE promotion IN ('canary', 'active', 'deprecated');
CREATE INDEX app_version_by_app ON app_version (app_id, id);
CREATE INDEX app_version_by_successor ON app_version (superseded_by) WHERE superseded_by IS NOT NULL;
SELECT shared_lock('app_version');

CREATE FUNCTION app_version_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'a version changes only while it is a draft, and never its number'
    USING ERRCODE = 'check_violation', CONSTRAINT = 'app_version_is_immutable';
END $$;
CREATE TRIGGER app_version_is_immutable BEFORE UPDATE ON app_version FOR EACH ROW
  WHEN (((OLD.promotion <> 'draft' OR NEW.promotion <> 'draft')
         AND (NEW.manifest, NEW.manifest_digest, NEW.digests)
             IS DISTINCT FROM (OLD.manifest, OLD.manifest_digest, OLD.digests))
        OR (OLD.staged_digest IS NOT NULL AND NEW.staged_digest IS DISTINCT FROM OLD.staged_digest)
        OR (NEW.app_id, NEW.app_slug, NEW.version, NEW.version_order)
           IS DISTINCT FROM (OLD.app_id, OLD.app_slug, OLD.version, OLD.version_order))
  EXECUTE FUNCTION app_version_is_immutable();

CREATE TABLE app_version_artifact (   -- which digests a version needs: kept by the database, out of app_version.digests
  version_id text COLLATE "C" NOT NULL CONSTRAINT app_version_artifact_version_id_fkey REFERENCES app_version (id),
  tenant_id text COLLATE "C",
  digest text COLLATE "C" NOT NULL,
  CONSTRAINT app_version_artifact_pkey PRIMARY KEY (version_id, digest),
  CONSTRAINT app_version_artifact_of_tenant FOREIGN KEY (tenant_id, version_id) REFERENCES app_version (tenant_id, id)
);
CREATE INDEX app_version_artifact_by_digest ON app_version_artifact (digest, version_id);
SELECT tenant_lock('app_version_artifact');
SELECT shared_lock('app_version_artifact');
GRANT SELECT ON app_version_artifact TO mooring_tenant;

CREATE FUNCTION app_version_artifacts() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  DELETE FROM app_version_artifact WHERE version_id = NEW.id;
  INSERT INTO app_version_artifact (version_id, tenant_id, digest)
    SELECT DISTINCT NEW.id, NEW.tenant_id, digest FROM unnest(NEW.digests) digest;
  RETURN NULL;
END $$;
CREATE TRIGGER app_version_artifacts AFTER INSERT OR UPDATE OF digests ON app_version
  FOR EACH ROW EXECUTE FUNCTION app_version_artifacts();

CREATE TABLE app_version_check (   -- what was checked before staging, and how it went
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C",
  version_id text COLLATE "C" NOT NULL CONSTRAINT app_version_check_version_id_fkey REFERENCES app_version (id),
  name text NOT NULL CONSTRAINT app_version_check_name_known CHECK (name IN ('lint', 'smoke')),
  subject text COLLATE "C" NOT NULL,
  passed boolean NOT NULL,
  detail text NOT NULL,
  created_at timestamptz NOT NULL,
  CONSTRAINT app_version_check_of_tenant FOREIGN KEY (tenant_id, version_id) REFERENCES app_version (tenant_id, id)
);
CREATE INDEX app_version_check_by_version ON app_version_check (version_id, id);
SELECT tenant_lock('app_version_check');
GRANT SELECT, INSERT ON app_version_check TO mooring_tenant;

-- Never ahead ---------------------------------------------------------------------------------------------------------

CREATE TABLE promotion_need (   -- NEEDS of core/artifact_promotion.py: the states of an artifact that each state of a version bears
  version_state text NOT NULL,
  artifact_state text NOT NULL,
  CONSTRAINT promotion_need_pkey PRIMARY KEY (version_state, artifact_state)
);
INSERT INTO promotion_need VALUES
  ('staged', 'staged'), ('staged', 'canary'), ('staged', 'active'),
  ('canary', 'canary'), ('canary', 'active'),
  ('active', 'active'),
  ('deprecated', 'active'), ('deprecated', 'deprecated');
GRANT SELECT ON promotion_need TO mooring_tenant;

-- A digest may be registered by several: for a version count those that everybody who sees it may use.
CREATE FUNCTION app_version_not_ahead() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
DECLARE
  behind text;
BEGIN
  PERFORM FROM artifact a WHERE a.digest = ANY (NEW.digests) ORDER BY a.id FOR SHARE;
  SELECT needed INTO behind FROM unnest(NEW.digests) needed WHERE NOT EXISTS (
    SELECT FROM artifact a JOIN promotion_need n ON n.version_state = NEW.promotion AND n.artifact_state = a.promotion
     WHERE a.digest = needed AND a.project_id IS NULL AND (a.tenant_id IS NULL OR a.tenant_id = NEW.tenant_id)
       AND (NEW.promotion = 'deprecated' OR a.trust <> 'revoked')
       AND (NEW.promotion <> 'active' OR a.trust = 'verified')) LIMIT 1;
  IF behind IS NOT NULL THEN
    RAISE EXCEPTION 'the artifact % is behind', behind
      USING ERRCODE = 'check_violation', CONSTRAINT = 'app_version_not_ahead';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER app_version_not_ahead AFTER INSERT OR UPDATE OF promotion ON app_version
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.promotion IN ('staged', 'canary', 'active', 'deprecated'))
  EXECUTE FUNCTION app_version_not_ahead();

CREATE FUNCTION artifact_not_behind() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
DECLARE
  ahead text;
BEGIN
  -- Others of this digest: two that leave at once must not each rely on the other.
  PERFORM FROM artifact a WHERE a.digest = NEW.digest ORDER BY a.id FOR SHARE;
  SELECT v.id INTO ahead FROM app_version_artifact l JOIN app_version v ON v.id = l.version_id
   WHERE l.digest = NEW.digest AND v.promotion IN ('staged', 'canary', 'active', 'deprecated')
     AND (NEW.tenant_id IS NULL OR NEW.tenant_id = v.tenant_id)
     AND NOT EXISTS (
       SELECT FROM artifact a JOIN promotion_need n ON n.version_state = v.promotion AND n.artifact_state = a.promotion
        WHERE a.digest = NEW.digest AND a.project_id IS NULL AND (a.tenant_id IS NULL OR a.tenant_id = v.tenant_id))
   LIMIT 1;
  IF ahead IS NOT NULL THEN
    RAISE EXCEPTION 'the version % would be ahead', ahead
      USING ERRCODE = 'check_violation', CONSTRAINT = 'artifact_not_behind';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER artifact_not_behind AFTER UPDATE OF promotion ON artifact
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (OLD.promotion IS DISTINCT FROM NEW.promotion)
  EXECUTE FUNCTION artifact_not_behind();

-- What is used through a version keeps it: a hold that names the version and a move that ends it wait for one lock.
CREATE FUNCTION artifact_hold_version_is_there() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('version ' || NEW.version_id, 0));
  IF NOT EXISTS (SELECT FROM app_version v WHERE v.id = NEW.version_id AND v.promotion NOT IN ('draft', 'retired')
                 AND NEW.digest = ANY (v.digests) AND (v.tenant_id IS NULL OR v.tenant_id = NEW.tenant_id)) THEN
    RAISE EXCEPTION 'no such version is there to be used'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'artifact_hold_version_is_there';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER artifact_hold_version_is_there BEFORE INSERT OR UPDATE ON artifact_hold
  FOR EACH ROW WHEN (NEW.version_id IS NOT NULL) EXECUTE FUNCTION artifact_hold_version_is_there();

CREATE FUNCTION app_version_retired_is_free() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('version ' || NEW.id, 0));
  IF EXISTS (SELECT FROM artifact_hold WHERE version_id = NEW.id) THEN
    RAISE EXCEPTION 'something still uses this version'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'app_version_retired_is_free';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER app_version_retired_is_free BEFORE UPDATE ON app_version FOR EACH ROW
  WHEN (NEW.promotion = 'retired' AND OLD.promotion <> 'retired') EXECUTE FUNCTION app_version_retired_is_free();

-- Policy and entitlements ---------------------------------------------------------------------------------------------

CREATE TABLE policy (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" REFERENCES tenant (id),
  project_id text COLLATE "C",
  rules jsonb NOT NULL,
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL,
  CONSTRAINT policy_one_per_place UNIQUE NULLS NOT DISTINCT (tenant_id, project_id),
  CONSTRAINT policy_project_has_tenant CHECK (project_id IS NULL OR tenant_id IS NOT NULL),
  CONSTRAINT policy_project_of_tenant FOREIGN KEY (tenant_id, project_id) REFERENCES project (tenant_id, id)
);
CREATE INDEX policy_by_project ON policy (project_id) WHERE project_id IS NOT NULL;
SELECT tenant_lock('policy');
SELECT shared_lock('policy');
GRANT SELECT, INSERT, UPDATE ON policy TO mooring_tenant;

CREATE TABLE entitlement (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C" NOT NULL,
  app_id text COLLATE "C" NOT NULL CONSTRAINT entitlement_app_id_fkey REFERENCES app (id),
  app_slug text COLLATE "C" NOT NULL,
  enabled boolean NOT NULL,
  versions text,
  rules jsonb NOT NULL,
  agreed_actions text[] NOT NULL,
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL,
  CONSTRAINT entitlement_taken UNIQUE (project_id, app_id),
  CONSTRAINT entitlement_project_of_tenant FOREIGN KEY (tenant_id, project_id) REFERENCES project (tenant_id, id)
);
CREATE INDEX entitlement_by_app ON entitlement (app_id, id);
CREATE INDEX entitlement_by_project ON entitlement (project_id, id);
SELECT tenant_lock('entitlement');
GRANT SELECT, INSERT, UPDATE, DELETE ON entitlement TO mooring_tenant;

-- An app is the platform's or a tenant's for ever, so looking once is enough.
CREATE FUNCTION entitlement_app_is_in_sight() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM app WHERE id = NEW.app_id AND (tenant_id IS NULL OR tenant_id = NEW.tenant_id)) THEN
    RAISE EXCEPTION 'the tenant sees no such app'
      USING ERRCODE = 'foreign_key_violation', CONSTRAINT = 'entitlement_app_is_in_sight';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER entitlement_app_is_in_sight AFTER INSERT OR UPDATE OF app_id, tenant_id ON entitlement
  FOR EACH ROW EXECUTE FUNCTION entitlement_app_is_in_sight();

CREATE FUNCTION app_stays_with_its_owner() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'an app does not change hands'
    USING ERRCODE = 'check_violation', CONSTRAINT = 'app_stays_with_its_owner';
END $$;
CREATE TRIGGER app_stays_with_its_owner AFTER UPDATE ON app FOR EACH ROW
  WHEN (OLD.tenant_id IS DISTINCT FROM NEW.tenant_id OR OLD.slug <> NEW.slug OR OLD.category <> NEW.category)
  EXECUTE FUNCTION app_stays_with_its_owner();
