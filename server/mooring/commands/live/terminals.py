"""The terminals that this process holds, so that a page can be reloaded without losing them.

A terminal lives in one process, the one whose relay its node dialled. That it is held, and until when, is in the
database; so every process lists it, every process can end it, and one that is asked for a terminal of another says so.
"""

import asyncio
import hmac
import logging
from datetime import timedelta
from typing import Final

import asyncpg

from mooring.commands.live.access_watch import CHECK_SECONDS
from mooring.commands.live.terminal_session import OpenStream, TerminalSession
from mooring.commands.runtime import visit as commands
from mooring.commands.services import Services
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event import Event
from mooring.core.kernel.event_types import EventType
from mooring.core.runtime.visit import Visit, VisitKind
from mooring.gateways.passwords import digest
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.runtime import visit as visits

HOLD_SECONDS: Final = 90.0
RENEW_SECONDS: Final = 30.0
CLOSE_SECONDS: Final = 5.0
GONE: Final = "there is no such terminal, or it has ended"

log = logging.getLogger("mooring.terminal")


class Terminals:
    """The terminals of one process."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._sessions: dict[str, TerminalSession] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._starting: dict[str, str] = {}  # visit → principal, while a ticket is used
        self._renewing: asyncio.Task[None] | None = None
        self.check_seconds = CHECK_SECONDS
        self.open_stream: OpenStream | None = None  # the relay's, while it listens
        services.hub.on_event(self._heard)

    def open(self, open_stream: OpenStream) -> None:
        """Take terminals from now on."""
        self.open_stream = open_stream
        self._renewing = asyncio.create_task(self._renew())

    async def close(self) -> None:
        """End every terminal, and record that."""
        self.open_stream = None
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        for each in self._sessions.values():
            each.end(Refusal(Code.TEMPORARILY_UNAVAILABLE, "the process of the platform that held it stops"))
        if self._running:
            await asyncio.wait(self._running.values(), timeout=CLOSE_SECONDS)
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def by_ticket(
        self, project_id: str, terminal_id: str, ticket: str, remote_address: str | None
    ) -> TerminalSession:
        """Start the terminal of a ticket; the same ticket leads to it as long as it is held."""
        held = self._sessions.get(terminal_id)
        if held is not None and held.visit.project_id == project_id:
            if not hmac.compare_digest(held.visit.ticket_hash, digest(ticket)):
                raise Refusal(Code.UNAUTHENTICATED, "the ticket is for another terminal")
            await commands.still_admitted(self._services, held.visit, remote_address)
            return held
        visit = await commands.admitted(self._services, ticket, (VisitKind.EXEC,), remote_address)
        if (visit.id, visit.project_id) != (terminal_id, project_id):
            raise Refusal(Code.UNAUTHENTICATED, "the ticket is for another terminal")
        return await self._start(visit, remote_address)

    async def of_principal(self, project_id: str, principal_id: str, terminal_id: str) -> TerminalSession:
        """A terminal that this caller started and this process holds."""
        held = self._sessions.get(terminal_id)
        if held is not None and (held.visit.project_id, held.visit.principal_id) == (project_id, principal_id):
            return held
        found = await visits.terminal(self._services.database, PLATFORM, project_id, principal_id, terminal_id)
        if found is None or found.held_until is None or found.held_until <= self._services.clock.now():
            raise Refusal(Code.NOT_FOUND, GONE)
        detail = "another process of the platform holds this terminal: try again, until the request reaches it"
        raise Refusal(Code.CONFLICT, detail, {"terminal": "elsewhere"})

    def is_viewed(self, terminal_id: str) -> bool | None:
        """Whether somebody looks at it; None if another process holds it."""
        held = self._sessions.get(terminal_id)
        return None if held is None else held.viewer is not None

    async def _start(self, visit: Visit, remote_address: str | None) -> TerminalSession:
        open_stream = self.open_stream
        if open_stream is None:
            raise Refusal(Code.TEMPORARILY_UNAVAILABLE, "the relay does not listen in this process")
        self._require_room(visit)
        self._starting[visit.id] = visit.principal_id
        try:
            until = self._services.clock.now() + timedelta(seconds=HOLD_SECONDS)
            opened = await commands.start_command(self._services, visit, remote_address, until)
        finally:
            self._starting.pop(visit.id, None)
        resume_seconds = self._services.settings.terminal_resume_seconds
        session = TerminalSession(self._services, opened, open_stream, resume_seconds, self.check_seconds)
        self._sessions[opened.id] = session
        self._running[opened.id] = asyncio.create_task(self._run(session))
        return session

    async def _run(self, session: TerminalSession) -> None:
        try:
            await session.run()
        finally:
            self._running.pop(session.visit.id, None)
            forget = self._services.settings.terminal_resume_seconds
            asyncio.get_running_loop().call_later(forget, self._sessions.pop, session.visit.id, None)

    def _require_room(self, visit: Visit) -> None:
        """Bound the terminals of this process and of a principal; those of a project are bounded by its commands."""
        settings = self._services.settings
        live = [each for each in self._sessions.values() if not each.is_over]
        of_all = len(live) + len(self._starting)
        of_one = sum(each.visit.principal_id == visit.principal_id for each in live)
        of_one += sum(each == visit.principal_id for each in self._starting.values())
        over = len(self._sessions) - len(live)
        for whose, number, bound in (
            ("you have", of_one, settings.terminals_per_principal),
            ("this process of the platform has", of_all, settings.terminals_max),
        ):
            if 0 < bound <= number:
                detail = f"{whose} as many terminals open as possible ({bound}): end one of them first"
                raise Refusal(Code.LIMIT_REACHED, detail, {"limit": bound})
        if over > settings.terminals_max:  # ended ones, which are kept only to say how they ended
            for each in [key for key, held in self._sessions.items() if held.is_over][: over // 2]:
                del self._sessions[each]

    def _heard(self, event: Event) -> None:
        """A user ended a terminal, perhaps by another process."""
        if event.type == EventType.VISIT_ENDED and event.subject_id in self._sessions:
            reason = str(event.data.get("reason", "it was ended"))
            self._sessions[str(event.subject_id)].end(Refusal(Code.CONFLICT, reason, {"terminal": "ended"}))

    async def _renew(self) -> None:
        """Say in the database that this process still holds its terminals."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            live = [key for key, each in self._sessions.items() if not each.is_over]
            if not live:
                continue
            try:
                until = self._services.clock.now() + timedelta(seconds=HOLD_SECONDS)
                await visits.hold(self._services.database, live, until)
            except (Refusal, asyncpg.PostgresError, TimeoutError) as error:
                log.warning("cannot say which terminals are held; they may be missing in lists until then: %s", error)
