"""Response bodies for the replay of an instance and its transitions."""

from typing import Annotated

from msgspec import Meta

from mooring.api.schemas.kernel.fields import Shown, Strict, Time
from mooring.core.records.replay import InstanceReplay, StateAt, Transition

Status = Annotated[str, Meta(description="A state of its lifecycle.")]
Trigger = Annotated[str, Meta(description="What led to this state: the name of the transition.")]


class ReplayQuery(Strict):
    """The moment; without it, now."""

    at: Annotated[Time, Meta(description="The moment to go back to, in RFC 3339.")] | None = None


class ReplayedState(Shown):
    """The state of one subject at the moment."""

    id: str
    name: Annotated[str, Meta(description="Its name; the kind of an operation.")]
    component_key: str | None
    status: Status
    since: Time
    trigger: Trigger
    generation: int
    correlation_id: str


class InstanceReplayView(Shown):
    """An instance, its members and its operations as they were at a moment."""

    at: Time
    changed_at: Annotated[Time, Meta(description="The last change up to the moment.")]
    previous_at: Annotated[Time | None, Meta(description="The change before that one; null if it was the first.")]
    next_at: Annotated[Time | None, Meta(description="The first change after the moment; null if there is none.")]
    instance: ReplayedState
    members: Annotated[list[ReplayedState], Meta(description="The newest 1,000 that existed at the moment.")]
    operations: Annotated[
        list[ReplayedState],
        Meta(description="The newest 200 that existed at the moment, without actions that only read."),
    ]


class TransitionView(Shown):
    """One transition of an instance, a member or an operation."""

    at: Time
    noun: Annotated[str, Meta(description="`instance`, `member` or `operation`.")]
    subject_id: str
    name: str
    generation: int
    source: Annotated[str | None, Meta(description="The state before; null when the subject was created.")]
    trigger: Trigger
    target: Annotated[str, Meta(description="The state after.")]
    correlation_id: str


def replay_view(replay: InstanceReplay) -> InstanceReplayView:
    return InstanceReplayView(
        at=replay.at,
        changed_at=replay.changed_at,
        previous_at=replay.previous_at,
        next_at=replay.next_at,
        instance=_state(replay.instance),
        members=[_state(each) for each in replay.members],
        operations=[_state(each) for each in replay.operations],
    )


def _state(state: StateAt) -> ReplayedState:
    return ReplayedState(
        id=state.id,
        name=state.name,
        component_key=state.component_key,
        status=state.status,
        since=state.since,
        trigger=state.trigger,
        generation=state.generation,
        correlation_id=state.correlation_id,
    )


def transition_view(transition: Transition) -> TransitionView:
    return TransitionView(
        at=transition.occurred_at,
        noun=transition.noun,
        subject_id=transition.subject_id,
        name=transition.name,
        generation=transition.generation,
        source=transition.source,
        trigger=transition.trigger,
        target=transition.target,
        correlation_id=transition.correlation_id,
    )
