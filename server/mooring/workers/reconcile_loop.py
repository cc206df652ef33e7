"""The reconcile loop: takes each object that has a next step through it, until no object has one.

A pass reads the ids that are due in batches, reads a snapshot of each object, and takes one step of each. A pass that
took any step is followed by another, because one step may make the next one due. A step that loses its race to another
writer counts as not taken: if it is still due, the next pass finds it.

An object whose step fails is left alone for a while, so that it holds up no other. Only that is remembered between two
passes: any number of workers may run the loop for the same objects, and one that dies leaves only untaken steps behind.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Generic, TypeVar

from mooring.core.kernel.errors import Refusal
from mooring.gateways.clock import Clock

RUN_SECONDS: Final = 20.0  # one run ends after so long, even if more is due: the worker's other duties come first
FAILURE_PAUSE_SECONDS: Final = 30.0
CONCURRENT_STEPS: Final = 4

Snapshot = TypeVar("Snapshot")

log = logging.getLogger("mooring.reconcile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled(Generic[Snapshot]):
    """A kind of object that is reconciled: how to find what is due, read it and take its next step."""

    noun: str
    due: Callable[[datetime, str], Awaitable[list[str]]]  # ids that are due at this time, after this id, in order
    snapshots: Callable[[datetime, Sequence[str]], Awaitable[list[Snapshot]]]
    id_of: Callable[[Snapshot], str]
    step: Callable[[Snapshot], Awaitable[bool]]  # False when there was no step, or another writer was faster


class ReconcileLoop(Generic[Snapshot]):
    def __init__(self, kind: Reconciled[Snapshot], clock: Clock) -> None:
        self._kind = kind
        self._clock = clock
        self._paused_until: dict[str, float] = {}  # by id: objects whose last step failed

    async def run(self) -> int:
        """Take every next step there is, until a whole pass finds none; returns how many were taken."""
        kind, deadline = self._kind, time.monotonic() + RUN_SECONDS
        self._paused_until = {each: end for each, end in self._paused_until.items() if end > time.monotonic()}
        taken, taken_in_pass, after = 0, 0, ""
        while time.monotonic() < deadline:
            now = self._clock.now()
            ids = await kind.due(now, after)
            if not ids:
                if not taken_in_pass:
                    break
                taken_in_pass, after = 0, ""
                continue
            steps = [self._step(each) for each in await kind.snapshots(now, ids)]
            count = sum(await run_concurrently(steps))
            taken, taken_in_pass, after = taken + count, taken_in_pass + count, ids[-1]
        return taken

    async def _step(self, snapshot: Snapshot) -> bool:
        kind, subject_id = self._kind, self._kind.id_of(snapshot)
        if self._paused_until.get(subject_id, 0.0) > time.monotonic():
            return False
        try:
            return await kind.step(snapshot)
        except Refusal as refusal:
            log.warning(
                "the next step of %s %s was refused; retrying in %.0f s: %s",
                kind.noun,
                subject_id,
                FAILURE_PAUSE_SECONDS,
                refusal.detail,
            )
        except Exception:  # one broken object must not stop the others
            log.exception(
                "the next step of %s %s failed; retrying in %.0f s", kind.noun, subject_id, FAILURE_PAUSE_SECONDS
            )
        self._paused_until[subject_id] = time.monotonic() + FAILURE_PAUSE_SECONDS
        return False


async def run_concurrently(steps: Sequence[Awaitable[int]]) -> list[int]:
    """Run all of them, a few at a time; the first error is raised after all have ended."""
    slots = asyncio.Semaphore(CONCURRENT_STEPS)

    async def one(step: Awaitable[int]) -> int:
        async with slots:
            return await step

    results = await asyncio.gather(*(one(step) for step in steps), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if isinstance(result, int)]
