-- Money: prices, meters, and a ledger to which rows are only added.
--
-- What an hour costs is derived from the lifecycle log and the stored usage; here stand the prices, what was rated, and
-- the double entries. Balances are sums: no row holds one, so no row is hot, and none can be wrong.

CREATE FUNCTION is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'rows of % are only added', TG_TABLE_NAME USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME;
END $$;
CREATE FUNCTION append_only(relation regclass) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('CREATE TRIGGER %I BEFORE UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION is_append_only()',
                 relation::text || '_is_append_only', relation);
  EXECUTE format('CREATE TRIGGER %I BEFORE TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION is_append_only()',
                 relation::text || '_is_never_emptied', relation);
END $$;
COMMENT ON FUNCTION append_only IS 'Refuses every change of a row that is there.';

-- Prices -----------------------------------------------------------------------------------------------------------------

CREATE TABLE price (
  id text COLLATE "C" CONSTRAINT price_pkey PRIMARY KEY,
  tenant_id text COLLATE "C" CONSTRAINT price_tenant REFERENCES tenant (id),  -- NULL: the list; otherwise a contract
  item text NOT NULL CONSTRAINT price_item_known CHECK (item IN ('sku', 'unit')),
  item_key text COLLATE "C" NOT NULL CONSTRAINT price_item_key_length CHECK (length(item_key) BETWEEN 1 AND 128),
  currency text NOT NULL CONSTRAINT price_currency_form CHECK (currency ~ '^[A-Z]{3}$'),
  minor bigint NOT NULL CONSTRAINT price_minor_counts CHECK (minor BETWEEN 0 AND 1000000000000),
  per bigint NOT NULL CONSTRAINT price_per_counts CHECK (per BETWEEN 1 AND 1000000000000),
  granularity_seconds integer NOT NULL CONSTRAINT price_granularity_counts CHECK (granularity_seconds BETWEEN 1 AND 86400),
  minimum_seconds integer NOT NULL CONSTRAINT price_minimum_counts CHECK (minimum_seconds BETWEEN 0 AND 86400),
  included bigint NOT NULL CONSTRAINT price_included_counts CHECK (included BETWEEN 0 AND 1000000000000),
  tiers jsonb NOT NULL CONSTRAINT price_tiers_are_bounded CHECK (jsonb_array_length(tiers) <= 10),
  valid_from timestamptz NOT NULL,
  existing_from timestamptz,  -- from then on it is charged for running allocations too
  reason text NOT NULL,
  created_by text NOT NULL,
  created_at timestamptz NOT NULL,
  CONSTRAINT price_of_sku_is_plain CHECK (item = 'unit' OR (per = 3600 AND included = 0 AND tiers = '[]')),
  CONSTRAINT price_is_not_backdated CHECK (valid_from >= created_at AND existing_from >= valid_from)
);
-- Lines of a SKU's own history come one after the other; what people set has one price for each date.
CREATE UNIQUE INDEX price_taken ON price (coalesce(tenant_id, ''), item, item_key, valid_from) WHERE id LIKE 'prc\_%';
CREATE INDEX price_by_item ON price (item, item_key, valid_from);
SELECT append_only('price');
SELECT tenant_lock('price');
SELECT shared_lock('price');
GRANT SELECT ON price TO mooring_tenant;

-- The list's prices of SKUs are the lines of their history.
CREATE FUNCTION sku_price_is_listed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  INSERT INTO price (id, item, item_key, currency, minor, per, granularity_seconds, minimum_seconds, included, tiers,
                     valid_from, reason, created_by, created_at)
  VALUES (NEW.id, 'sku', NEW.sku_id, NEW.currency, NEW.price_minor_per_gpu_hour, 3600, 1, 0, 0, '[]',
          NEW.created_at, NEW.reason, NEW.created_by, NEW.created_at);
  RETURN NULL;
END $$;
CREATE TRIGGER sku_price_is_listed AFTER INSERT ON sku_price FOR EACH ROW EXECUTE FUNCTION sku_price_is_listed();
INSERT INTO price (id, item, item_key, currency, minor, per, granularity_seconds, minimum_seconds, included, tiers,
                   valid_from, reason, created_by, created_at)
