-- Artifact checks become work that outlives the request that asked for it: accepted, started under a lease, told how far
-- it is, and ended. The generation of a start is the fencing token of whoever started it.

ALTER TABLE artifact_check
  ADD COLUMN project_id text COLLATE "C",
  ADD COLUMN status text,
  ADD COLUMN generation bigint NOT NULL DEFAULT 0,
  ADD COLUMN attempts integer NOT NULL DEFAULT 0 CONSTRAINT artifact_check_attempts_count CHECK (attempts >= 0),
  ADD COLUMN bytes_done bigint NOT NULL DEFAULT 0 CONSTRAINT artifact_check_bytes_count CHECK (bytes_done >= 0),
  ADD COLUMN bytes_total bigint CONSTRAINT artifact_check_total_counts CHECK (bytes_total >= 0),
  ADD COLUMN due_at timestamptz,
  ADD COLUMN started_at timestamptz,
  ADD COLUMN progressed_at timestamptz,
  ADD COLUMN lease_expires_at timestamptz,
  ADD COLUMN finished_at timestamptz,
  ADD COLUMN failure_code text,
  ADD COLUMN failure_details jsonb,
  ADD COLUMN correlation_id text,
  ADD COLUMN trace_id text,
  ADD COLUMN actor_kind text,                  -- who asked for it
  ADD COLUMN actor_id text COLLATE "C",
  ADD COLUMN token_id text COLLATE "C",
  ADD COLUMN break_glass_id text COLLATE "C",
  ALTER COLUMN passed DROP NOT NULL,           -- known when it has ended
  ALTER COLUMN detail SET DEFAULT '',
  DROP CONSTRAINT artifact_check_name_known,
  ADD CONSTRAINT artifact_check_name_known CHECK (name IN ('content', 'smoke'));

-- The checks of before were one act: they get the steps that such an act has now. The edges are the core's; the
-- migration command writes them all afterwards, and a step cannot be written before its edge.
INSERT INTO lifecycle_edge (machine, source, trigger, target)
SELECT 'artifact_check', e.source, e.trigger, e.target
  FROM (VALUES ('', 'birth', 'accepted'), ('accepted', 'start', 'running'), ('running', 'succeed', 'succeeded'),
               ('running', 'fail', 'failed')) AS e (source, trigger, target)
 WHERE EXISTS (SELECT FROM artifact_check)
ON CONFLICT DO NOTHING;
INSERT INTO transition (machine, subject_id, generation, tenant_id, source, trigger, target, occurred_at, correlation_id)
SELECT 'artifact_check', c.id, s.generation, coalesce(c.tenant_id, 'platform'), s.source, s.trigger, s.target, c.created_at, c.id
  FROM artifact_check c CROSS JOIN LATERAL (
    VALUES (0, '', 'birth', 'accepted'), (1, 'accepted', 'start', 'running'),
           (2, 'running', CASE WHEN c.passed THEN 'succeed' ELSE 'fail' END, CASE WHEN c.passed THEN 'succeeded' ELSE 'failed' END)
  ) AS s (generation, source, trigger, target)
 ORDER BY s.generation;
UPDATE artifact_check c
   SET project_id = a.project_id, status = CASE WHEN c.passed THEN 'succeeded' ELSE 'failed' END, generation = 2, attempts = 1,
       due_at = c.created_at, started_at = c.created_at, finished_at = c.created_at, correlation_id = c.id,
       trace_id = repeat('0', 32), actor_kind = 'system', actor_id = 'system',
       failure_code = CASE WHEN c.passed THEN NULL ELSE 'smoke_failed' END
  FROM artifact a WHERE a.id = c.artifact_id;

ALTER TABLE artifact_check
  ALTER COLUMN status SET NOT NULL,
  ALTER COLUMN due_at SET NOT NULL,
  ALTER COLUMN correlation_id SET NOT NULL,
  ALTER COLUMN trace_id SET NOT NULL,
  ALTER COLUMN actor_kind SET NOT NULL,
  ALTER COLUMN actor_id SET NOT NULL,
  ADD CONSTRAINT artifact_check_project_of_tenant FOREIGN KEY (tenant_id, project_id) REFERENCES project (tenant_id, id);
SELECT lifecycle_attach('artifact_check', 'artifact_check', 'status', 'generation');
SELECT lifecycle_requires('artifact_check', 'status', '{running}', 'started_at');
SELECT lifecycle_requires('artifact_check', 'status', '{running}', 'lease_expires_at');
SELECT lifecycle_requires('artifact_check', 'status', '{succeeded,failed,cancelled}', 'finished_at');
SELECT lifecycle_requires('artifact_check', 'status', '{failed}', 'failure_code');
CREATE UNIQUE INDEX artifact_check_one_under_way ON artifact_check (artifact_id, name) WHERE status IN ('accepted', 'running');
CREATE INDEX artifact_check_due ON artifact_check (due_at) WHERE status = 'accepted';
CREATE INDEX artifact_check_leased ON artifact_check (lease_expires_at) WHERE status = 'running';
GRANT UPDATE ON artifact_check TO mooring_tenant;

-- How large a blob is, is known when it was read: until then its size is 0, and it is stated once.
CREATE OR REPLACE TRIGGER artifact_is_immutable BEFORE UPDATE ON artifact FOR EACH ROW
  WHEN ((OLD.kind, OLD.source_type, OLD.location, OLD.digest, OLD.algorithm, OLD.media_type)
        IS DISTINCT FROM
        (NEW.kind, NEW.source_type, NEW.location, NEW.digest, NEW.algorithm, NEW.media_type)
        OR (OLD.size_bytes IS DISTINCT FROM NEW.size_bytes AND OLD.size_bytes <> 0))
  EXECUTE FUNCTION artifact_is_immutable();
