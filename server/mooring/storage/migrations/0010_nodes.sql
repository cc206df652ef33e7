-- Nodes: how a machine joins, what it has, whether it is there, and what its capacity costs.
--
-- All of it is the platform's. No tenant's session reads a node, a slot or an enrolment token; what a tenant may know of
-- the machine under its allocation stands in the allocation. SKUs are read by everybody, as a price list is.

ALTER TABLE node
  ADD COLUMN name text NOT NULL CONSTRAINT node_name_form CHECK (name ~ '^[a-z][a-z0-9-]{1,38}[a-z0-9]$'),
  ADD COLUMN host text NOT NULL CONSTRAINT node_host_known CHECK (host IN ('namespace', 'process', 'simulated')),
  ADD COLUMN region text NOT NULL CONSTRAINT node_region_form CHECK (region ~ '^[a-z][a-z0-9-]{1,38}[a-z0-9]$'),
  ADD COLUMN labels jsonb NOT NULL DEFAULT '{}',
  ADD COLUMN signing_key bytea NOT NULL CONSTRAINT node_signing_key_length CHECK (length(signing_key) = 32),
  ADD COLUMN sealing_key bytea NOT NULL CONSTRAINT node_sealing_key_length CHECK (length(sealing_key) = 32),
  ADD COLUMN inventory jsonb,
  ADD COLUMN inventory_at timestamptz,      -- when the inventory last changed
  ADD COLUMN findings jsonb NOT NULL DEFAULT '[]',
  ADD COLUMN health jsonb,                  -- what its agent said of itself, flushed with last_seen_at
  ADD COLUMN last_seen_at timestamptz,      -- by the database's clock; written in batches, takes no revision
  ADD COLUMN unreachable_since timestamptz,
  ADD COLUMN sweep_due boolean NOT NULL DEFAULT false,
  ADD COLUMN previous_node_id text COLLATE "C" REFERENCES node (id),
  ADD COLUMN written_off_at timestamptz,
  ADD COLUMN may_be_left text,
  ADD CONSTRAINT node_write_off_is_stated CHECK ((written_off_at IS NULL) = (may_be_left IS NULL)),
  ADD CONSTRAINT node_written_off_is_retired CHECK (written_off_at IS NULL OR status = 'retired');
SELECT lifecycle_requires('node', 'status', '{ready,draining,drained}', 'inventory');
ALTER TABLE node SET (fillfactor = 70);     -- so that last_seen_at is written in place
CREATE UNIQUE INDEX node_name_taken ON node (name) WHERE status <> 'retired';
CREATE UNIQUE INDEX node_signing_key_taken ON node (signing_key) WHERE status <> 'retired';
CREATE INDEX node_by_retired_key ON node (signing_key) WHERE status = 'retired';

-- Joining -----------------------------------------------------------------------------------------------------------

CREATE TABLE enrolment_token (
  id text COLLATE "C" PRIMARY KEY,
  hash bytea NOT NULL CONSTRAINT enrolment_token_hash_taken UNIQUE,   -- SHA-256 of the token
  region text NOT NULL CONSTRAINT enrolment_token_region_form CHECK (region ~ '^[a-z][a-z0-9-]{1,38}[a-z0-9]$'),
  labels jsonb NOT NULL DEFAULT '{}',
  created_by text COLLATE "C" NOT NULL,
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  used_at timestamptz,
  node_id text COLLATE "C" CONSTRAINT enrolment_token_node REFERENCES node (id),
  revoked_at timestamptz,
  CONSTRAINT enrolment_token_used_by_one CHECK ((used_at IS NULL) = (node_id IS NULL))
);
CREATE INDEX enrolment_token_by_expiry ON enrolment_token (expires_at);

ALTER TABLE token
  ADD COLUMN node_id text COLLATE "C" REFERENCES node (id),
  DROP CONSTRAINT token_kind_known,
  ADD CONSTRAINT token_kind_known CHECK (kind IN ('session', 'personal', 'service_account', 'break_glass', 'node')),
  DROP CONSTRAINT token_has_one_holder,
  ADD CONSTRAINT token_has_one_holder CHECK (num_nonnulls(user_id, service_account_id, node_id) = 1),
  ADD CONSTRAINT token_of_node_is_platforms CHECK ((kind = 'node') = (node_id IS NOT NULL) AND (node_id IS NULL OR tenant_id IS NULL));
