"""Attachment: a project's use of an instance that belongs to another project of its tenant.

It exists only for instances whose control plane is the tenant's. The project that owns the instance agrees
or refuses; both ends stay readable afterwards.
"""

from enum import StrEnum

from mooring.core.machine import Edge, Machine, Who


class AttachmentState(StrEnum):
    REQUESTED = "requested"
    ACTIVE = "active"
    DETACHING = "detaching"
    DETACHED = "detached"
    REFUSED = "refused"


class AttachmentTrigger(StrEnum):
    ACTIVATE = "activate"
    REFUSE = "refuse"
    DETACH = "detach"
    FINISH_DETACH = "finish_detach"


S, T = AttachmentState, AttachmentTrigger

ATTACHMENT = Machine(
    name="attachment",
    about="A project's use of an instance that belongs to another project of its tenant.",
    states=AttachmentState,
    triggers=AttachmentTrigger,
    initial=S.REQUESTED,
    meaning={
        S.REQUESTED: "asked for; the owning project has not answered",
        S.ACTIVE: "the project uses the instance",
        S.DETACHING: "the use is being ended, and what belongs to it is taken back",
        S.DETACHED: "the use has ended; the record stays readable",
        S.REFUSED: "the owning project did not agree",
    },
    edges=(
        Edge(S.REQUESTED, T.ACTIVATE, S.ACTIVE, Who.USER, "The owning project agrees to share its instance."),
        Edge(S.REQUESTED, T.REFUSE, S.REFUSED, Who.USER, "The owning project does not agree, and says why."),
        Edge(S.ACTIVE, T.DETACH, S.DETACHING, Who.USER, "Either project ends it, or the instance is stopped."),
        Edge(
            S.DETACHING,
            T.FINISH_DETACH,
            S.DETACHED,
            Who.WORKER,
            "What the project was given is taken back, by the adapter or after the time that it has for it.",
        ),
    ),
    requires={
        S.DETACHED: frozenset({"detached_at"}),
        S.REFUSED: frozenset({"refused_at", "refusal_reason"}),
    },
)