SELECT id, 'sku', sku_id, currency, price_minor_per_gpu_hour, 3600, 1, 0, 0, '[]', created_at, reason, created_by, created_at
  FROM sku_price;

-- An allocation keeps the price that its plan showed: a contract's, otherwise the line of its SKU's history.
ALTER TABLE allocation ADD COLUMN price_id text COLLATE "C" CONSTRAINT allocation_price REFERENCES price (id);
UPDATE allocation a SET price_id = p.id FROM sku_price p
 WHERE p.sku_id = a.sku_id AND p.price_revision = a.price_revision;
CREATE FUNCTION allocation_has_a_price() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  IF TG_OP = 'UPDATE' THEN
    RAISE EXCEPTION 'an allocation keeps its price' USING ERRCODE = 'check_violation', CONSTRAINT = 'allocation_keeps_its_price';
  END IF;
  SELECT p.id INTO NEW.price_id FROM sku_price p WHERE p.sku_id = NEW.sku_id AND p.price_revision = NEW.price_revision;
  RETURN NEW;
END $$;
CREATE TRIGGER allocation_has_a_price BEFORE INSERT ON allocation FOR EACH ROW WHEN (NEW.price_id IS NULL)
  EXECUTE FUNCTION allocation_has_a_price();
CREATE TRIGGER allocation_keeps_its_price BEFORE UPDATE OF price_id, gpu_count ON allocation FOR EACH ROW
  WHEN (OLD.price_id IS DISTINCT FROM NEW.price_id OR OLD.gpu_count <> NEW.gpu_count) EXECUTE FUNCTION allocation_has_a_price();
CREATE INDEX allocation_by_clock ON allocation (releasing_at, activated_at) WHERE activated_at IS NOT NULL;

-- Meters and usage -------------------------------------------------------------------------------------------------------

CREATE TABLE meter (
  id text COLLATE "C" CONSTRAINT meter_pkey PRIMARY KEY,
  app_slug text COLLATE "C" NOT NULL,
  unit text COLLATE "C" NOT NULL CONSTRAINT meter_unit_form CHECK (unit ~ '^[a-z][a-z0-9_]{0,63}$'),
  billing text NOT NULL CONSTRAINT meter_billing_known CHECK (billing IN ('charged', 'covered', 'informative')),
  status text NOT NULL CONSTRAINT meter_status_known CHECK (status IN ('enabled', 'disabled')),
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  CONSTRAINT meter_taken UNIQUE (app_slug, unit)
);
GRANT SELECT ON meter TO mooring_tenant;

ALTER TABLE usage_record
  ADD COLUMN billing text NOT NULL DEFAULT 'informative'
    CONSTRAINT usage_record_billing_known CHECK (billing IN ('charged', 'covered', 'informative')),
  ADD COLUMN price_id text COLLATE "C" CONSTRAINT usage_record_price REFERENCES price (id),
  ADD COLUMN operating_mode text,
  ADD COLUMN control_plane_scope text,
  ADD COLUMN runtime_backend text,
  ADD CONSTRAINT usage_record_charged_has_a_price CHECK (billing <> 'charged' OR price_id IS NOT NULL);
UPDATE usage_record SET billing = 'covered' WHERE covered_by_allocation;
CREATE INDEX usage_record_by_receipt ON usage_record (created_at) WHERE billing <> 'informative';
SELECT append_only('usage_record');

-- The ledger -------------------------------------------------------------------------------------------------------------

CREATE TABLE billing_hour (
  hour timestamptz CONSTRAINT billing_hour_pkey PRIMARY KEY
    CONSTRAINT billing_hour_is_whole CHECK (hour = date_trunc('hour', hour, 'UTC')),
  closed_at timestamptz NOT NULL
);
COMMENT ON TABLE billing_hour IS 'The hours that were charged. Hours before the first one never are: charging began after it.';
SELECT append_only('billing_hour');
INSERT INTO billing_hour (hour, closed_at) VALUES (date_trunc('hour', now(), 'UTC') - interval '1 hour', now());

