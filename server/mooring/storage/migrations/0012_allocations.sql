-- Allocations: what was asked for, what it got, and what must never be untrue of the two.
--
-- A claim is race-free because it is one statement: the allocation's move and each slot's change are guarded by what
-- was seen, and one that no longer holds undoes all. What the guards do not see stands here as constraints: a whole
-- machine is nobody else's, a claimed slot belongs to an allocation that stands on its node, no slot is free again
-- without the proof of its teardown, and an address is one sandbox's.

CREATE TABLE allocation_group (
  id text COLLATE "C" PRIMARY KEY,
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C" NOT NULL,
  name text NOT NULL CONSTRAINT allocation_group_name_form CHECK (name ~ '^[a-z][a-z0-9-]{1,38}[a-z0-9]$'),
  same_node boolean NOT NULL,
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  CONSTRAINT allocation_group_of_one_project UNIQUE (tenant_id, project_id, id),
  CONSTRAINT allocation_group_project_of_tenant FOREIGN KEY (tenant_id, project_id) REFERENCES project (tenant_id, id)
);
CREATE INDEX allocation_group_by_project ON allocation_group (project_id, id);
SELECT tenant_lock('allocation_group');
GRANT SELECT, INSERT ON allocation_group TO mooring_tenant;

ALTER TABLE allocation
  ADD COLUMN name text NOT NULL CONSTRAINT allocation_name_form CHECK (name ~ '^[a-z][a-z0-9-]{1,38}[a-z0-9]$'),
  ADD COLUMN shape text NOT NULL CONSTRAINT allocation_shape_known CHECK (shape IN ('baremetal', 'gpu_slice')),
  ADD COLUMN sku_id text COLLATE "C" CONSTRAINT allocation_sku REFERENCES sku (id),
  ADD COLUMN sku_slug text NOT NULL,
  ADD COLUMN gpu_model text NOT NULL,
  ADD COLUMN gpu_count integer NOT NULL CONSTRAINT allocation_gpus_count CHECK (gpu_count >= 0),
  ADD COLUMN regions text[] NOT NULL,          -- where it may be placed: what was asked, the SKU has and policy allowed
  ADD COLUMN price_minor_per_gpu_hour bigint NOT NULL,
  ADD COLUMN currency text NOT NULL,
  ADD COLUMN price_revision integer NOT NULL,
  ADD COLUMN group_id text COLLATE "C",
  ADD COLUMN scheduler_type text CONSTRAINT allocation_scheduler_type_length CHECK (length(scheduler_type) <= 100),
  ADD COLUMN integration_metadata jsonb NOT NULL DEFAULT '{}'
    CONSTRAINT allocation_metadata_length CHECK (length(integration_metadata::text) <= 20000),
  ADD COLUMN deadline_at timestamptz NOT NULL,  -- a place is looked for until then
  ADD COLUMN region text,
  ADD COLUMN host text,
  ADD COLUMN slots jsonb NOT NULL DEFAULT '[]',
  ADD COLUMN subnet text,
  ADD COLUMN address text,                      -- planned; what the node made of it is in `facts`
  ADD COLUMN facts jsonb NOT NULL DEFAULT '{}', -- what the node said when the sandbox stood
  ADD COLUMN blocker text,
  ADD COLUMN task_id text COLLATE "C",          -- the task whose end is waited for
  ADD COLUMN attempts integer NOT NULL DEFAULT 0,
  ADD COLUMN retry_at timestamptz,
  ADD COLUMN placed_at timestamptz,
  ADD COLUMN activated_at timestamptz,
  ADD COLUMN releasing_at timestamptz,
  ADD COLUMN lost_at timestamptz,
  ADD COLUMN failure_detail text,
  ADD COLUMN teardown_proof text CONSTRAINT allocation_teardown_proof_known
    CHECK (teardown_proof IN ('receipts', 'nothing_started', 'written_off')),
  ADD COLUMN receipt_id text COLLATE "C",
  ADD COLUMN correlation_id text NOT NULL,
  ADD COLUMN trace_id text NOT NULL,
  ADD CONSTRAINT allocation_group_of_project FOREIGN KEY (tenant_id, project_id, group_id)
    REFERENCES allocation_group (tenant_id, project_id, id),
  ADD CONSTRAINT allocation_task_of_project FOREIGN KEY (tenant_id, project_id, task_id)
    REFERENCES task (tenant_id, project_id, id);
