"""Query and answer of a proof."""

from datetime import datetime
from typing import Annotated

from msgspec import Meta

from mooring.api.page import Cursor
from mooring.api.schemas.kernel.fields import Shown, Strict, Time
from mooring.commands.money.proof import ProvenLaw
from mooring.core.kernel.validation import invalid

Hour = Annotated[str, Meta(pattern=r"^20\d\d-[01]\d-[0-3]\dT[0-2]\d:00:00Z$", examples=["2026-03-01T00:00:00Z"])]


def hour_in(text: str | None, path: str) -> datetime | None:
    """The whole hour, in UTC, that the text names."""
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError as error:
        raise invalid(path, "a whole hour such as 2026-03-01T00:00:00Z") from error


class ProofQuery(Strict):
    """Which hours are rated again, and where to go on."""

    since: (
        Annotated[Hour, Meta(description="From this hour on. Default: the beginning of the previous month.")] | None
    ) = None
    until: Annotated[Hour, Meta(description="Up to this hour. Default: the last charged one.")] | None = None
    cursor: Cursor | None = None


class ProvenLawView(Shown):
    """What one step of the proof says about one law; add up the steps of a law."""

    law: str
    sentence: str
    checked: Annotated[int, Meta(description="How much was checked: rows, lines, or GPU-seconds.")]
    broken: Annotated[int, Meta(description="How often the law is broken; 0 is what should be.")]
    counterexample: Annotated[str | None, Meta(description="The first thing that breaks it.")]
    counts: Annotated[
        dict[str, int], Meta(description="Of `rerated` the differences by class, of `gpu_seconds` the seconds by rule.")
    ]
    proven_until: Annotated[
        Time | None, Meta(description="Up to which hour this step looked; null for a law of whole tables.")
    ]


def proven_view(law: ProvenLaw) -> ProvenLawView:
    proven = law.proven
    return ProvenLawView(
        law=law.key,
        sentence=law.sentence,
        checked=proven.checked,
        broken=proven.broken,
        counterexample=proven.counterexample,
        counts=dict(proven.counts),
        proven_until=law.until,
    )
