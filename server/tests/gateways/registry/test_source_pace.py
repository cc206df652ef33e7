"""The pace of a source, on a clock that jumps: what drips is too slow, what says nothing any more has stalled."""

import asyncio
import selectors
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Final

import httpx
import pytest

from mooring.core.kernel.errors import Code, Refusal
from mooring.gateways.egress import EgressRequest, OpenEgressAnswer
from mooring.gateways.registry.source_stream import BodyRequest, SourceReader, SourceTimeouts
from tests.support.rows import every_row
from tests.support.waiting import linger

PATIENCE: Final = SourceTimeouts(window_seconds=30.0, window_bytes=1_000, silence_seconds=60.0, attempts=1)
Gap = tuple[float, int]  # so long nothing comes, and then so many bytes


class Jumps(selectors.DefaultSelector):
    """Sleeping moves the clock and returns at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += max(timeout or 0.0, 0.0)
        return super().select(None if timeout is None else 0)


class JumpingLoop(asyncio.SelectorEventLoop):
    """A loop whose time passes only when nobody in it has anything to do, and then at once."""

    def __init__(self) -> None:
        self._jumps = Jumps()
        super().__init__(self._jumps)

    def time(self) -> float:
        return self._jumps.now


class ScriptedSource:
    """A source that sends at given times, and then nothing."""

    def __init__(self, gaps: Sequence[Gap]) -> None:
        self._gaps = gaps

    async def _body(self) -> AsyncIterator[bytes]:
        for seconds, size in self._gaps:
            await linger(seconds)
            yield bytes(size)
        await asyncio.Event().wait()

    @asynccontextmanager
    async def open(self, request: EgressRequest) -> AsyncIterator[OpenEgressAnswer]:
        """The answer; its body comes when it comes."""
        yield OpenEgressAnswer(
            httpx.Response(200, content=self._body()), ip_address("192.0.2.1"), request.answer_limit_bytes
        )


def ended(gaps: Sequence[Gap], patience: SourceTimeouts = PATIENCE) -> tuple[Code, float]:
    """How reading ends that was not worth going on with, and when."""

    async def read() -> tuple[Code, float]:
        with pytest.raises(Refusal) as refused:
            await SourceReader(ScriptedSource(gaps), patience=patience).stream(
                BodyRequest("http://source.example/w", 1_000_000)
            )
        return refused.value.code, asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(read())


@every_row(
    ("gaps", "code", "seconds"),
    [
        ([(1.0, 1)] * 60, Code.SOURCE_TOO_SLOW, 30.0),
        ([(1.0, 33)] * 60, Code.SOURCE_TOO_SLOW, 30.0),
        ([(14.0, 1), (14.0, 1)], Code.SOURCE_TOO_SLOW, 30.0),
        ([(16.0, 1)], Code.SOURCE_TOO_SLOW, 30.0),
        ([(14.0, 1)], Code.SOURCE_STALLED, 30.0),
        ([], Code.SOURCE_STALLED, 30.0),
        ([(1.0, 100)] * 60, Code.SOURCE_STALLED, 90.0),
        ([(29.0, 1_000), (29.0, 1_000)], Code.SOURCE_STALLED, 88.0),
        ([(29.0, 1_000), (1.0, 1), (28.0, 1)], Code.SOURCE_TOO_SLOW, 59.0),
    ],
    ids=["drips", "almost-enough", "now-and-then", "a-late-byte", "a-byte-and-no-more", "nothing", "enough-for-a-while",
         "just-enough", "enough-once"],
)  # fmt: skip
def test_what_drips_is_too_slow_and_what_says_nothing_has_stalled(gaps: list[Gap], code: Code, seconds: float) -> None:
    found, at = ended(gaps)
    assert found is code
    assert at == pytest.approx(seconds, abs=0.001)


def test_where_no_silence_is_counted_both_are_too_slow() -> None:
    uncounted = SourceTimeouts(window_seconds=30.0, window_bytes=1_000, attempts=1)
    assert {ended(gaps, uncounted)[0] for gaps in ([], [(1.0, 1)] * 60)} == {Code.SOURCE_TOO_SLOW}
