"""Promotion: how far an artifact or an app version has come towards everybody.

It is one of an artifact's two dimensions; the other is trust, which moves for reasons of its own. An app
version goes through the same table and is never further than its artifacts. The table says which moves
exist; what a move needs besides (lint and smoke, the states of the artifacts, a grace period, no hold) is
decided where the catalog is.
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
    about="How far an artifact or an app version has come towards everybody. "
    "A version is never further than its artifacts.",
    states=PromotionState,
    triggers=PromotionTrigger,
    initial=S.DRAFT,
    meaning={
        S.DRAFT: "registered; it may still be wrong, and nobody can launch it",
        S.STAGED: "lint and smoke passed; it waits for its first projects",
        S.CANARY: "offered to the share of the projects that the version's canary percentage picks",
        S.ACTIVE: "offered to every entitled project",
        S.DEPRECATED: "superseded: existing instances go on, new ones are refused",
        S.RETIRED: "out of use for ever; it stays readable",
    },
    edges=(
        Transition(S.DRAFT, T.STAGE, S.STAGED, Who.USER, "Lint and smoke passed, so it may be tried."),
        Transition(S.DRAFT, T.WITHDRAW, S.RETIRED, Who.USER, "A draft that nobody will need is taken back."),
        Transition(S.STAGED, T.CANARY, S.CANARY, Who.USER, "A first share of the projects shall meet it."),
        Transition(S.STAGED, T.WITHDRAW, S.RETIRED, Who.USER, "It was given up before any project met it."),
        Transition(S.CANARY, T.ACTIVATE, S.ACTIVE, Who.USER, "Its first projects fared well with it."),
        Transition(S.CANARY, T.ROLLBACK, S.STAGED, Who.USER, "Its first projects fared badly with it."),
        Transition(S.ACTIVE, T.DEPRECATE, S.DEPRECATED, Who.USER, "Another supersedes it, or a reason is given."),
        Transition(S.DEPRECATED, T.RETIRE, S.RETIRED, Who.USER, "The grace period is over and no hold is left."),
    ),
    requires={
        S.DEPRECATED: frozenset({"deprecated_at"}),
        S.RETIRED: frozenset({"retired_at"}),
    },
)
