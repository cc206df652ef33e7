-- What GPUs did, by the minute. A minute belongs to the allocation that had the slot then; a tenant reads those of its own
-- allocations, and minutes of a free slot belong to nobody.

CREATE TABLE slot_metric (
  node_id text COLLATE "C" NOT NULL CONSTRAINT slot_metric_node REFERENCES node (id),
  slot_index integer NOT NULL,
  minute timestamptz NOT NULL CONSTRAINT slot_metric_minute_is_whole CHECK (minute = date_trunc('minute', minute, 'UTC')),
  allocation_id text COLLATE "C" NOT NULL,   -- '': the slot was free
  tenant_id text COLLATE "C",
  samples integer NOT NULL,
  utilisation_sum double precision NOT NULL,
  utilisation_count integer NOT NULL,
  utilisation_max double precision,
  memory_used_bytes bigint,
  memory_total_bytes bigint,
  power_sum bigint NOT NULL,
  power_count integer NOT NULL,
  temperature_celsius integer,
  ecc_errors bigint,
  xid integer,
  simulated boolean NOT NULL,
  CONSTRAINT slot_metric_pkey PRIMARY KEY (node_id, slot_index, minute, allocation_id),
  CONSTRAINT slot_metric_of_a_tenant CHECK ((allocation_id = '') = (tenant_id IS NULL))
);
CREATE INDEX slot_metric_by_allocation ON slot_metric (allocation_id, minute) WHERE allocation_id <> '';
CREATE INDEX slot_metric_by_age ON slot_metric (minute);
SELECT tenant_lock('slot_metric');
GRANT SELECT ON slot_metric TO mooring_tenant;