SELECT lifecycle_requires('allocation', 'status', '{active}', 'activated_at');
SELECT lifecycle_requires('allocation', 'status', '{releasing,release_failed}', 'releasing_at');
SELECT lifecycle_requires('allocation', 'status', '{released}', 'teardown_proof');

CREATE UNIQUE INDEX allocation_name_taken ON allocation (project_id, name) WHERE status <> 'released';
CREATE UNIQUE INDEX allocation_one_exclusive_per_node ON allocation (node_id)
  WHERE shape = 'baremetal' AND node_id IS NOT NULL AND status <> 'released';
CREATE UNIQUE INDEX allocation_address_taken ON allocation (node_id, address)
  WHERE node_id IS NOT NULL AND address IS NOT NULL AND status <> 'released';
CREATE INDEX allocation_by_group ON allocation (group_id, id) WHERE group_id IS NOT NULL;
CREATE INDEX allocation_open ON allocation (status, id) WHERE status <> 'released';
CREATE INDEX allocation_by_task ON allocation (task_id) WHERE task_id IS NOT NULL;

-- The networks of projects on nodes --------------------------------------------------------------------------------------
--
-- One subnet for each project on each node. Every placement that uses one touches its row, so that a subnet is not handed
-- on while somebody moves in.

CREATE TABLE project_network (
  id text COLLATE "C" PRIMARY KEY,
  node_id text COLLATE "C" NOT NULL CONSTRAINT project_network_node REFERENCES node (id),
  tenant_id text COLLATE "C" NOT NULL,
  project_id text COLLATE "C" NOT NULL,
  subnet text NOT NULL,
  revision bigint NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL,
  CONSTRAINT project_network_subnet_taken UNIQUE (node_id, subnet),
  CONSTRAINT project_network_one_per_node UNIQUE (node_id, project_id),
  CONSTRAINT project_network_project_of_tenant FOREIGN KEY (tenant_id, project_id) REFERENCES project (tenant_id, id)
);
SELECT tenant_lock('project_network');
GRANT SELECT ON project_network TO mooring_tenant;

CREATE FUNCTION project_network_is_idle() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  IF EXISTS (SELECT FROM allocation WHERE node_id = OLD.node_id AND project_id = OLD.project_id AND subnet = OLD.subnet
                AND status <> 'released') THEN
    RAISE EXCEPTION 'the network is in use' USING ERRCODE = 'check_violation', CONSTRAINT = 'project_network_is_idle';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER project_network_is_idle AFTER UPDATE ON project_network DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (OLD.project_id <> NEW.project_id OR OLD.subnet <> NEW.subnet) EXECUTE FUNCTION project_network_is_idle();

-- Quota: where a policy names a maximum, requests of one project are decided one after the other, on this row.
CREATE TABLE project_quota (
  id text COLLATE "C" NOT NULL,   -- the project's
  tenant_id text COLLATE "C" NOT NULL,
  revision bigint NOT NULL DEFAULT 0,
  CONSTRAINT project_quota_pkey PRIMARY KEY (id, tenant_id),
  CONSTRAINT project_quota_of_project FOREIGN KEY (tenant_id, id) REFERENCES project (tenant_id, id)
);
SELECT tenant_lock('project_quota');
GRANT SELECT, INSERT, UPDATE ON project_quota TO mooring_tenant;
INSERT INTO project_quota (id, tenant_id) SELECT id, tenant_id FROM project;
CREATE FUNCTION project_has_quota() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  INSERT INTO project_quota (id, tenant_id) VALUES (NEW.id, NEW.tenant_id);
  RETURN NULL;
END $$;
CREATE TRIGGER project_has_quota AFTER INSERT ON project FOR EACH ROW EXECUTE FUNCTION project_has_quota();

-- What a claim is --------------------------------------------------------------------------------------------------------

CREATE FUNCTION slot_claim_is_the_nodes() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM allocation WHERE id = NEW.allocation_id AND node_id = NEW.node_id
                    AND status NOT IN ('requested', 'released')) THEN
    RAISE EXCEPTION 'a slot is claimed for an allocation that stands on its node'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'slot_claim_stands_on_the_node';
  END IF;
  IF EXISTS (SELECT FROM allocation WHERE node_id = NEW.node_id AND shape = 'baremetal' AND status <> 'released'
                AND id <> NEW.allocation_id) THEN
    RAISE EXCEPTION 'the machine is taken as a whole'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'slot_node_is_shared';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER slot_claim_is_the_nodes AFTER UPDATE ON slot DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (OLD.status <> 'claimed' AND NEW.status = 'claimed') EXECUTE FUNCTION slot_claim_is_the_nodes();

