-- Task arguments and the secret values of an instance's configuration are stored sealed.
--
-- The values of an instance that its form marks as `writeOnly` move from `config`, which has null in their place, to a
-- sealed document of its own. Task arguments are sealed as a whole; a service's name and the endpoint that it declares
-- stay readable beside the ciphertext, for queries. Older rows are sealed by the janitor, which has the key.

ALTER TABLE instance ADD COLUMN config_secrets jsonb;
COMMENT ON COLUMN instance.config_secrets IS 'The writeOnly values of the configuration by JSON pointer, sealed.';
CREATE INDEX task_in_the_clear ON task (id) WHERE NOT arguments ? '$sealed';
CREATE INDEX operation_in_the_clear ON operation (id) WHERE request ? 'hidden' AND NOT request ? '$sealed';
CREATE INDEX instance_in_the_clear ON instance (id) WHERE config_secrets IS NULL AND config_hidden <> '{}';

-- What recorded sessions showed: in parts, each of them sealed.

CREATE TABLE exec_recording (
  id text COLLATE "C" CONSTRAINT exec_recording_pkey PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C" NOT NULL,
  allocation_id text COLLATE "C" NOT NULL,
  visit_id text COLLATE "C" NOT NULL,
  principal_id text COLLATE "C" NOT NULL,
  correlation_id text NOT NULL,
  started_at timestamptz NOT NULL,
  ended_at timestamptz,   -- null: it is running, or its relay died
  bytes bigint NOT NULL DEFAULT 0,
  CONSTRAINT exec_recording_of_one_tenant UNIQUE (tenant_id, id)
);
CREATE INDEX exec_recording_by_tenant ON exec_recording (tenant_id, id DESC);
CREATE INDEX exec_recording_by_age ON exec_recording (started_at);
SELECT tenant_lock('exec_recording');
GRANT SELECT ON exec_recording TO mooring_tenant;

CREATE TABLE exec_recording_part (
  tenant_id text COLLATE "C" NOT NULL,
  recording_id text COLLATE "C" NOT NULL,
  number integer NOT NULL,
  content bytea NOT NULL,
  CONSTRAINT exec_recording_part_pkey PRIMARY KEY (recording_id, number),
  CONSTRAINT exec_recording_part_of_recording FOREIGN KEY (tenant_id, recording_id)
    REFERENCES exec_recording (tenant_id, id) ON DELETE CASCADE
);
SELECT tenant_lock('exec_recording_part');
GRANT SELECT ON exec_recording_part TO mooring_tenant;
