-- Audit rows are only ever added, and each is chained to the one before it.
--
-- The chain is built after the commit, by a worker, in the order (epoch, tx, seq) and behind the oldest open transaction;
-- a chain inside the mutation would make every writer wait for the one before it. Hashes and signatures are in a table of
-- their own, so that an audit row is written once and never again.

ALTER TABLE audit
  ADD COLUMN count integer NOT NULL DEFAULT 1 CONSTRAINT audit_count_is_positive CHECK (count > 0);
COMMENT ON COLUMN audit.count IS 'How many equal refusals the row stands for; 1 for everything else.';

-- Rows from before the timeline have no place in the stream: they come first, in the order of their ids.
UPDATE audit a SET epoch = 0, tx = 0, seq = o.number
  FROM (SELECT id, row_number() OVER (ORDER BY id) AS number FROM audit WHERE seq IS NULL) o
 WHERE a.id = o.id;
ALTER TABLE audit
  ALTER COLUMN epoch SET NOT NULL,
  ALTER COLUMN tx SET NOT NULL,
  ALTER COLUMN seq SET NOT NULL;
CREATE UNIQUE INDEX audit_by_place ON audit (epoch, tx, seq);

CREATE TABLE audit_link (
  epoch integer NOT NULL,
  tx bigint NOT NULL,
  seq bigint NOT NULL,
  tenant_id text COLLATE "C",
  chain text COLLATE "C" NOT NULL GENERATED ALWAYS AS (coalesce(tenant_id, 'platform')) STORED,
  position bigint NOT NULL CONSTRAINT audit_link_position_counts CHECK (position > 0),
  link bytea NOT NULL CONSTRAINT audit_link_is_sha256 CHECK (length(link) = 32),
  key_id text COLLATE "C",
  signature bytea,   -- of the last link of each batch
  CONSTRAINT audit_link_pkey PRIMARY KEY (epoch, tx, seq),
  CONSTRAINT audit_link_follows UNIQUE (chain, position),
  CONSTRAINT audit_link_names_its_key CHECK ((key_id IS NULL) = (signature IS NULL))
);
COMMENT ON TABLE audit_link IS 'The hash chain of the audit rows of each tenant, and of the platform.';
SELECT tenant_lock('audit_link');
GRANT SELECT ON audit_link TO mooring_tenant;

CREATE TABLE audit_checkpoint (
  tenant_id text COLLATE "C",
  chain text COLLATE "C" NOT NULL GENERATED ALWAYS AS (coalesce(tenant_id, 'platform')) STORED,
  position bigint NOT NULL,
  epoch integer NOT NULL,
  tx bigint NOT NULL,
  seq bigint NOT NULL,
  link bytea NOT NULL,
  key_id text COLLATE "C" NOT NULL,
  signature bytea NOT NULL,
  made_at timestamptz NOT NULL,
  CONSTRAINT audit_checkpoint_pkey PRIMARY KEY (chain, position)
);
COMMENT ON TABLE audit_checkpoint IS 'Up to where retention deleted a chain: the last link that it deleted, with its signature.';
SELECT tenant_lock('audit_checkpoint');
GRANT SELECT ON audit_checkpoint TO mooring_tenant;

-- A tenant's session names no place and no count of its own.
REVOKE INSERT ON audit FROM mooring_tenant;
GRANT INSERT (id, occurred_at, outcome, action, noun, subject_id, tenant_id, project_id, actor_kind, actor_id, token_id,
  break_glass_id, correlation_id, trace_id, before, after, reason, route, remote_address, app_instance_id)
  ON audit TO mooring_tenant;

-- Triggers stop the owner of the tables too; rights taken from an owner by name would keep a dump from being restored
-- by another one. A row goes only when a checkpoint vouches for it.
CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' AND TG_TABLE_NAME <> 'audit_checkpoint' THEN
    IF EXISTS (SELECT FROM audit_checkpoint c
                WHERE c.chain = coalesce(OLD.tenant_id, 'platform')
                  AND (c.epoch, c.tx, c.seq) >= (OLD.epoch, OLD.tx, OLD.seq)) THEN
      RETURN OLD;
    END IF;
  END IF;
  RAISE EXCEPTION 'rows of % are only added; audit_retire() deletes the oldest ones and leaves a checkpoint', TG_TABLE_NAME
    USING ERRCODE = 'insufficient_privilege', CONSTRAINT = 'audit_is_append_only';
END $$;

DO $$
DECLARE relation text;
BEGIN
  FOREACH relation IN ARRAY ARRAY['audit', 'audit_link', 'audit_checkpoint'] LOOP
    EXECUTE format('CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON %I FOR EACH ROW
                      EXECUTE FUNCTION audit_is_append_only()', relation);
    EXECUTE format('CREATE TRIGGER append_only_as_a_whole BEFORE TRUNCATE ON %I FOR EACH STATEMENT
                      EXECUTE FUNCTION audit_is_append_only()', relation);
    -- Also in sessions that switch ordinary triggers off.
    EXECUTE format('ALTER TABLE %1$I ENABLE ALWAYS TRIGGER append_only, ENABLE ALWAYS TRIGGER append_only_as_a_whole',
                   relation);
  END LOOP;
END $$;

CREATE FUNCTION audit_retire(older_than timestamptz, most integer, as_of timestamptz, OUT deleted bigint, OUT examined bigint)
LANGUAGE plpgsql AS $$
DECLARE
  going record;
BEGIN
  deleted := 0;
  FOR going IN
    WITH oldest AS MATERIALIZED (
      SELECT l.*, coalesce(a.occurred_at >= older_than, true) AS stays   -- a link without its row stays: it is evidence
        FROM (SELECT * FROM audit_link ORDER BY epoch, tx, seq LIMIT most) l
        LEFT JOIN audit a ON (a.epoch, a.tx, a.seq) = (l.epoch, l.tx, l.seq)),
    first_kept AS (SELECT epoch, tx, seq FROM oldest WHERE stays ORDER BY epoch, tx, seq LIMIT 1)
    INSERT INTO audit_checkpoint (tenant_id, position, epoch, tx, seq, link, key_id, signature, made_at)
    SELECT DISTINCT ON (o.chain) o.tenant_id, o.position, o.epoch, o.tx, o.seq, o.link, o.key_id, o.signature, as_of
      FROM oldest o LEFT JOIN first_kept k ON true
     WHERE o.signature IS NOT NULL AND (k.epoch IS NULL OR (o.epoch, o.tx, o.seq) < (k.epoch, k.tx, k.seq))
     ORDER BY o.chain, o.position DESC
    RETURNING audit_checkpoint.chain, audit_checkpoint.position
  LOOP
    DELETE FROM audit a USING audit_link l
     WHERE l.chain = going.chain AND l.position <= going.position
       AND (a.epoch, a.tx, a.seq) = (l.epoch, l.tx, l.seq);
    DELETE FROM audit_link l WHERE l.chain = going.chain AND l.position <= going.position;
    GET DIAGNOSTICS examined = ROW_COUNT;
    deleted := deleted + examined;
  END LOOP;
  examined := CASE WHEN deleted > 0 THEN most ELSE 0 END;
END $$;
COMMENT ON FUNCTION audit_retire IS 'The only way to delete audit rows: the oldest ones, up to a signed link of their chain, which stays as a checkpoint.';