CREATE FUNCTION slot_freed_is_proven() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM allocation WHERE id = OLD.allocation_id AND status = 'released'
                    AND teardown_proof IN ('receipts', 'nothing_started')) THEN
    RAISE EXCEPTION 'a slot is free again only when its allocation was seen to be gone'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'slot_freed_is_proven';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER slot_freed_is_proven AFTER UPDATE ON slot DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (OLD.allocation_id IS NOT NULL AND NEW.status = 'free') EXECUTE FUNCTION slot_freed_is_proven();

CREATE FUNCTION allocation_has_its_place() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  IF (SELECT count(*) FROM slot WHERE allocation_id = NEW.id AND node_id = NEW.node_id AND status = 'claimed')
     <> NEW.gpu_count THEN
    RAISE EXCEPTION 'an allocation is placed with all of its slots'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'allocation_has_its_slots';
  END IF;
  IF NEW.shape = 'baremetal' THEN
    -- Claims of slots hold the node's row shared; so none comes in between this look and the commit.
    PERFORM FROM node WHERE id = NEW.node_id FOR NO KEY UPDATE;
    IF EXISTS (SELECT FROM allocation WHERE node_id = NEW.node_id AND id <> NEW.id AND status <> 'released')
       OR EXISTS (SELECT FROM slot WHERE node_id = NEW.node_id AND allocation_id IS DISTINCT FROM NEW.id) THEN
      RAISE EXCEPTION 'a whole machine is taken while nothing else is on it'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'allocation_machine_is_idle';
    END IF;
  END IF;
  IF NEW.subnet IS NOT NULL AND NOT EXISTS (SELECT FROM project_network WHERE node_id = NEW.node_id
       AND project_id = NEW.project_id AND subnet = NEW.subnet) THEN
    RAISE EXCEPTION 'the subnet is not the project''s on this node'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'allocation_subnet_is_the_projects';
  END IF;
  IF NEW.group_id IS NOT NULL THEN
    PERFORM FROM allocation_group WHERE id = NEW.group_id FOR NO KEY UPDATE;
    IF EXISTS (SELECT FROM allocation_group g JOIN allocation a ON a.group_id = g.id
                WHERE g.id = NEW.group_id AND g.same_node AND a.status <> 'released' AND a.node_id <> NEW.node_id) THEN
      RAISE EXCEPTION 'the group stays on one node'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'allocation_group_stays_together';
    END IF;
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER allocation_has_its_place AFTER UPDATE ON allocation DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (OLD.status = 'requested' AND NEW.status = 'provisioning') EXECUTE FUNCTION allocation_has_its_place();

-- What an end is: a clean receipt of its own, or nothing that any node ever began, or a node that was written off.
CREATE FUNCTION allocation_released_is_proven() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
DECLARE
  proven boolean;
BEGIN
  proven := CASE NEW.teardown_proof
    WHEN 'receipts' THEN EXISTS (SELECT FROM receipt WHERE id = NEW.receipt_id AND allocation_id = NEW.id
                                    AND owner = NEW.id AND clean AND task_type = 'sandbox.destroy')
    WHEN 'nothing_started' THEN NOT EXISTS (SELECT FROM task WHERE allocation_id = NEW.id
                                    AND (first_claimed_at IS NOT NULL OR status NOT IN ('cancelled', 'expired')))
    ELSE EXISTS (SELECT FROM node WHERE id = NEW.node_id AND written_off_at IS NOT NULL) END;
  IF NOT proven THEN
    RAISE EXCEPTION 'the end of an allocation is proven' USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME;
  END IF;
  IF EXISTS (SELECT FROM slot WHERE allocation_id = NEW.id AND status IN ('claimed', 'cleanup_blocked')) THEN
    RAISE EXCEPTION 'a released allocation has no slots' USING ERRCODE = 'check_violation',
      CONSTRAINT = 'allocation_released_has_no_slots';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER allocation_released_is_proven AFTER UPDATE ON allocation DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW WHEN (OLD.status <> 'released' AND NEW.status = 'released') EXECUTE FUNCTION allocation_released_is_proven();