CREATE INDEX token_by_node ON token (node_id, id) WHERE node_id IS NOT NULL;

CREATE TABLE node_assertion (
  node_id text COLLATE "C" NOT NULL REFERENCES node (id),
  jti text COLLATE "C" NOT NULL,
  expires_at timestamptz NOT NULL,
  CONSTRAINT node_assertion_used_before PRIMARY KEY (node_id, jti)
);
COMMENT ON TABLE node_assertion IS 'The assertions of nodes that were exchanged, so that none is exchanged twice.';
CREATE INDEX node_assertion_by_expiry ON node_assertion (expires_at);

-- The next key that signs tasks is signed by the one before: so a node that pinned one believes its successors.
ALTER TABLE platform_key
  ADD COLUMN signed_by text COLLATE "C" REFERENCES platform_key (id),
  ADD COLUMN signature bytea,
  ADD COLUMN revision bigint NOT NULL DEFAULT 0,
  ADD CONSTRAINT platform_key_is_announced CHECK ((signed_by IS NULL) = (signature IS NULL));

-- Slots -------------------------------------------------------------------------------------------------------------

CREATE TABLE slot (
  id text COLLATE "C" PRIMARY KEY,
  node_id text COLLATE "C" NOT NULL REFERENCES node (id),
  index integer NOT NULL CONSTRAINT slot_index_counts CHECK (index >= 0),
  numa integer NOT NULL CONSTRAINT slot_numa_counts CHECK (numa >= 0),
  gpu_model text NOT NULL CONSTRAINT slot_gpu_model_length CHECK (length(gpu_model) BETWEEN 1 AND 100),
  memory_bytes bigint NOT NULL CONSTRAINT slot_memory_counts CHECK (memory_bytes >= 0),
  simulated boolean NOT NULL,
  status text NOT NULL DEFAULT 'free'
    CONSTRAINT slot_status_known CHECK (status IN ('free', 'claimed', 'cleanup_blocked', 'quarantined')),
  allocation_id text COLLATE "C" REFERENCES allocation (id),
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  CONSTRAINT slot_one_at_index UNIQUE (node_id, index),
  CONSTRAINT slot_claim_is_somebodys CHECK (CASE status
    WHEN 'free' THEN allocation_id IS NULL WHEN 'quarantined' THEN true ELSE allocation_id IS NOT NULL END)
);
CREATE INDEX slot_by_allocation ON slot (allocation_id) WHERE allocation_id IS NOT NULL;
CREATE INDEX slot_free ON slot (gpu_model, node_id) WHERE status = 'free';

