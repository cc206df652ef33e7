-- Webhooks and their deliveries: the outbox.
--
-- The database itself fans an event out to the webhooks that want it, in the transaction that wrote the event, so
-- that no writer can forget it and a tenant's session need not see the platform's webhooks.

CREATE TABLE webhook (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" REFERENCES tenant (id),   -- none: the platform's
  project_id text COLLATE "C",
  url text NOT NULL CONSTRAINT webhook_url_length CHECK (length(url) <= 2000),
  description text NOT NULL DEFAULT '' CONSTRAINT webhook_description_length CHECK (length(description) <= 500),
  event_types text[] NOT NULL DEFAULT '{}',            -- whole types, or families that end in '.*'; empty: all
  enabled boolean NOT NULL DEFAULT true,
  secret_id text COLLATE "C" NOT NULL REFERENCES secret (id),
  previous_secret_id text COLLATE "C" REFERENCES secret (id) ON DELETE SET NULL,  -- signs beside it until it expires
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  CONSTRAINT webhook_project_of_tenant FOREIGN KEY (tenant_id, project_id) REFERENCES project (tenant_id, id),
  CONSTRAINT webhook_key_of_tenant FOREIGN KEY (tenant_id, secret_id) REFERENCES secret (tenant_id, id),
  CONSTRAINT webhook_previous_key_of_tenant FOREIGN KEY (tenant_id, previous_secret_id)
    REFERENCES secret (tenant_id, id) ON DELETE SET NULL (previous_secret_id),
  CONSTRAINT webhook_project_has_tenant CHECK (project_id IS NULL OR tenant_id IS NOT NULL)
);
CREATE INDEX webhook_by_tenant ON webhook (tenant_id, id);
CREATE INDEX webhook_by_project ON webhook (project_id, id) WHERE project_id IS NOT NULL;
CREATE UNIQUE INDEX webhook_by_secret ON webhook (secret_id);
CREATE UNIQUE INDEX webhook_by_previous_secret ON webhook (previous_secret_id) WHERE previous_secret_id IS NOT NULL;
SELECT tenant_lock('webhook');
GRANT SELECT, INSERT, UPDATE, DELETE ON webhook TO mooring_tenant;

-- A key goes with the webhook that named it: nothing is left that could still be opened. It goes in the name of
-- whoever changes the webhook, so that a tenant's session drops a tenant's keys only.
CREATE FUNCTION webhook_drops_keys() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' THEN
    DELETE FROM secret WHERE id IN (OLD.secret_id, OLD.previous_secret_id);
  ELSE
    DELETE FROM secret WHERE id IN (OLD.secret_id, OLD.previous_secret_id)
       AND id <> NEW.secret_id AND id IS DISTINCT FROM NEW.previous_secret_id;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER webhook_drops_keys AFTER DELETE OR UPDATE OF secret_id ON webhook
  FOR EACH ROW EXECUTE FUNCTION webhook_drops_keys();

CREATE TABLE delivery (
  event_id text COLLATE "C" NOT NULL,
  webhook_id text COLLATE "C" NOT NULL REFERENCES webhook (id) ON DELETE CASCADE,
  id text COLLATE "C" NOT NULL GENERATED ALWAYS AS (event_id || '.' || webhook_id) STORED,
  tenant_id text COLLATE "C",
  project_id text COLLATE "C",
  event_type text NOT NULL,
  epoch integer NOT NULL,
  tx bigint NOT NULL,
  seq bigint NOT NULL,
  correlation_id text NOT NULL,
  status text NOT NULL DEFAULT 'queued' CONSTRAINT delivery_status_known CHECK (status IN ('queued', 'claimed', 'delivered', 'dead')),
  attempts integer NOT NULL DEFAULT 0,
  due_at timestamptz NOT NULL,
  lease_token bigint NOT NULL DEFAULT 0,
  leased_until timestamptz,
  last_error text,
  last_status smallint,
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  finished_at timestamptz,
  CONSTRAINT delivery_pkey PRIMARY KEY (event_id, webhook_id),
  CONSTRAINT delivery_id_unique UNIQUE (id),
  CONSTRAINT delivery_claimed_has_lease CHECK ((status = 'claimed') = (leased_until IS NOT NULL)),
  CONSTRAINT delivery_ended_is_dated CHECK ((status IN ('delivered', 'dead')) = (finished_at IS NOT NULL))
);
CREATE INDEX delivery_queued ON delivery (webhook_id, due_at) WHERE status = 'queued';
CREATE INDEX delivery_leased ON delivery (leased_until) WHERE status = 'claimed';
CREATE INDEX delivery_ended ON delivery (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX delivery_by_webhook ON delivery (webhook_id, id);
CREATE INDEX delivery_by_place ON delivery (tenant_id, project_id, id);
CREATE INDEX delivery_dead ON delivery (tenant_id, project_id, id) WHERE status = 'dead';
SELECT tenant_lock('delivery');
GRANT SELECT, UPDATE ON delivery TO mooring_tenant;

CREATE FUNCTION event_fans_out() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  INSERT INTO delivery (event_id, webhook_id, tenant_id, project_id, event_type, epoch, tx, seq, correlation_id, due_at, created_at)
  SELECT e.id, w.id, w.tenant_id, w.project_id, e.type, e.epoch, e.tx, e.seq, e.correlation_id, e.occurred_at, e.occurred_at
    FROM written e JOIN webhook w
      ON (w.tenant_id = e.tenant_id OR w.tenant_id IS NULL)
     AND (w.project_id IS NULL OR w.project_id = e.project_id)
   WHERE w.enabled
     AND e.type NOT LIKE 'contract.delivery.%'   -- news of a delivery is never delivered: it would feed itself
     AND (w.event_types = '{}'
          OR e.type = ANY (w.event_types)
          OR EXISTS (SELECT FROM unnest(w.event_types) t WHERE right(t, 2) = '.*' AND starts_with(e.type, left(t, -1))));
  RETURN NULL;
END $$;
CREATE TRIGGER event_fans_out AFTER INSERT ON event REFERENCING NEW TABLE AS written
  FOR EACH STATEMENT EXECUTE FUNCTION event_fans_out();