CREATE TABLE ledger_transaction (
  id text COLLATE "C" CONSTRAINT ledger_transaction_pkey PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C" NOT NULL,
  kind text NOT NULL CONSTRAINT ledger_transaction_kind_known CHECK (kind IN ('charge', 'correction')),
  hour timestamptz NOT NULL CONSTRAINT ledger_transaction_hour_is_whole CHECK (hour = date_trunc('hour', hour, 'UTC')),
  price_id text COLLATE "C" NOT NULL CONSTRAINT ledger_transaction_price REFERENCES price (id),
  currency text NOT NULL,
  revision integer NOT NULL CONSTRAINT ledger_transaction_revision_counts CHECK (revision >= 0),
  corrects_id text COLLATE "C",
  correlation_id text NOT NULL,
  created_at timestamptz NOT NULL,
  CONSTRAINT ledger_transaction_once UNIQUE (project_id, price_id, hour, revision),
  CONSTRAINT ledger_transaction_of_one_project UNIQUE (tenant_id, project_id, id),
  CONSTRAINT ledger_transaction_project_of_tenant FOREIGN KEY (tenant_id, project_id) REFERENCES project (tenant_id, id),
  CONSTRAINT ledger_transaction_corrects FOREIGN KEY (tenant_id, project_id, corrects_id)
    REFERENCES ledger_transaction (tenant_id, project_id, id),
  CONSTRAINT ledger_transaction_correction_names_a_charge CHECK ((kind = 'correction') = (corrects_id IS NOT NULL)),
  CONSTRAINT ledger_transaction_first_is_a_charge CHECK ((kind = 'charge') = (revision = 0))
);
CREATE INDEX ledger_transaction_by_project ON ledger_transaction (project_id, id);
CREATE INDEX ledger_transaction_by_tenant ON ledger_transaction (tenant_id, id);
CREATE INDEX ledger_transaction_by_hour ON ledger_transaction (hour);
SELECT append_only('ledger_transaction');
SELECT tenant_lock('ledger_transaction');
GRANT SELECT ON ledger_transaction TO mooring_tenant;

CREATE TABLE ledger_entry (
  transaction_id text COLLATE "C" NOT NULL,
  line integer NOT NULL,
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C" NOT NULL,
  account text NOT NULL CONSTRAINT ledger_entry_account_known CHECK (account IN ('receivable', 'revenue')),
  currency text NOT NULL,
  amount numeric(38, 0) NOT NULL,  -- of 10⁻⁶ minor unit; what an account is owed is positive
  CONSTRAINT ledger_entry_pkey PRIMARY KEY (transaction_id, line),
  CONSTRAINT ledger_entry_of_transaction FOREIGN KEY (tenant_id, project_id, transaction_id)
    REFERENCES ledger_transaction (tenant_id, project_id, id)
);
CREATE INDEX ledger_entry_by_account ON ledger_entry (tenant_id, project_id, account, currency) INCLUDE (amount);
SELECT append_only('ledger_entry');
SELECT tenant_lock('ledger_entry');
GRANT SELECT ON ledger_entry TO mooring_tenant;

CREATE FUNCTION ledger_transaction_is_balanced() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  IF EXISTS (SELECT FROM ledger_entry e WHERE e.transaction_id = NEW.id GROUP BY e.currency HAVING sum(e.amount) <> 0)
     OR EXISTS (SELECT FROM ledger_entry e WHERE e.transaction_id = NEW.id AND e.currency <> NEW.currency)
     OR (SELECT count(*) FROM ledger_entry e WHERE e.transaction_id = NEW.id) < 2 THEN
    RAISE EXCEPTION 'the entries of a transaction add up to zero'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'ledger_transaction_is_balanced';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER ledger_transaction_is_balanced AFTER INSERT ON ledger_transaction
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION ledger_transaction_is_balanced();
-- An entry comes with its transaction, so that none is added to one that is balanced already.
CREATE FUNCTION ledger_entry_comes_with_its_transaction() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM ledger_transaction t WHERE t.id = NEW.transaction_id
                    AND t.xmin::text = (txid_current() % (2 ^ 32)::bigint)::text) THEN
    RAISE EXCEPTION 'an entry is written together with its transaction'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'ledger_entry_comes_with_its_transaction';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER ledger_entry_comes_with_its_transaction AFTER INSERT ON ledger_entry
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION ledger_entry_comes_with_its_transaction();

