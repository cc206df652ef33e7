"""The view of an explanation."""

from typing import Annotated

from msgspec import Meta

from mooring.api.schemas.kernel.fields import Shown, Time
from mooring.core.runtime.why import Why


class CauseView(Shown):
    """One link of the chain of causes."""

    noun: Annotated[
        str, Meta(description="What it is: instance, operation, member, allocation, node, task, adapter, artifact.")
    ]
    id: str
    name: str
    status: str
    text: Annotated[str, Meta(description="The explanation.")]
    code: str | None
    since: Time | None
    last_lines: Annotated[list[str], Meta(description="The last log lines of its program.")]


class NextView(Shown):
    """The one next step."""

    who: Annotated[str, Meta(description="`you`, `project_admin`, `app_team`, `operator`, or `nobody`.")]
    what: str
    command: str | None


class CausesView(Shown):
    """Why something is in its state: the chain of causes, the subject first, and the one next step."""

    chain: list[CauseView]
    next: NextView


def why_view(why: Why) -> CausesView:
    return CausesView(
        chain=[
            CauseView(
                noun=cause.noun,
                id=cause.id,
                name=cause.name,
                status=cause.status,
                text=cause.text,
                code=cause.code,
                since=cause.since,
                last_lines=list(cause.last_lines),
            )
            for cause in why.chain
        ],
        next=NextView(who=why.next.who.value, what=why.next.what, command=why.next.command),
    )