CREATE FUNCTION node_takes_work(wanted text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  -- Drain, retire and claim meet on the node's row: whichever comes second sees what the first did.
  PERFORM FROM node WHERE id = wanted AND status = 'ready' AND NOT sweep_due FOR SHARE;
  RETURN FOUND;
END $$;
COMMENT ON FUNCTION node_takes_work IS 'Whether a node takes new allocations; it stays so until this transaction ends.';

CREATE FUNCTION slot_change_is_legal() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  IF OLD.status = 'quarantined' OR (NEW.status = 'claimed' AND OLD.status <> 'free')
     OR (NEW.status = 'cleanup_blocked' AND OLD.status <> 'claimed') THEN
    RAISE EXCEPTION 'a slot does not go from % to %', OLD.status, NEW.status
      USING ERRCODE = 'check_violation', CONSTRAINT = 'slot_change_is_legal';
  END IF;
  IF NEW.status = 'claimed' AND NOT node_takes_work(NEW.node_id) THEN
    RAISE EXCEPTION 'the node takes no new allocations'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'slot_node_takes_work';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER slot_change_is_legal BEFORE UPDATE ON slot FOR EACH ROW
  WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION slot_change_is_legal();

CREATE FUNCTION slot_claimed_stays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'a slot that is in use, or owes a look, is not removed'
    USING ERRCODE = 'check_violation', CONSTRAINT = 'slot_claimed_stays';
END $$;
CREATE TRIGGER slot_claimed_stays BEFORE DELETE ON slot FOR EACH ROW
  WHEN (OLD.status <> 'free') EXECUTE FUNCTION slot_claimed_stays();

-- Without a write-off a node is retired only when nothing of anybody's is on it, whatever was claimed meanwhile.
CREATE FUNCTION node_retired_is_empty() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  IF EXISTS (SELECT FROM slot WHERE node_id = NEW.id AND status <> 'quarantined')
     OR (NEW.written_off_at IS NULL
         AND EXISTS (SELECT FROM allocation WHERE node_id = NEW.id AND status NOT IN ('requested', 'released'))) THEN
    RAISE EXCEPTION 'the node still has allocations'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'node_retired_is_empty';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER node_retired_is_empty AFTER UPDATE ON node DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (OLD.status <> 'retired' AND NEW.status = 'retired') EXECUTE FUNCTION node_retired_is_empty();

CREATE INDEX allocation_by_node ON allocation (node_id, id) WHERE node_id IS NOT NULL;

-- Prices ------------------------------------------------------------------------------------------------------------

CREATE TABLE sku (
  id text COLLATE "C" PRIMARY KEY,
  slug text NOT NULL CONSTRAINT sku_slug_form CHECK (slug ~ '^[a-z][a-z0-9-]{1,38}[a-z0-9]$'),
  display_name text NOT NULL CONSTRAINT sku_display_name_length CHECK (length(display_name) BETWEEN 1 AND 200),
  shape text NOT NULL CONSTRAINT sku_shape_known CHECK (shape IN ('baremetal', 'gpu_slice')),
  gpu_model text NOT NULL CONSTRAINT sku_gpu_model_length CHECK (length(gpu_model) BETWEEN 1 AND 100),
  regions text[] NOT NULL CONSTRAINT sku_regions_named CHECK (cardinality(regions) BETWEEN 1 AND 100),
  allowed_gpu_counts integer[] NOT NULL
    CONSTRAINT sku_counts_named CHECK (cardinality(allowed_gpu_counts) BETWEEN 1 AND 64),
  price_minor_per_gpu_hour bigint NOT NULL CONSTRAINT sku_price_counts CHECK (price_minor_per_gpu_hour >= 0),
  currency text NOT NULL CONSTRAINT sku_currency_form CHECK (currency ~ '^[A-Z]{3}$'),
  price_revision integer NOT NULL DEFAULT 1,
  status text NOT NULL CONSTRAINT sku_status_known CHECK (status IN ('offered', 'withdrawn')),
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  CONSTRAINT sku_slug_taken UNIQUE (slug)
);

CREATE TABLE sku_price (
  id text COLLATE "C" PRIMARY KEY,
  sku_id text COLLATE "C" NOT NULL REFERENCES sku (id),
  price_revision integer NOT NULL CONSTRAINT sku_price_revision_counts CHECK (price_revision >= 1),
  price_minor_per_gpu_hour bigint NOT NULL CONSTRAINT sku_price_amount_counts CHECK (price_minor_per_gpu_hour >= 0),
  currency text NOT NULL CONSTRAINT sku_price_currency_form CHECK (currency ~ '^[A-Z]{3}$'),
  reason text NOT NULL,
  created_by text COLLATE "C" NOT NULL,
  created_at timestamptz NOT NULL,
  CONSTRAINT sku_price_one_per_revision UNIQUE (sku_id, price_revision)
);
CREATE FUNCTION sku_price_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'what something cost is never changed' USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME;
END $$;
CREATE TRIGGER sku_price_is_immutable BEFORE UPDATE OR DELETE ON sku_price
  FOR EACH ROW EXECUTE FUNCTION sku_price_is_immutable();

-- A SKU costs what the newest line of its history says.
CREATE FUNCTION sku_price_is_written_down() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM sku_price p WHERE p.sku_id = NEW.id AND p.price_revision = NEW.price_revision
                    AND (p.price_minor_per_gpu_hour, p.currency) = (NEW.price_minor_per_gpu_hour, NEW.currency)) THEN
    RAISE EXCEPTION 'a price is not charged before it stands in the history'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'sku_price_is_written_down';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER sku_price_is_written_down AFTER INSERT OR UPDATE ON sku DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION sku_price_is_written_down();
GRANT SELECT ON sku, sku_price TO mooring_tenant;