-- What was rated: one row for each allocation or usage record, hour and price; later rows are differences.
CREATE TABLE rated_usage (
  id text COLLATE "C" CONSTRAINT rated_usage_pkey PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C" NOT NULL,
  transaction_id text COLLATE "C",  -- NULL for covered usage, which costs nothing
  hour timestamptz NOT NULL CONSTRAINT rated_usage_hour_is_whole CHECK (hour = date_trunc('hour', hour, 'UTC')),
  revision integer NOT NULL,
  source text NOT NULL CONSTRAINT rated_usage_source_known CHECK (source IN ('allocation', 'usage')),
  source_id text COLLATE "C" NOT NULL,
  price_id text COLLATE "C" CONSTRAINT rated_usage_price REFERENCES price (id),
  currency text,
  unit text NOT NULL,
  billing text NOT NULL CONSTRAINT rated_usage_billing_known CHECK (billing IN ('charged', 'covered')),
  started_at timestamptz NOT NULL,
  ended_at timestamptz NOT NULL,
  quantity numeric(38, 0) NOT NULL,  -- of 10⁻⁶ unit
  amount numeric(38, 0) NOT NULL,
  shadow_amount numeric(38, 0) NOT NULL,
  created_at timestamptz NOT NULL,
  CONSTRAINT rated_usage_project_of_tenant FOREIGN KEY (tenant_id, project_id) REFERENCES project (tenant_id, id),
  CONSTRAINT rated_usage_transaction FOREIGN KEY (tenant_id, project_id, transaction_id)
    REFERENCES ledger_transaction (tenant_id, project_id, id),
  CONSTRAINT rated_usage_charged_is_booked CHECK ((billing = 'charged') = (transaction_id IS NOT NULL)),
  CONSTRAINT rated_usage_covered_costs_nothing CHECK (billing = 'charged' OR amount = 0),
  CONSTRAINT rated_usage_charged_has_a_price CHECK (billing <> 'charged' OR (price_id IS NOT NULL AND currency IS NOT NULL))
);
CREATE UNIQUE INDEX rated_usage_once ON rated_usage (source, source_id, hour, coalesce(price_id, ''), revision);
CREATE INDEX rated_usage_by_hour ON rated_usage (hour);
CREATE INDEX rated_usage_by_project ON rated_usage (project_id, hour);
CREATE INDEX rated_usage_by_tenant ON rated_usage (tenant_id, hour);
SELECT append_only('rated_usage');
SELECT tenant_lock('rated_usage');
GRANT SELECT ON rated_usage TO mooring_tenant;

-- A price of a contract is named by rows of its tenant alone.
CREATE FUNCTION price_is_in_sight() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  IF EXISTS (SELECT FROM price p WHERE p.id = NEW.price_id AND p.tenant_id <> NEW.tenant_id) THEN
    RAISE EXCEPTION 'the price is of another tenant''s contract'
      USING ERRCODE = 'foreign_key_violation', CONSTRAINT = 'price_is_in_sight';
  END IF;
  RETURN NULL;
END $$;
DO $$
DECLARE
  relation text;
BEGIN
  FOREACH relation IN ARRAY '{allocation,usage_record,ledger_transaction,rated_usage}'::text[] LOOP
    EXECUTE format('CREATE CONSTRAINT TRIGGER %I AFTER INSERT ON %I FOR EACH ROW WHEN (NEW.price_id IS NOT NULL)
                    EXECUTE FUNCTION price_is_in_sight()', relation || '_price_is_in_sight', relation);
  END LOOP;
END $$;
