"""The lifecycle of promotion: how widely an artifact or an app version is offered.

It is one of an artifact's two states; the other is trust, which is independent of it. App versions use the same table
and are never promoted further than their artifacts. The table says which transitions exist; `artifact_promotion` and
`app_version` check their other conditions (lint and smoke, the states of the artifacts, a grace period, no hold).
"""

from enum import StrEnum

from mooring.core.kernel.lifecycle import Lifecycle, Transition, Who


class PromotionState(StrEnum):
    DRAFT = "draft"
    STAGED = "staged"
    CANARY = "canary"
    ACTIVE = "active"
    DEPRECATED = "deprecated"
    RETIRED = "retired"


class PromotionTrigger(StrEnum):
    STAGE = "stage"
    CANARY = "canary"
    ACTIVATE = "activate"
    ROLLBACK = "rollback"
    DEPRECATE = "deprecate"
    WITHDRAW = "withdraw"
    RETIRE = "retire"


S, T = PromotionState, PromotionTrigger

PROMOTION = Lifecycle(
    name="promotion",
    about="How widely an artifact or an app version is offered. "
    "A version is never promoted further than its artifacts.",
    states=PromotionState,
    triggers=PromotionTrigger,
    initial=S.DRAFT,
    meaning={
        S.DRAFT: "registered; it may have errors, and nobody can launch it",
        S.STAGED: "lint and smoke passed; it is not offered to any project yet",
        S.CANARY: "offered to the share of projects that the version's canary percentage selects",
        S.ACTIVE: "offered to every entitled project",
        S.DEPRECATED: "superseded: existing instances continue, new ones are refused",
        S.RETIRED: "permanently out of use; it stays readable",
    },
    edges=(
        Transition(S.DRAFT, T.STAGE, S.STAGED, Who.USER, "Lint and smoke passed, so it may be tried."),
        Transition(S.DRAFT, T.WITHDRAW, S.RETIRED, Who.USER, "The draft is not needed any more."),
        Transition(S.STAGED, T.CANARY, S.CANARY, Who.USER, "A first share of the projects gets it."),
        Transition(S.STAGED, T.WITHDRAW, S.RETIRED, Who.USER, "It is given up before any project got it."),
        Transition(S.CANARY, T.ACTIVATE, S.ACTIVE, Who.USER, "It works well for its first projects."),
        Transition(S.CANARY, T.ROLLBACK, S.STAGED, Who.USER, "It works badly for its first projects."),
        Transition(
            S.ACTIVE,
            T.DEPRECATE,
            S.DEPRECATED,
            Who.USER,
            "Another one supersedes it, or there is a reason why none does.",
        ),
        Transition(S.DEPRECATED, T.RETIRE, S.RETIRED, Who.USER, "The grace period is over and no hold is left."),
    ),
    requires={
        S.DEPRECATED: frozenset({"deprecated_at"}),
        S.RETIRED: frozenset({"retired_at"}),
    },
)
