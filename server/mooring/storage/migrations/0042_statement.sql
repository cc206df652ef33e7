-- Statements: what a tenant owes for a month in one currency, closed once and never changed.
--
-- Each booked row says in which month it counts. That is the month of its hour, unless that month is frozen for the tenant: then it
-- is the month in which the row was booked. A month is frozen from the beginning of the close, under a lock that waits for all who
-- are booking, so what a close reads is complete, and nothing comes into it later.

CREATE TABLE statement (
  id text COLLATE "C" CONSTRAINT statement_pkey PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL CONSTRAINT statement_tenant REFERENCES tenant (id),
  period date NOT NULL CONSTRAINT statement_period_is_a_month CHECK (extract(day FROM period) = 1),
  currency text NOT NULL CONSTRAINT statement_currency_form CHECK (currency ~ '^[A-Z]{3}$'),
  status text NOT NULL,
  generation bigint NOT NULL DEFAULT 0,
  revision bigint NOT NULL DEFAULT 0,
  line_count bigint CONSTRAINT statement_lines_count CHECK (line_count >= 0),
  amount numeric(38, 0),         -- of 10⁻⁶ minor unit
  shadow_amount numeric(38, 0),  -- what covered usage would have cost
  lines_digest text CONSTRAINT statement_lines_digest_form CHECK (lines_digest ~ '^sha256:[0-9a-f]{64}$'),
  digest text CONSTRAINT statement_digest_form CHECK (digest ~ '^sha256:[0-9a-f]{64}$'),
  previous_digest text CONSTRAINT statement_previous_digest_form CHECK (previous_digest ~ '^sha256:[0-9a-f]{64}$'),
  closing_at timestamptz,
  closed_at timestamptz,
  correlation_id text NOT NULL,
  created_at timestamptz NOT NULL,
  CONSTRAINT statement_taken UNIQUE (tenant_id, currency, period),
  CONSTRAINT statement_closed_has_totals CHECK (
    status <> 'closed' OR (line_count IS NOT NULL AND amount IS NOT NULL AND shadow_amount IS NOT NULL AND lines_digest IS NOT NULL))
);
CREATE INDEX statement_by_tenant ON statement (tenant_id, id);
CREATE INDEX statement_frozen ON statement (tenant_id, period) WHERE status <> 'open';
CREATE INDEX statement_unclosed ON statement (tenant_id, currency, period) WHERE status <> 'closed';
SELECT lifecycle_attach('statement', 'statement', 'status', 'generation');
SELECT lifecycle_requires('statement', 'status', '{closing,closed}', 'closing_at');
SELECT lifecycle_requires('statement', 'status', '{closed}', 'closed_at');
SELECT lifecycle_requires('statement', 'status', '{closed}', 'digest');
SELECT tenant_lock('statement');
GRANT SELECT ON statement TO mooring_tenant;

CREATE FUNCTION statement_lock(tenant text) RETURNS bigint LANGUAGE sql IMMUTABLE
  RETURN hashtextextended('statement ' || tenant, 0);
COMMENT ON FUNCTION statement_lock IS 'The advisory lock of a tenant''s months: shared by who books, held alone by who freezes one.';

CREATE FUNCTION statement_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'a closed statement never changes, none is deleted, and each keeps its month'
    USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME;
END $$;
-- The lifecycle has no way out of `closed`: it refuses a change with a new generation by itself.
CREATE TRIGGER statement_is_final BEFORE UPDATE ON statement FOR EACH ROW
  WHEN ((OLD.status = 'closed' AND NEW.generation = OLD.generation)
        OR (OLD.tenant_id, OLD.currency, OLD.period) IS DISTINCT FROM (NEW.tenant_id, NEW.currency, NEW.period))
  EXECUTE FUNCTION statement_is_final();
CREATE TRIGGER statement_is_never_deleted BEFORE DELETE ON statement FOR EACH ROW EXECUTE FUNCTION statement_is_final();
CREATE TRIGGER statement_is_never_emptied BEFORE TRUNCATE ON statement FOR EACH STATEMENT EXECUTE FUNCTION statement_is_final();

CREATE FUNCTION statement_freezes_its_month() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  PERFORM pg_advisory_xact_lock(statement_lock(NEW.tenant_id));
  RETURN NEW;
