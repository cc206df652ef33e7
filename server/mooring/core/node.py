"""Node: a machine whose agent dials out to the platform.

The state says whether the platform gives it new work. Whether it can be reached, and since when, is
observed beside the state. Retiring revokes its key; with live allocations that is done only by a write-off.
"""

from enum import StrEnum

from mooring.core.machine import Edge, Machine, Who


class NodeState(StrEnum):
    ENROLLED = "enrolled"
    READY = "ready"
    DRAINING = "draining"
    DRAINED = "drained"
    RETIRED = "retired"


class NodeTrigger(StrEnum):
    REPORT_READY = "report_ready"
    DRAIN = "drain"
    FINISH_DRAIN = "finish_drain"
    RESUME = "resume"
    RETIRE = "retire"


S, T = NodeState, NodeTrigger

NODE = Machine(
    name="node",
    about="A machine whose agent dials out to the platform. "
    "Whether it can be reached, and since when, is observed beside the state.",
    states=NodeState,
    triggers=NodeTrigger,
    initial=S.ENROLLED,
    meaning={
        S.ENROLLED: "its key is known; its agent has not reported what it has",
        S.READY: "it takes new allocations",
        S.DRAINING: "it takes no new allocations, and those that it has come to their end",
        S.DRAINED: "it has no allocations and takes none",
        S.RETIRED: "gone for ever: its key is revoked and its slots are out of use",
    },
    edges=(
        Edge(S.ENROLLED, T.REPORT_READY, S.READY, Who.AGENT, "Its agent proved its key and told its slots."),
        Edge(S.ENROLLED, T.RETIRE, S.RETIRED, Who.ADMIN, "It will not come into use after all."),
        Edge(S.READY, T.DRAIN, S.DRAINING, Who.ADMIN, "An operator wants it empty, for repair or for good."),
        Edge(S.READY, T.RETIRE, S.RETIRED, Who.ADMIN, "It goes at once: empty, or by write-off."),
        Edge(S.DRAINING, T.FINISH_DRAIN, S.DRAINED, Who.WORKER, "Its last allocation is released."),
        Edge(S.DRAINING, T.RESUME, S.READY, Who.ADMIN, "An operator takes the drain back in time."),
        Edge(S.DRAINING, T.RETIRE, S.RETIRED, Who.ADMIN, "It is lost while it drains, and is written off."),
        Edge(S.DRAINED, T.RESUME, S.READY, Who.ADMIN, "An operator puts it back to work."),
        Edge(S.DRAINED, T.RETIRE, S.RETIRED, Who.ADMIN, "It is empty, so taking it out disturbs nobody."),
    ),
    requires={S.RETIRED: frozenset({"retired_at", "retirement_reason"})},
)
