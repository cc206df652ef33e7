"""The processes of an owner in namespaces of its own: started, signalled and reaped by its init, `mooring-init`.

The supervisor is outside of the sandbox and talks to the init over one SOCK_SEQPACKET socket. A request waits for its
response; the ends of programs that arrive meanwhile are kept for `ended`. What the init answers is not trusted: a
compromised one could claim anything about its own sandbox, and nothing about anything else.

The structures have their twins in sandbox_init/init.c.
"""

import array
import contextlib
import errno
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple, NoReturn

from mooring_agent.supervisor.child_processes import open_stdin
from mooring_agent.supervisor.packets import close_all
from mooring_agent.supervisor.process_control import (
    KEY_VARIABLE,
    PATH,
    Ended,
    Related,
    RequestRefused,
    SpawnSpec,
    StandardStreams,
    TerminalSize,
)
from mooring_agent.supervisor.users import SandboxUser, UnknownUserError, find_user, read_accounts

RESPONSE_SECONDS: Final = 30.0
PROCESSES_MAX: Final = 1 << 18
_SPAWN, _SIGNAL, _SIGNAL_FOREGROUND, _LIST, _OPEN_ACCOUNTS = 1, 2, 3, 4, 5
_ENDED, _HAS_VARIABLE = 1, 2
_REQUEST: Final = struct.Struct("=IIiii")
_RESPONSE: Final = struct.Struct("=IiiI")
_ENTRY: Final = struct.Struct("=iiiI")
_PLAN: Final = struct.Struct("=5I")
_PACKET_MAX_BYTES: Final = 65_536
_EVERYTHING: Final = -1
_ACCOUNT_FILES: Final = {"passwd": 0, "group": 1}
_CODES: Final = {errno.ENOENT: "not_found", errno.ENOTDIR: "not_found", errno.EACCES: "permission_denied"}


class InitGone(OSError):
    """The init ended, or says what no init of ours says; its owner's programs are gone with it."""


class _Response(NamedTuple):
    error: int
    value: int
    has_more: bool
    body: bytes
    descriptors: list[int]


class _Process(NamedTuple):
    pid: int
    session: int
    has_ended: bool
    has_variable: bool


