"""The sandbox supervisor: serves the agent, keeps one owner supervisor per owner, connects to ports.

It runs nothing but its owner supervisors, so any other child is an orphan of an owner supervisor that was killed, and
is killed too.
"""

import os
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from mooring_agent.kernel import process_tree
from mooring_agent.supervisor import packets
from mooring_agent.supervisor.event_loop import EventLoop
from mooring_agent.supervisor.options import SupervisorOptions
from mooring_agent.supervisor.owner_process import serve_owner
from mooring_agent.supervisor.port_dialer import PortDialer
from mooring_agent.supervisor.process_control import RequestRefused
from mooring_agent.supervisor.program_runner import is_name
from mooring_agent.supervisor.replies import Reply
from mooring_agent.supervisor.request_listener import RequestListener

VERSION: Final = 1
OWNERS_MAX: Final = 64
_POLL_SECONDS: Final = 0.02
_POLLS_MAX: Final = 1500


class OwnerProcess:
    """One owner supervisor, as the sandbox supervisor sees it."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.channel = channel
        self.close_waiters: list[Reply] = []
        self.closing = False


class SandboxSupervisor:
    """The process that the agent talks to."""

    def __init__(self, options: SupervisorOptions) -> None:
        self._options = options
        self._started_at = time.time()
        self._loop = EventLoop(self._children_ended)
        self._listener = RequestListener(self._loop, options.listener, options.agent_uid, self._route)
        self._owners: dict[str, OwnerProcess] = {}
        self._is_shutting_down = False
        self._shutdown_waiters: list[Reply] = []
        self._operations: dict[str, Callable[[dict[str, Any], Reply], None]] = {
            "status": self._status,
            "dial": self._dial,
            "close_owner": self._close_owner,
            "shut_down": self._shut_down,
        }

    def run(self) -> None:
        """Run until asked to end."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(ignored, signal.SIG_IGN)
        self._listener.start()
        self._loop.run()

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        """End when the machine shuts down."""
        self._loop.call_later(0, self._begin_shutdown)

    def _route(self, packet: bytes, descriptors: list[int], connection: socket.socket) -> None:
        """Pass a request for an owner to its supervisor, with the connection; handle the others here."""
        reply = Reply(self._loop, connection)
        try:
            message = packets.unpack(packet, descriptors)
            operation = self._operations.get(message["op"])
            if operation is not None:
                operation(message, reply)
                return
            owner = self._require_owner(message["owner"])
            packets.send_packet(owner.channel, packet, [connection.fileno(), *descriptors])
            reply.close()
        except RequestRefused as refusal:
            reply.refuse(refusal)
        except (BlockingIOError, ConnectionError, BrokenPipeError):
            reply.refuse(RequestRefused("capacity", "the owner's supervisor is overloaded"))
        except (KeyError, TypeError, ValueError, packets.WireError) as error:
            reply.refuse(RequestRefused("refused", f"malformed request: {type(error).__name__}"))
        except OSError as error:
            reply.refuse(RequestRefused("host_error", error.strerror or str(error)))

    def _require_owner(self, label: Any) -> OwnerProcess:
        if label != "" and not is_name(label):
            raise RequestRefused("refused", "not an owner label")
        owner = self._owners.get(label)
        if self._is_shutting_down or (owner is not None and owner.closing):
            raise RequestRefused("refused", "it is being closed")
        if owner is None:
            if len(self._owners) >= OWNERS_MAX:
                raise RequestRefused("capacity", f"the sandbox already has {OWNERS_MAX} owners")
            owner = self._owners[label] = self._fork(label)
        return owner

    def _fork(self, label: str) -> OwnerProcess:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            self._become_owner(label, ours, theirs)
        theirs.close()
        ours.setblocking(False)
        return OwnerProcess(pid, ours)

    def _become_owner(self, label: str, ours: socket.socket, theirs: socket.socket) -> None:
        """In the fork: release everything that belongs to the sandbox supervisor, then serve."""
        try:
            self._loop.close()
            ours.close()
            self._listener.close()
            for owner in self._owners.values():
                owner.channel.close()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            serve_owner(label, theirs, self._options._replace(listener=-1))
        finally:
            os._exit(1)

    def _status(self, message: dict[str, Any], reply: Reply) -> None:
        owners = {label: owner.pid for label, owner in self._owners.items()}
        reply.send_and_close(version=VERSION, pid=os.getpid(), started_at=self._started_at, owners=owners)

    def _dial(self, message: dict[str, Any], reply: Reply) -> None:
        PortDialer(self._loop, self._options.addresses, message["port"], reply).try_next()

    def _close_owner(self, message: dict[str, Any], reply: Reply) -> None:
        """Kill everything of one owner, its supervisor last; reply when it is gone, or with what is left."""
        owner = self._owners.get(message["owner"])
        if owner is None:
            reply.send_and_close(left=[])
            return
        owner.close_waiters.append(reply)
        if not owner.closing:
            owner.closing = True
            self._kill_owner(owner, _POLLS_MAX)

    def _kill_owner(self, owner: OwnerProcess, polls_left: int) -> None:
        if owner not in self._owners.values():
            return
        # While stopped it starts nothing more, and orphans still become its children and not ours.
        process_tree.send_signal([owner.pid], signal.SIGSTOP)
        remaining = process_tree.kill_below(owner.pid)
        if not remaining:
            process_tree.send_signal([owner.pid], signal.SIGKILL)
        if polls_left == 0:
            owner.closing = False
            self._reply_to_close_waiters(owner, remaining or [owner.pid])
        else:
            self._loop.call_later(_POLL_SECONDS, lambda: self._kill_owner(owner, polls_left - 1))

    def _reply_to_close_waiters(self, owner: OwnerProcess, remaining: list[int]) -> None:
        close_waiters, owner.close_waiters = owner.close_waiters, []
        for reply in close_waiters:
            reply.send_and_close(left=remaining)

    def _shut_down(self, message: dict[str, Any], reply: Reply) -> None:
        self._shutdown_waiters.append(reply)
        self._begin_shutdown()

    def _begin_shutdown(self) -> None:
        self._is_shutting_down = True
        for owner in self._owners.values():
            if not owner.closing:
                owner.closing = True
                self._kill_owner(owner, _POLLS_MAX)
        self._exit_if_done()

    def _children_ended(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self._remove_owner(pid)
        self._kill_orphans()
        self._exit_if_done()

    def _remove_owner(self, pid: int) -> None:
        for label, owner in list(self._owners.items()):
            if owner.pid == pid:
                del self._owners[label]
                owner.channel.close()
                self._reply_to_close_waiters(owner, [])

    def _kill_orphans(self) -> None:
        """Kill what an owner supervisor left behind that was not ended by us."""
        if process_tree.kill_below(os.getpid(), {owner.pid for owner in self._owners.values()}):
            self._loop.call_later(_POLL_SECONDS, self._kill_orphans)

    def _exit_if_done(self) -> None:
        if self._is_shutting_down and not self._owners:
            for reply in self._shutdown_waiters:
                reply.send_and_close(left=[])
            self._loop.stop()
