"""A terminal as a WebSocket: bytes in both directions, and a first message that says who and which.

The first message is text: `{"ticket": …}` starts the terminal of that ticket, `{}` with the caller's session or token
resumes one that is held. Every later message is binary: a letter of the relay's frames and its data. A caller says
with `a` how much of the output they have shown, and gets no more than a window ahead of that.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

import msgspec

from mooring.api.socket import Receive, Send, WebSocketResponse
from mooring.core.kernel.errors import Code, Refusal

if TYPE_CHECKING:
    from mooring.commands.live.terminal_session import TerminalSession
    from mooring.commands.live.terminals import Terminals

SESSION: Final = "mooring.api.terminal_websocket"


class TerminalRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The first message."""

    ticket: str | None = None
    token: str | None = None
    after: int = 0


Find = Callable[[TerminalRequest], Awaitable["TerminalSession"]]


@dataclass(frozen=True, slots=True)
class TerminalSocketResponse(WebSocketResponse):
    """A response that continues as the WebSocket of a terminal, which the first message names."""

    find: Find | None = None
    remote_address: str | None = None

    async def send(self, common: dict[str, str], send: Send, receive: Receive) -> None:
        await self.upgrade(common, send)
        await import_module(SESSION).TerminalWebSocket(self, send, receive, common["x-correlation-id"]).run()


@dataclass(frozen=True, slots=True)
class TerminalAddress:
    """Which terminal a WebSocket is for, and from where it comes."""

    terminals: "Terminals"
    project_id: str
    terminal_id: str
    remote_address: str | None

    def socket_of(self, headers: dict[str, str], principal_id: str) -> TerminalSocketResponse:
        """The WebSocket of a caller who was admitted."""

        async def find(first: TerminalRequest) -> "TerminalSession":
            if first.ticket is not None:
                return await self._by_ticket(first.ticket)
            return await self.terminals.of_principal(self.project_id, principal_id, self.terminal_id)

        return TerminalSocketResponse(headers, find=find, remote_address=self.remote_address)

    def socket_of_stranger(
        self, headers: dict[str, str], admit: Callable[[str], Awaitable[WebSocketResponse]]
    ) -> TerminalSocketResponse:
        """The WebSocket of a caller whose first message has a token, or a ticket that needs none."""

        async def find(first: TerminalRequest) -> "TerminalSession":
            if first.token is None and first.ticket is not None:
                return await self._by_ticket(first.ticket)
            if first.token is None:
                raise Refusal(Code.UNAUTHENTICATED, "the first message has neither a ticket nor a token")
            admitted = await admit(first.token)
            if not isinstance(admitted, TerminalSocketResponse) or admitted.find is None:
                raise Refusal(Code.MALFORMED_REQUEST, "this endpoint is not a terminal")
            return await admitted.find(TerminalRequest(first.ticket, None, first.after))

        return TerminalSocketResponse(headers, find=find, remote_address=self.remote_address)

    async def _by_ticket(self, ticket: str) -> "TerminalSession":
        return await self.terminals.by_ticket(self.project_id, self.terminal_id, ticket, self.remote_address)
