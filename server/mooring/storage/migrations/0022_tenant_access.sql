-- Admins list the sessions and personal tokens of their users; tokens of nodes are by far the most.
CREATE INDEX token_of_users ON token ((coalesce(tenant_id, '')), id) WHERE kind IN ('session', 'personal');

-- The networks from which a tenant's users and service accounts may call; empty means from everywhere.
ALTER TABLE tenant
  ADD COLUMN source_networks text[] NOT NULL DEFAULT '{}'
    CONSTRAINT tenant_source_networks_count CHECK (cardinality(source_networks) <= 100);
