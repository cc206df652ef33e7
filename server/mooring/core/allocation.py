"""Allocation: a tenant's claim on a whole machine or on slots of one.

An allocation ends by a teardown that a node has observed, or by a write-off that an admin answers for. Also
a half-made one is owed a teardown, which is why `failed` is not final. Whether a slot is free is the slot's
own matter: it stays `cleanup_blocked` until a clean receipt, and after a write-off until the node is swept
or gone.
"""

from enum import StrEnum

from mooring.core.machine import Edge, Machine, Who


class AllocationState(StrEnum):
    REQUESTED = "requested"
    PROVISIONING = "provisioning"
    ACTIVE = "active"
    RELEASING = "releasing"
    RELEASE_FAILED = "release_failed"
    RELEASED = "released"
    FAILED = "failed"


class AllocationTrigger(StrEnum):
    PROVISION = "provision"
    ACTIVATE = "activate"
    FAIL = "fail"
    RELEASE = "release"
    FAIL_TEARDOWN = "fail_teardown"
    FINISH_TEARDOWN = "finish_teardown"
    WRITE_OFF = "write_off"


S, T = AllocationState, AllocationTrigger

ALLOCATION = Machine(
    name="allocation",
    about="A tenant's claim on a whole machine (`baremetal`) or on slots of one (`gpu_slice`).",
    states=AllocationState,
    triggers=AllocationTrigger,
    initial=S.REQUESTED,
    meaning={
        S.REQUESTED: "accepted; no place was chosen for it yet",
        S.PROVISIONING: "a place is reserved, and its node makes the sandbox",
        S.ACTIVE: "the sandbox stands, and apps may be launched into it",
        S.RELEASING: "the node tears down what belongs to it, and looks",
        S.RELEASE_FAILED: "the node tore down, looked, and found something left; its slots stay blocked",
        S.RELEASED: "ended, by a clean receipt or by a write-off",
        S.FAILED: "it never came to stand; what was half made is still owed a teardown",
    },
    edges=(
        Edge(S.REQUESTED, T.PROVISION, S.PROVISIONING, Who.WORKER, "Free slots were found and reserved."),
        Edge(S.REQUESTED, T.FAIL, S.FAILED, Who.WORKER, "No place was found before the deadline."),
        Edge(S.PROVISIONING, T.ACTIVATE, S.ACTIVE, Who.AGENT, "The node reports that the sandbox stands."),
        Edge(S.PROVISIONING, T.FAIL, S.FAILED, Who.WORKER, "The node could not make the sandbox in time."),
        Edge(S.ACTIVE, T.RELEASE, S.RELEASING, Who.USER, "The tenant gives it back."),
        Edge(S.FAILED, T.RELEASE, S.RELEASING, Who.WORKER, "A half-made sandbox is still owed a teardown."),
        Edge(S.RELEASING, T.FINISH_TEARDOWN, S.RELEASED, Who.AGENT, "The node looked and found nothing."),
        Edge(
            S.RELEASING,
            T.FAIL_TEARDOWN,
            S.RELEASE_FAILED,
            Who.AGENT,
            "The node looked and found something that it could not remove.",
        ),
        Edge(
            S.RELEASING,
            T.WRITE_OFF,
            S.RELEASED,
            Who.ADMIN,
            "The node is lost for ever; an admin retires it and says what may be left.",
        ),
        Edge(
            S.RELEASE_FAILED,
            T.RELEASE,
            S.RELEASING,
            Who.WORKER,
            "The teardown is tried again after a pause, or at once when somebody asks.",
        ),
        Edge(
            S.RELEASE_FAILED,
            T.WRITE_OFF,
            S.RELEASED,
            Who.ADMIN,
            "What is left will never be removed; an admin retires the node and answers for it.",
        ),
    ),
    requires={
        S.PROVISIONING: frozenset({"node_id"}),
        S.ACTIVE: frozenset({"node_id"}),
        S.RELEASED: frozenset({"released_at"}),
        S.FAILED: frozenset({"failed_at", "failure_code"}),
    },
)