END $$;
CREATE TRIGGER statement_freezes_its_month BEFORE UPDATE ON statement FOR EACH ROW
  WHEN (OLD.status = 'open' AND NEW.status <> 'open') EXECUTE FUNCTION statement_freezes_its_month();

-- The chain: a statement names the digest of the one before it, which is closed.
CREATE FUNCTION statement_follows_the_last() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
DECLARE
  before record;
BEGIN
  SELECT s.status, s.digest INTO before FROM statement s
   WHERE s.tenant_id = NEW.tenant_id AND s.currency = NEW.currency AND s.period < NEW.period ORDER BY s.period DESC LIMIT 1;
  IF coalesce(before.status, 'closed') <> 'closed' OR NEW.previous_digest IS DISTINCT FROM before.digest THEN
    RAISE EXCEPTION 'a statement names the digest of the closed one before it'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'statement_follows_the_last';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER statement_follows_the_last BEFORE UPDATE ON statement FOR EACH ROW
  WHEN (OLD.status <> 'closed' AND NEW.status = 'closed') EXECUTE FUNCTION statement_follows_the_last();
CREATE FUNCTION statement_comes_after_the_frozen() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  IF EXISTS (SELECT FROM statement s WHERE s.tenant_id = NEW.tenant_id AND s.currency = NEW.currency
                AND s.period >= NEW.period AND s.status <> 'open' AND s.id <> NEW.id) THEN
    RAISE EXCEPTION 'a later month of this tenant is closed already'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'statement_comes_after_the_frozen';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER statement_comes_after_the_frozen AFTER INSERT ON statement
  FOR EACH ROW EXECUTE FUNCTION statement_comes_after_the_frozen();

-- The month in which a booked row counts -----------------------------------------------------------------------------------

ALTER TABLE ledger_transaction ADD COLUMN period date;
ALTER TABLE rated_usage ADD COLUMN period date;
ALTER TABLE ledger_transaction DISABLE TRIGGER ledger_transaction_is_append_only;
ALTER TABLE rated_usage DISABLE TRIGGER rated_usage_is_append_only;
UPDATE ledger_transaction SET period = date_trunc('month', hour AT TIME ZONE 'UTC')::date;
UPDATE rated_usage SET period = date_trunc('month', hour AT TIME ZONE 'UTC')::date;
ALTER TABLE ledger_transaction ENABLE TRIGGER ledger_transaction_is_append_only;
ALTER TABLE rated_usage ENABLE TRIGGER rated_usage_is_append_only;
ALTER TABLE ledger_transaction ALTER COLUMN period SET NOT NULL;
ALTER TABLE rated_usage ALTER COLUMN period SET NOT NULL;
CREATE INDEX ledger_transaction_by_period ON ledger_transaction (tenant_id, currency, period);
-- Two names of one order: the planner cannot walk the primary key for it, through the lines of all other tenants and months.
CREATE INDEX rated_usage_by_period ON rated_usage (tenant_id, period, id COLLATE "POSIX");

CREATE FUNCTION counts_in_a_period() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
DECLARE
  frozen date;
BEGIN
  PERFORM pg_advisory_xact_lock_shared(statement_lock(NEW.tenant_id));
  SELECT max(s.period) INTO frozen FROM statement s WHERE s.tenant_id = NEW.tenant_id AND s.status <> 'open';
  NEW.period := date_trunc('month', NEW.hour AT TIME ZONE 'UTC')::date;
  IF NEW.period <= frozen THEN
    NEW.period := greatest(date_trunc('month', NEW.created_at AT TIME ZONE 'UTC'), frozen + interval '1 month')::date;
  END IF;
  RETURN NEW;
END $$;
COMMENT ON FUNCTION counts_in_a_period IS 'The month of a booked row: that of its hour, or after that was frozen, that of its booking.';
CREATE TRIGGER ledger_transaction_counts_in_a_period BEFORE INSERT ON ledger_transaction
  FOR EACH ROW EXECUTE FUNCTION counts_in_a_period();
CREATE TRIGGER rated_usage_counts_in_a_period BEFORE INSERT ON rated_usage
  FOR EACH ROW EXECUTE FUNCTION counts_in_a_period();
