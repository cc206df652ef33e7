"""Records exec sessions where the policy asks for it, and reads recordings.

A session that must be recorded does not go on without its recording: if the row cannot be written the session does not
start, and if a part cannot be stored, or the recording is full, the session ends. What a session showed in the last
second is lost when the relay dies.
"""

import asyncio
import codecs
import time
from collections.abc import Callable
from typing import Final

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.services import Services
from mooring.core.kernel.decision import Decision
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.core.runtime.exec_recording import (
    RECORDING_BYTES_MAX,
    ExecRecording,
    RecordingPart,
    header_line,
    must_record,
    output_line,
    read_recording,
    resize_line,
)
from mooring.core.runtime.visit import Visit
from mooring.storage.catalog import policy as policies
from mooring.storage.kernel.database import Acting
from mooring.storage.runtime import exec_recording as recordings

FLUSH_SECONDS: Final = 1.0
PART_CHARACTERS: Final = 65_536
PARTS_AT_ONCE: Final = 8
NOTICE: Final = b"This session is recorded, because your tenant's policy asks for it.\r\n"


class ExecRecorder:
    """The recording of one running session."""

    def __init__(self, services: Services, recording: ExecRecording, clock: Callable[[], float]) -> None:
        self._services = services
        self._recording = recording
        self._clock = clock
        self._begun = clock()
        self._lines: list[str] = []
        self._total = 0
        self._number = 0
        self._lock = asyncio.Lock()
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {kind: decoder(errors="replace") for kind in ("output", "errors")}

    def note(self, line: str) -> None:
        self._lines.append(line)
        self._total += len(line.encode())

    async def show(self, data: bytes, *, errors: bool = False) -> None:
        """Record what the session is about to show."""
        text = self._decoders["errors" if errors else "output"].decode(data)
        if text:
            self.note(output_line(self._clock() - self._begun, text))
        if self._total > RECORDING_BYTES_MAX:
            raise Refusal(Code.LIMIT_REACHED, "the recording of this session is full, so the session ends")
        if sum(map(len, self._lines)) >= PART_CHARACTERS:
            await self.flush()

    def resized(self, columns: int, rows: int) -> None:
        self.note(resize_line(self._clock() - self._begun, columns, rows))

    async def keep_flushing(self) -> None:
        """Store what there is every second; an error of it ends the session."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        async with self._lock:
            if not self._lines:
                return
            content, self._lines = "".join(self._lines), []
            self._number += 1
            await recordings.add(self._services.database, self._recording, self._number, content, self._total)

    async def close(self) -> None:
        await self.flush()
        await recordings.end(self._services.database, self._recording, self._services.clock.now())


async def begin(services: Services, visit: Visit, clock: Callable[[], float] = time.monotonic) -> ExecRecorder | None:
    """Begin the recording of a session; None if no policy asks for one."""
    layers = await policies.chain(services.database, Acting(visit.tenant_id), visit.project_id)
    if not must_record(layers):
        return None
    now = services.clock.now()
    recording = ExecRecording(
        services.clock.mint(Prefix.EXEC_RECORDING),
        visit.tenant_id,
        visit.project_id,
        visit.allocation_id,
        visit.id,
        visit.principal_id,
        visit.correlation_id,
        now,
    )
    await recordings.begin(services.database, recording)
    recorder = ExecRecorder(services, recording, clock)
    recorder.note(header_line(visit, now))
    return recorder


async def read(work: Work[RecordingPart], recording_id: str, after: int) -> Answered:
    """Read the next parts of a recording; the audit trail records who read it."""

    async def load() -> RecordingPart:
        recording = require(await recordings.find(work.database, work.acting, recording_id), "exec recording")
        found = await recordings.parts(work.database, work.acting, recording, after, PARTS_AT_ONCE + 1)
        shown = sorted(found)[:PARTS_AT_ONCE]
        text = "".join(found[number] for number in shown)
        return RecordingPart(recording, text, shown[-1] if len(found) > PARTS_AT_ONCE else None)

    def decide(part: RecordingPart) -> Decision[RecordingPart]:
        return read_recording(part.recording, part, after)

    return await work.execute(load, decide)