class InitProcesses:
    """One owner's processes, by its init."""

    def __init__(self, init: socket.socket) -> None:
        init.setblocking(False)
        self._init = init
        self._next_id = 1
        self._endings: list[Ended] = []
        self.on_ended: Callable[[], None] = lambda: None  # called when `ended` has something during a request
        self.is_gone = False

    def fileno(self) -> int:
        """Becomes readable when a program has ended, or the init."""
        return self._init.fileno()

    # --- starting ---

    def start(self, spec: SpawnSpec, streams: StandardStreams) -> int:
        user = self._user_of(spec, is_interactive=streams.input is not None)
        standard_input = streams.input if streams.input is not None else open_stdin(spec.stdin)
        plan = _plan_file(spec, user)
        try:
            passed = [plan, standard_input, streams.output, streams.errors]
            response = self._request(_SPAWN, (0, 0, 0), descriptors=passed)
        finally:
            os.close(plan)
            if streams.input is None:
                os.close(standard_input)
        close_all(response.descriptors)
        _check_started(response, spec)
        return response.value

    def start_on_terminal(self, spec: SpawnSpec, size: TerminalSize) -> tuple[int, int]:
        plan = _plan_file(spec, self._user_of(spec, is_interactive=True))
        try:
            response = self._request(_SPAWN, (1, size.rows, size.columns), descriptors=[plan])
        finally:
            os.close(plan)
        try:
            _check_started(response, spec)
            if len(response.descriptors) != 1:
                raise InitGone(errno.EPROTO, "the init sent no terminal")
        except (RequestRefused, InitGone):
            close_all(response.descriptors)
            raise
        return response.value, response.descriptors[0]

    def _user_of(self, spec: SpawnSpec, *, is_interactive: bool) -> SandboxUser:
        """The user that a program runs as, by the sandbox's own accounts, which the tenant controls."""
        try:
            user = find_user(spec.user, read_accounts(self._open_accounts))
        except UnknownUserError as error:
            raise RequestRefused("not_found", str(error)) from None
        if is_interactive and 0 in (user.uid, user.gid):
            raise RequestRefused(
                "refused", f"{spec.user!r} is root in the sandbox; an interactive command must run as another user"
            )
        return user

    def _open_accounts(self, name: str) -> int:
        response = self._request(_OPEN_ACCOUNTS, (_ACCOUNT_FILES[name], 0, 0))
        if response.error or len(response.descriptors) != 1:
            close_all(response.descriptors)
            raise OSError(response.error or errno.EPROTO, f"the sandbox's /etc/{name} cannot be read")
        return response.descriptors[0]

    # --- signals and ends ---

    def signal(self, pids: Collection[int], number: int) -> None:
        for pid in pids:
            if pid not in (0, 1, _EVERYTHING):
                self._send_signal(pid, number)

    def signal_all(self, number: int) -> None:
        """Signal everything in the pid namespace but the init; nothing that is just being forked escapes."""
        self._send_signal(_EVERYTHING, number)

    def signal_foreground(self, terminal: int, number: int) -> None:
        close_all(self._request(_SIGNAL_FOREGROUND, (0, number, 0), descriptors=[terminal]).descriptors)

    def _send_signal(self, pid: int, number: int) -> None:
        close_all(self._request(_SIGNAL, (pid, number, 0)).descriptors)

    def ended(self) -> Iterator[Ended]:
        with contextlib.suppress(InitGone):  # `is_gone` says so, and what ended before still counts
            while not self.is_gone and self._is_readable(0):
                self._receive()
        endings, self._endings = self._endings, []
        return iter(endings)

    # --- looking ---

    def living(self) -> list[int]:
        return [each.pid for each in self._list("") if not each.has_ended]

    def is_empty(self) -> bool:
        return not self._list("")

    def related(self, pid: int | None, key: str) -> Related:
        living = [each for each in self._list(f"{KEY_VARIABLE}={key}") if not each.has_ended]
        related = [each.pid for each in living if each.has_variable or (pid is not None and pid in each[:2])]
        return Related(frozenset(each.pid for each in living), frozenset(related))

    def _list(self, assignment: str) -> list[_Process]:
        found: list[_Process] = []
        response = self._request(_LIST, (0, 0, 0), text=assignment.encode())
        while True:
            close_all(response.descriptors)
            if response.error:
                raise OSError(response.error, "the init cannot list its processes")
            if len(response.body) % _ENTRY.size or len(found) > PROCESSES_MAX:
                self._fail("the init sent a malformed list")
            for pid, _, session, flags in _ENTRY.iter_unpack(response.body):
                found.append(_Process(pid, session, bool(flags & _ENDED), bool(flags & _HAS_VARIABLE)))
            if not response.has_more:
                return found
            response = self._response(self._next_id - 1)

    # --- the protocol ---

    def _request(
        self, operation: int, numbers: tuple[int, int, int], *, text: bytes = b"", descriptors: list[int] | None = None
    ) -> _Response:
        number, self._next_id = self._next_id, self._next_id % 0x7FFF_FFFF + 1
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        if self.is_gone:
            raise InitGone(errno.ECONNRESET, "the owner's init has ended")
        try:
            packet = [_REQUEST.pack(number, operation, *numbers), text]
            self._init.sendmsg(packet, rights, socket.MSG_NOSIGNAL)
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:  # the user has too many descriptors under way; the init is all right
                raise
            self._fail(f"the owner's init does not listen: {error.strerror}")
        return self._response(number)

    def _response(self, number: int) -> _Response:
        """The response to one request; keeps the exits that arrive before it."""
        deadline = time.monotonic() + RESPONSE_SECONDS
        while True:
            if not self._is_readable(deadline - time.monotonic()):
                self._fail("the owner's init does not respond")
            received = self._receive()
            if received is None:
                continue
            given, response = received
            if given == number:
                return response
            close_all(response.descriptors)
            self._fail("the init answered a request that was not made")

    def _receive(self) -> tuple[int, _Response] | None:
        """Receive one packet; none if it was the end of a program, which is kept."""
        size = array.array("i").itemsize
        try:
            packet, rights, seen, _ = self._init.recvmsg(
                _PACKET_MAX_BYTES, socket.CMSG_SPACE(4 * size), socket.MSG_CMSG_CLOEXEC
            )
        except OSError as error:
            self._fail(f"the owner's init is gone: {error.strerror}")
        descriptors = array.array("i")
        for level, kind, data in rights:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(data[: len(data) - len(data) % size])
        if len(packet) < _RESPONSE.size or seen & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            close_all(list(descriptors))
            self._fail("the owner's init has ended" if not packet else "the init sent a malformed packet")
        number, problem, value, more = _RESPONSE.unpack_from(packet)
        if number:
            return number, _Response(problem, value, bool(more), packet[_RESPONSE.size :], list(descriptors))
        close_all(list(descriptors))
        self._endings.append(Ended(value, 128 + (more & 0x7F) if more & 0x7F else more >> 8 & 0xFF))
        self.on_ended()
        return None

    def _is_readable(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._init.fileno(), select.POLLIN)
        return bool(poll.poll(max(0.0, seconds) * 1000))

    def _fail(self, detail: str) -> NoReturn:
        self.is_gone = True
        raise InitGone(errno.ECONNRESET, detail)


def _plan_file(spec: SpawnSpec, user: SandboxUser) -> int:
    """A memory file with everything that the init needs to start a program; nothing of it appears in a command line."""
    base = {"PATH": PATH, "LANG": "C.UTF-8", "HOME": user.home, "USER": user.name, "LOGNAME": user.name}
    variables = [f"{name}={value}" for name, value in {**base, **spec.environment}.items()]
    words = [spec.directory, *spec.argv, *variables]
    content = _PLAN.pack(user.uid, user.gid, len(user.groups), len(spec.argv), len(variables))
    content += struct.pack(f"={len(user.groups)}I", *user.groups)
    content += b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in words)
    memory = os.memfd_create("plan", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(memory), "wb") as file:
        file.write(content)
    return memory


def _check_started(response: _Response, spec: SpawnSpec) -> None:
    if response.error:
        code = _CODES.get(response.error, "host_error")
        raise RequestRefused(code, f"{spec.argv[0]} could not be started: {os.strerror(response.error)}")
    if response.value <= 1:
        raise InitGone(errno.EPROTO, "the init named no process")
