"""Questions about the simulated world: whether something is under way, whether all is at rest, whether it is over."""

from typing import Final

UNDER_WAY: Final = "SELECT EXISTS (SELECT FROM operation WHERE finished_at IS NULL)"
AT_REST: Final = """
SELECT NOT EXISTS (SELECT FROM operation WHERE finished_at IS NULL)
   AND NOT EXISTS (SELECT FROM allocation a WHERE a.status NOT IN ('active', 'released'))
   AND NOT EXISTS (SELECT FROM task t JOIN node n ON n.id = t.node_id
                    WHERE t.finished_at IS NULL AND n.status <> 'retired')
   AND NOT EXISTS (
     SELECT FROM member m JOIN instance i ON i.id = m.instance_id
       LEFT JOIN allocation a ON a.id = m.allocation_id LEFT JOIN node n ON n.id = a.node_id
      WHERE m.status IN ('requested', 'joining', 'removing') OR (i.status = 'failed' AND m.status <> 'removed')
         OR (n.unreachable_since IS NOT NULL AND m.status NOT IN ('failed', 'removed'))
         OR (a.status = 'released' AND m.status NOT IN ('failed', 'removed')))
   AND NOT EXISTS (SELECT FROM instance WHERE status IN ('created', 'starting', 'stopping'))
   AND NOT EXISTS (SELECT FROM instance i WHERE i.status = 'running' AND (i.distrust IS NOT NULL OR EXISTS (
     SELECT FROM member m WHERE m.instance_id = i.id AND m.status IN ('draining', 'drained')
        AND m.holds @> '[{"owner": "trust"}]')))"""
"""Every operation has ended, every member is as it stays, what failed is torn down, and lost trust is forgotten."""
OVER: Final = """
SELECT (SELECT status = 'stopped' FROM instance WHERE id = $1)
   AND NOT EXISTS (SELECT FROM allocation a WHERE a.status NOT IN ('active', 'released'))
   AND NOT EXISTS (SELECT FROM task t JOIN node n ON n.id = t.node_id
                    WHERE t.finished_at IS NULL AND n.status <> 'retired')
   AND NOT EXISTS (SELECT FROM allocation a JOIN member m ON m.allocation_id = a.id
                    WHERE a.status = 'active' AND m.owns_allocation AND NOT m.keep_allocation
                      AND a.id <> ALL ($2::text[]))"""
