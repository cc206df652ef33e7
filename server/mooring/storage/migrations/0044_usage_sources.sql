-- Sources of usage: events from anybody, cumulative readings of adapters, and the queue of events that came too late.
--
-- All of them end in `usage_record`, to which rows are only added: so "once" means for ever, and one table is charged.

-- A batch of events ------------------------------------------------------------------------------------------------------

CREATE TABLE meter_batch (
  id text COLLATE "C" CONSTRAINT meter_batch_pkey PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C" NOT NULL,
  principal_id text COLLATE "C" NOT NULL,
  accepted integer NOT NULL CONSTRAINT meter_batch_accepted_counts CHECK (accepted >= 0),
  late integer NOT NULL CONSTRAINT meter_batch_late_counts CHECK (late >= 0),
  duplicates integer NOT NULL CONSTRAINT meter_batch_duplicates_count CHECK (duplicates >= 0),
  correlation_id text NOT NULL,
  created_at timestamptz NOT NULL,
  CONSTRAINT meter_batch_of_one_project UNIQUE (tenant_id, project_id, id),
  CONSTRAINT meter_batch_project_of_tenant FOREIGN KEY (tenant_id, project_id) REFERENCES project (tenant_id, id),
  CONSTRAINT meter_batch_stores_something CHECK (accepted + late > 0)
);
SELECT append_only('meter_batch');
SELECT tenant_lock('meter_batch');
GRANT SELECT, INSERT ON meter_batch TO mooring_tenant;

ALTER TABLE usage_record
  DROP CONSTRAINT usage_record_source_known,
  ADD CONSTRAINT usage_record_source_known CHECK (usage_source IN ('app_runtime', 'meter_event', 'meter_reading')),
  DROP CONSTRAINT usage_record_taken,
  ADD COLUMN member_id text COLLATE "C",
  ADD COLUMN component text COLLATE "C" CONSTRAINT usage_record_component_length CHECK (length(component) <= 128),
  ADD COLUMN event_source text CONSTRAINT usage_record_event_source_length CHECK (length(event_source) BETWEEN 1 AND 256),
  ADD COLUMN event_id text CONSTRAINT usage_record_event_id_length CHECK (length(event_id) BETWEEN 1 AND 128),
  ADD COLUMN batch_id text COLLATE "C",
  ADD CONSTRAINT usage_record_batch_of_project FOREIGN KEY (tenant_id, project_id, batch_id)
    REFERENCES meter_batch (tenant_id, project_id, id),
  ADD CONSTRAINT usage_record_member_of_project FOREIGN KEY (tenant_id, project_id, member_id)
    REFERENCES member (tenant_id, project_id, id),
  ADD CONSTRAINT usage_record_event_has_its_names CHECK (
    (usage_source = 'meter_event') = (event_source IS NOT NULL)
    AND (usage_source = 'meter_event') = (event_id IS NOT NULL)
    AND (usage_source = 'meter_event') = (batch_id IS NOT NULL));
-- An adapter names its records for each instance. An event is one of its tenant: its `record_id` is a hash of the tenant,
-- the event's source and its id.
CREATE UNIQUE INDEX usage_record_taken ON usage_record (instance_id, record_id) WHERE usage_source = 'app_runtime';
CREATE UNIQUE INDEX usage_record_event_once ON usage_record (record_id) WHERE usage_source = 'meter_event';

-- Events that came too late ----------------------------------------------------------------------------------------------

CREATE TABLE late_usage (
  id text COLLATE "C" CONSTRAINT late_usage_pkey PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C" NOT NULL,
  instance_id text COLLATE "C" NOT NULL,
  record_id text COLLATE "C" NOT NULL CONSTRAINT late_usage_event_once UNIQUE,
  event_source text NOT NULL,
  event_id text NOT NULL,
  unit text COLLATE "C" NOT NULL,
  quantity numeric NOT NULL CONSTRAINT late_usage_quantity_counts CHECK (quantity >= 0),
  started_at timestamptz NOT NULL,
  ended_at timestamptz NOT NULL,
  attached_project_id text COLLATE "C",
  member_id text COLLATE "C",
  component text COLLATE "C",
  batch_id text COLLATE "C" NOT NULL,
  correlation_id text NOT NULL,
  created_at timestamptz NOT NULL,
  status text NOT NULL DEFAULT 'open' CONSTRAINT late_usage_status_known CHECK (status IN ('open', 'accepted', 'rejected')),
  reason text CONSTRAINT late_usage_reason_length CHECK (length(reason) <= 1000),
  resolved_by text COLLATE "C",
  resolved_at timestamptz,
  usage_record_id text COLLATE "C",
  revision bigint NOT NULL DEFAULT 0,
  CONSTRAINT late_usage_interval CHECK (ended_at >= started_at),
  CONSTRAINT late_usage_instance_of_project FOREIGN KEY (tenant_id, project_id, instance_id)
    REFERENCES instance (tenant_id, project_id, id),
  CONSTRAINT late_usage_batch_of_project FOREIGN KEY (tenant_id, project_id, batch_id)
    REFERENCES meter_batch (tenant_id, project_id, id),
  CONSTRAINT late_usage_resolution_is_whole CHECK (
    (status = 'open') = (reason IS NULL) AND (status = 'open') = (resolved_by IS NULL)
    AND (status = 'open') = (resolved_at IS NULL) AND (status = 'accepted') = (usage_record_id IS NOT NULL))
);
CREATE INDEX late_usage_by_project ON late_usage (project_id, id);
CREATE INDEX late_usage_open ON late_usage (project_id, id) WHERE status = 'open';
CREATE INDEX late_usage_open_of_tenant ON late_usage (tenant_id) WHERE status = 'open';
SELECT tenant_lock('late_usage');
GRANT SELECT, INSERT, UPDATE (status, reason, resolved_by, resolved_at, usage_record_id, revision) ON late_usage TO mooring_tenant;

