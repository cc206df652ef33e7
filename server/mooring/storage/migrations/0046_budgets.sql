-- Quotas, budgets, holds, and tenants that pay in advance.
--
-- What was spent is never stored here: it is a sum of the ledger, and of the clocks that are not booked yet.

CREATE TABLE quota (
  id text COLLATE "C" CONSTRAINT quota_pkey PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL CONSTRAINT quota_tenant REFERENCES tenant (id),
  project_id text COLLATE "C",  -- NULL: of the whole tenant
  gpus_max integer CONSTRAINT quota_gpus_count CHECK (gpus_max >= 0),
  instances_max integer CONSTRAINT quota_instances_count CHECK (instances_max >= 0),
  minor_per_hour_max bigint CONSTRAINT quota_spend_counts CHECK (minor_per_hour_max >= 0),
  currency text CONSTRAINT quota_currency_form CHECK (currency ~ '^[A-Z]{3}$'),
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL,
  CONSTRAINT quota_project_of_tenant FOREIGN KEY (tenant_id, project_id) REFERENCES project (tenant_id, id),
  CONSTRAINT quota_spend_has_a_currency CHECK ((minor_per_hour_max IS NULL) = (currency IS NULL))
);
CREATE UNIQUE INDEX quota_one_per_place ON quota (tenant_id, coalesce(project_id, ''));
SELECT tenant_lock('quota');
GRANT SELECT, INSERT, UPDATE ON quota TO mooring_tenant;

CREATE TABLE budget (
  id text COLLATE "C" CONSTRAINT budget_pkey PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL CONSTRAINT budget_tenant REFERENCES tenant (id),
  project_id text COLLATE "C",  -- NULL: of the whole tenant
  currency text NOT NULL CONSTRAINT budget_currency_form CHECK (currency ~ '^[A-Z]{3}$'),
  minor_per_month bigint NOT NULL CONSTRAINT budget_amount_counts CHECK (minor_per_month BETWEEN 1 AND 1000000000000),
  thresholds jsonb NOT NULL CONSTRAINT budget_thresholds_are_bounded CHECK (jsonb_array_length(thresholds) BETWEEN 1 AND 10),
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL,
  CONSTRAINT budget_of_one_tenant UNIQUE (tenant_id, id),
  CONSTRAINT budget_project_of_tenant FOREIGN KEY (tenant_id, project_id) REFERENCES project (tenant_id, id)
);
CREATE UNIQUE INDEX budget_one_per_place ON budget (tenant_id, coalesce(project_id, ''));
SELECT tenant_lock('budget');
GRANT SELECT, INSERT, UPDATE ON budget TO mooring_tenant;

CREATE TABLE budget_crossing (
  budget_id text COLLATE "C" NOT NULL,
  period date NOT NULL CONSTRAINT budget_crossing_period_is_a_month CHECK (period = date_trunc('month', period)),
  percent integer NOT NULL,
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C",
  action text NOT NULL CONSTRAINT budget_crossing_action_known CHECK (action IN ('notify', 'block', 'stop')),
  basis text NOT NULL CONSTRAINT budget_crossing_basis_known CHECK (basis IN ('measured', 'estimated')),
  minor_per_month bigint NOT NULL,  -- of the budget at that moment
  spent_minor numeric(38, 0) NOT NULL,
  created_at timestamptz NOT NULL,
  CONSTRAINT budget_crossing_once PRIMARY KEY (budget_id, period, percent),
  CONSTRAINT budget_crossing_budget FOREIGN KEY (tenant_id, budget_id) REFERENCES budget (tenant_id, id),
  CONSTRAINT budget_crossing_project_of_tenant FOREIGN KEY (tenant_id, project_id) REFERENCES project (tenant_id, id),
  CONSTRAINT budget_crossing_is_reached CHECK (spent_minor::numeric * 100 >= minor_per_month::numeric * percent)
);
SELECT append_only('budget_crossing');
SELECT tenant_lock('budget_crossing');
GRANT SELECT ON budget_crossing TO mooring_tenant;

-- A tenant that pays in advance; its balance is a sum of the ledger.
CREATE TABLE prepaid_account (
  id text COLLATE "C" CONSTRAINT prepaid_account_pkey PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL CONSTRAINT prepaid_account_tenant REFERENCES tenant (id),
  currency text NOT NULL CONSTRAINT prepaid_account_currency_form CHECK (currency ~ '^[A-Z]{3}$'),
  low_minor bigint NOT NULL CONSTRAINT prepaid_account_low_counts CHECK (low_minor >= 0),
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL,
  CONSTRAINT prepaid_account_of_one_tenant UNIQUE (tenant_id, id),
  CONSTRAINT prepaid_account_one_per_tenant UNIQUE (tenant_id)
);
SELECT tenant_lock('prepaid_account');
GRANT SELECT ON prepaid_account TO mooring_tenant;

