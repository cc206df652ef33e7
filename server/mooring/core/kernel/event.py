"""Events as readers get them, in a stable order.

An event's position in the stream is (epoch, tx, seq), and a cursor is that position as opaque text. Readers stay
behind the oldest open transaction, so no event can appear before a cursor that was already handed out.
"""

import base64
import binascii
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from mooring.core.kernel.errors import Code, Refusal


class StreamPosition(NamedTuple):
    """A position in the event stream."""

    epoch: int
    tx: int
    seq: int

    def cursor(self) -> str:
        """The position as opaque text."""
        return base64.urlsafe_b64encode(f"e1.{self.epoch}.{self.tx}.{self.seq}".encode()).decode().rstrip("=")


BEGINNING: Final = StreamPosition(0, 0, 0)
_LARGEST: Final = (2**31 - 1, 2**63 - 1, 2**63 - 1)


def read_cursor(text: str) -> StreamPosition:
    """The position that a cursor names; a Refusal when the platform did not make this cursor."""
    try:
        plain = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode("ascii")
        form, *numbers = plain.split(".")
        epoch, tx, seq = (int(number) for number in numbers if number.isdigit())
    except (ValueError, binascii.Error, UnicodeError) as error:
        raise _not_ours() from error
    position = StreamPosition(epoch, tx, seq)
    if (
        form != "e1"
        or position.cursor() != text
        or any(value > largest for value, largest in zip(position, _LARGEST, strict=True))
    ):
        raise _not_ours()
    return position


def _not_ours() -> Refusal:
    return Refusal(Code.CURSOR_INVALID, "this is not a cursor of the event stream")


@dataclass(frozen=True, slots=True)
class Event:
    position: StreamPosition
    id: str
    type: str
    noun: str
    subject_id: str
    generation: int | None
    tenant_id: str | None
    project_id: str | None
    app_slug: str | None
    app_instance_id: str | None
    actor_kind: str
    actor_id: str
    correlation_id: str
    trace_id: str
    occurred_at: datetime
    data: dict[str, object]


def public_event(event: Event, *, withhold: bool = False) -> dict[str, Any]:
    """An event as the API, the stream and webhooks publish it.

    With `withhold` the platform is the reader: it learns that something happened in a tenant, but not the data.
    """
    hidden = withhold and event.tenant_id is not None
    return {
        "id": event.id,
        "cursor": event.position.cursor(),
        "type": event.type,
        "noun": event.noun,
        "subject_id": event.subject_id,
        "generation": event.generation,
        "org_id": event.tenant_id,
        "project_id": event.project_id,
        "app_slug": event.app_slug,
        "app_instance_id": event.app_instance_id,
        "actor_kind": event.actor_kind,
        "actor_id": event.actor_id,
        "correlation_id": event.correlation_id,
        "trace_id": event.trace_id,
        "occurred_at": event.occurred_at,
        "data": {} if hidden else event.data,
        "data_withheld": hidden,
    }