CREATE FUNCTION late_usage_is_resolved_once() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.status = 'open' AND NEW.status <> 'open'
     AND to_jsonb(NEW) - '{status,reason,resolved_by,resolved_at,usage_record_id,revision}'::text[]
       = to_jsonb(OLD) - '{status,reason,resolved_by,resolved_at,usage_record_id,revision}'::text[] THEN
    RETURN NEW;
  END IF;
  RAISE EXCEPTION 'late usage is resolved once, and keeps everything else'
    USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME;
END $$;
CREATE TRIGGER late_usage_is_resolved_once BEFORE UPDATE ON late_usage
  FOR EACH ROW EXECUTE FUNCTION late_usage_is_resolved_once();
CREATE TRIGGER late_usage_is_never_deleted BEFORE DELETE ON late_usage FOR EACH ROW EXECUTE FUNCTION is_append_only();
CREATE TRIGGER late_usage_is_never_emptied BEFORE TRUNCATE ON late_usage
  FOR EACH STATEMENT EXECUTE FUNCTION is_append_only();

-- Readings ---------------------------------------------------------------------------------------------------------------
-- A reading names the one before it in its epoch, with its value: it cannot fall, and no two readings follow the same one,
-- so two writers cannot both count the same difference.

CREATE TABLE meter_reading (
  id text COLLATE "C" CONSTRAINT meter_reading_pkey PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C" NOT NULL,
  instance_id text COLLATE "C" NOT NULL,
  series text COLLATE "C" NOT NULL CONSTRAINT meter_reading_series_length CHECK (length(series) BETWEEN 1 AND 128),
  epoch bigint NOT NULL CONSTRAINT meter_reading_epoch_counts CHECK (epoch >= 0),
  seq bigint NOT NULL CONSTRAINT meter_reading_seq_counts CHECK (seq >= 0),
  value numeric NOT NULL CONSTRAINT meter_reading_value_counts CHECK (value >= 0),
  at timestamptz NOT NULL,
  previous_seq bigint,
  previous_value numeric,
  usage_record_id text COLLATE "C" CONSTRAINT meter_reading_usage_once UNIQUE,
  correlation_id text NOT NULL,
  created_at timestamptz NOT NULL,
  CONSTRAINT meter_reading_taken UNIQUE (instance_id, series, epoch, seq),
  CONSTRAINT meter_reading_with_value UNIQUE (tenant_id, instance_id, series, epoch, seq, value),
  CONSTRAINT meter_reading_follows_one UNIQUE NULLS NOT DISTINCT (instance_id, series, epoch, previous_seq),
  CONSTRAINT meter_reading_previous FOREIGN KEY (tenant_id, instance_id, series, epoch, previous_seq, previous_value)
    REFERENCES meter_reading (tenant_id, instance_id, series, epoch, seq, value),
  CONSTRAINT meter_reading_previous_is_whole CHECK ((previous_seq IS NULL) = (previous_value IS NULL)),
  CONSTRAINT meter_reading_does_not_fall CHECK (previous_seq IS NULL OR (seq > previous_seq AND value > previous_value)),
  CONSTRAINT meter_reading_difference_is_used CHECK ((previous_seq IS NULL) = (usage_record_id IS NULL)),
  CONSTRAINT meter_reading_instance_of_project FOREIGN KEY (tenant_id, project_id, instance_id)
    REFERENCES instance (tenant_id, project_id, id)
);
SELECT append_only('meter_reading');
SELECT tenant_lock('meter_reading');
GRANT SELECT, INSERT ON meter_reading TO mooring_tenant;
