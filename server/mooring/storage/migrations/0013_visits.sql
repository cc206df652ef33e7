-- Visits: the right of somebody to reach one endpoint, or to run one command, for a bounded time. Tickets, links and
-- sessions are kept as their SHA-256.

CREATE TABLE visit (
  id text COLLATE "C" CONSTRAINT visit_pkey PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C" NOT NULL,
  allocation_id text COLLATE "C" NOT NULL,
  node_id text COLLATE "C" NOT NULL REFERENCES node (id),
  owner text COLLATE "C" NOT NULL CONSTRAINT visit_owner_of_allocation
    CHECK (owner = allocation_id OR starts_with(owner, allocation_id || '/')),
  kind text NOT NULL CONSTRAINT visit_kind_known CHECK (kind IN ('connect', 'browse', 'exec')),
  endpoint_id text COLLATE "C",
  port integer CONSTRAINT visit_port_counts CHECK (port BETWEEN 1 AND 65535),
  argv text[],
  run_as text,
  columns integer,
  rows integer,
  principal_id text COLLATE "C" NOT NULL,
  token_id text COLLATE "C" NOT NULL,
  ticket_hash bytea NOT NULL CONSTRAINT visit_ticket_hash_length CHECK (length(ticket_hash) = 32),
  correlation_id text NOT NULL,
  trace_id text NOT NULL,
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL,
  opened_at timestamptz,
  CONSTRAINT visit_allocation_of_project FOREIGN KEY (tenant_id, project_id, allocation_id)
    REFERENCES allocation (tenant_id, project_id, id),
  CONSTRAINT visit_has_aim CHECK ((kind = 'exec') = (argv IS NOT NULL) AND (kind = 'exec') <> (port IS NOT NULL))
);
CREATE UNIQUE INDEX visit_by_ticket ON visit (ticket_hash);
CREATE INDEX visit_by_expiry ON visit (expires_at);
CREATE INDEX visit_by_allocation ON visit (allocation_id);
SELECT tenant_lock('visit');
GRANT SELECT, INSERT, UPDATE ON visit TO mooring_tenant;

-- Endpoints are read from the tasks that declared them.
CREATE INDEX task_with_endpoint ON task (project_id, id) WHERE arguments ? 'endpoint';