CREATE TABLE balance_crossing (
  account_id text COLLATE "C" NOT NULL,
  level text NOT NULL CONSTRAINT balance_crossing_level_known CHECK (level IN ('low', 'depleted')),
  payment_id text COLLATE "C" NOT NULL,  -- the last payment before it: the next one arms the level again
  tenant_id text COLLATE "C" NOT NULL,
  basis text NOT NULL CONSTRAINT balance_crossing_basis_known CHECK (basis IN ('measured', 'estimated')),
  balance_minor numeric(38, 0) NOT NULL,
  created_at timestamptz NOT NULL,
  CONSTRAINT balance_crossing_once PRIMARY KEY (account_id, level, payment_id),
  CONSTRAINT balance_crossing_account FOREIGN KEY (tenant_id, account_id) REFERENCES prepaid_account (tenant_id, id),
  CONSTRAINT balance_crossing_depleted_is_empty CHECK (level = 'low' OR balance_minor <= 0)
);
SELECT append_only('balance_crossing');
SELECT tenant_lock('balance_crossing');
GRANT SELECT ON balance_crossing TO mooring_tenant;

-- What an allocation reserved when it was requested. It ends with its allocation's clock, so no row says when.
CREATE TABLE hold (
  allocation_id text COLLATE "C" CONSTRAINT hold_pkey PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C" NOT NULL,
  currency text NOT NULL,
  amount_minor bigint NOT NULL CONSTRAINT hold_amount_counts CHECK (amount_minor >= 0),
  available_minor bigint NOT NULL,  -- at that moment, before this hold
  created_at timestamptz NOT NULL,
  CONSTRAINT hold_allocation FOREIGN KEY (tenant_id, project_id, allocation_id)
    REFERENCES allocation (tenant_id, project_id, id) DEFERRABLE INITIALLY DEFERRED,
  CONSTRAINT hold_is_covered CHECK (amount_minor <= available_minor)
);
CREATE INDEX hold_by_tenant ON hold (tenant_id);
SELECT append_only('hold');
SELECT tenant_lock('hold');
GRANT SELECT, INSERT ON hold TO mooring_tenant;

-- Requests of a tenant that has limits are decided one after the other, on this row.
CREATE TABLE spending_guard (
  id text COLLATE "C" CONSTRAINT spending_guard_pkey PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL CONSTRAINT spending_guard_tenant REFERENCES tenant (id),
  revision bigint NOT NULL DEFAULT 0,
  CONSTRAINT spending_guard_is_of_its_tenant CHECK (id = tenant_id)
);
SELECT tenant_lock('spending_guard');
GRANT SELECT, UPDATE ON spending_guard TO mooring_tenant;
INSERT INTO spending_guard (id, tenant_id) SELECT id, id FROM tenant;
CREATE FUNCTION tenant_has_spending_guard() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  INSERT INTO spending_guard (id, tenant_id) VALUES (NEW.id, NEW.id);
  RETURN NULL;
END $$;
CREATE TRIGGER tenant_has_spending_guard AFTER INSERT ON tenant FOR EACH ROW EXECUTE FUNCTION tenant_has_spending_guard();

GRANT SELECT ON billing_hour TO mooring_tenant;  -- which hours are booked is the same for everybody

-- Payments and credits are of the tenant, not of a project: they have no project and no price.
ALTER TABLE ledger_entry ALTER COLUMN project_id DROP NOT NULL,
  DROP CONSTRAINT ledger_entry_account_known,
  ADD CONSTRAINT ledger_entry_account_known
    CHECK (account IN ('receivable', 'revenue', 'cash', 'prepaid', 'credits_given'));
ALTER TABLE ledger_transaction ALTER COLUMN project_id DROP NOT NULL,
  ALTER COLUMN price_id DROP NOT NULL,
  ADD COLUMN reference text CONSTRAINT ledger_transaction_reference_length CHECK (length(reference) BETWEEN 1 AND 200),
  ADD COLUMN reason text,
  ADD COLUMN created_by text,
  DROP CONSTRAINT ledger_transaction_kind_known,
  ADD CONSTRAINT ledger_transaction_kind_known CHECK (kind IN ('charge', 'correction', 'payment', 'credit')),
  DROP CONSTRAINT ledger_transaction_first_is_a_charge,
  ADD CONSTRAINT ledger_transaction_first_is_a_charge CHECK ((kind = 'correction') = (revision > 0)),
  ADD CONSTRAINT ledger_transaction_charge_has_a_price
    CHECK ((kind IN ('charge', 'correction')) = (project_id IS NOT NULL AND price_id IS NOT NULL)),
  ADD CONSTRAINT ledger_transaction_payment_is_explained
    CHECK (kind IN ('charge', 'correction') OR
           (project_id IS NULL AND price_id IS NULL AND reference IS NOT NULL AND reason IS NOT NULL)),
  ADD CONSTRAINT ledger_transaction_tenant FOREIGN KEY (tenant_id) REFERENCES tenant (id);
CREATE UNIQUE INDEX ledger_payment_taken ON ledger_transaction (tenant_id, reference) WHERE reference IS NOT NULL;
