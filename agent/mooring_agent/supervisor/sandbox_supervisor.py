"""The sandbox supervisor: hears the agent, keeps one owner supervisor per owner, connects to ports, ends.

It runs nothing itself but its owner supervisors, so whatever else becomes its child is what an owner supervisor left
that was killed, and is killed too.
"""

import os
import signal
import socket
import struct
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from mooring_agent.kernel import process_tree, syscalls
from mooring_agent.supervisor import packets
from mooring_agent.supervisor.event_loop import Loop
from mooring_agent.supervisor.options import Options
from mooring_agent.supervisor.owner_supervisor import serve_owner
from mooring_agent.supervisor.port_dialer import Dialling
from mooring_agent.supervisor.program_runner import is_name
from mooring_agent.supervisor.replies import Answer
from mooring_agent.supervisor.spawn import Refusal

VERSION: Final = 1
OWNERS_MAX: Final = 64
CONNECTIONS_MAX: Final = 128
BACKLOG: Final = 128
_LOOK_SECONDS: Final = 0.02
_LOOKS_MAX: Final = 1500


class Ward:
    """One owner supervisor, as the sandbox's keeps it."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.channel = channel
        self.closers: list[Answer] = []
        self.closing = False


class SandboxSupervisor:
    """The one process that the agent can ask."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._started_at = time.time()
        self._loop = Loop(self._children_ended)
        self._listener = socket.socket(fileno=options.listener)
        self._listener.setblocking(False)
        self._listener.listen(BACKLOG)  # once more, so that the socket names this process as its peer
        self._unheard: dict[int, socket.socket] = {}
        self._wards: dict[str, Ward] = {}
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC) if options.owner_namespaces else -1
        self._ending = False
        self._enders: list[Answer] = []
        self._asked: dict[str, Callable[[dict[str, Any], Answer], None]] = {
            "status": self._status,
            "dial": self._dial,
            "close_owner": self._close_owner,
            "shut_down": self._shut_down,
        }

    def run(self) -> None:
        """Until it is asked to end."""
        signal.signal(signal.SIGTERM, self._asked_to_end)
        for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(ignored, signal.SIG_IGN)
        self._loop.watch(self._listener.fileno(), self._accept)
        self._loop.run()

    def _asked_to_end(self, number: int, frame: FrameType | None) -> None:
        """The machine goes down; pid 1 of a namespace, which hears this from its tenants too, does not listen to it."""
        if os.getpid() != 1:
            self._loop.after(0, self._end)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _ = struct.unpack("3i", credentials)
        stranger = uid != self._options.agent_uid or (self._options.peer_outside and pid != 0)
        if stranger or len(self._unheard) >= CONNECTIONS_MAX:
            connection.close()
            return
        self._unheard[connection.fileno()] = connection
        self._loop.watch(connection.fileno(), lambda: self._heard(connection))

    def _heard(self, connection: socket.socket) -> None:
        self._loop.forget(connection.fileno())
        del self._unheard[connection.fileno()]
        try:
            packet, descriptors = packets.receive_packet(connection)
        except (packets.WireError, OSError):
            packet, descriptors = b"", []
        if not packet:
            connection.close()
            return
        try:
            self._route(connection, packet, descriptors)
        finally:
            packets.close_all(descriptors)

    def _route(self, connection: socket.socket, packet: bytes, descriptors: list[int]) -> None:
        """A question for an owner goes to its supervisor, connection and all; the others are answered here."""
        answer = Answer(self._loop, connection)
        try:
            message = packets.unpack(packet, descriptors)
            own = self._asked.get(message["op"])
            if own is not None:
                own(message, answer)
                return
            ward = self._ward(message["owner"])
            packets.send_packet(ward.channel, packet, [connection.fileno(), *descriptors])
            answer.close()
        except Refusal as refusal:
            answer.refuse(refusal)
        except (BlockingIOError, ConnectionError, BrokenPipeError):
            answer.refuse(Refusal("capacity", "the owner's supervisor does not keep up"))
        except (KeyError, TypeError, ValueError, packets.WireError) as error:
            answer.refuse(Refusal("refused", f"not understood: {type(error).__name__}"))
        except OSError as error:
            answer.refuse(Refusal("host_error", error.strerror or str(error)))

    def _ward(self, label: Any) -> Ward:
        if label != "" and not is_name(label):
            raise Refusal("refused", "no name of an owner")
        ward = self._wards.get(label)
        if self._ending or (ward is not None and ward.closing):
            raise Refusal("refused", "it is being closed")
        if ward is None:
            if len(self._wards) >= OWNERS_MAX:
                raise Refusal("capacity", f"{OWNERS_MAX} owners are in the sandbox already")
            ward = self._wards[label] = self._fork(label)
        return ward

    def _fork(self, label: str) -> Ward:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if self._options.owner_namespaces:
            syscalls.unshare(syscalls.CLONE_NEWPID)
        try:
            pid = os.fork()
            if pid == 0:
                self._become_owner(label, ours, theirs)
        finally:
            if self._options.owner_namespaces and self._own_pids >= 0:
                syscalls.setns(self._own_pids, syscalls.CLONE_NEWPID)
        theirs.close()
        ours.setblocking(False)
        return Ward(pid, ours)

    def _become_owner(self, label: str, ours: socket.socket, theirs: socket.socket) -> None:
        """In the fork: let go of everything that is the sandbox supervisor's, then serve."""
        try:
            self._loop.close()
            ours.close()
            self._listener.close()
            for connection in (*self._unheard.values(), *(ward.channel for ward in self._wards.values())):
                connection.close()
            if self._own_pids >= 0:
                os.close(self._own_pids)
                self._own_pids = -1
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            serve_owner(label, theirs, self._options._replace(listener=-1))
        finally:
            os._exit(1)

    def _status(self, message: dict[str, Any], answer: Answer) -> None:
        owners = {label: ward.pid for label, ward in self._wards.items()}
        answer.give(version=VERSION, pid=os.getpid(), started_at=self._started_at, owners=owners)

    def _dial(self, message: dict[str, Any], answer: Answer) -> None:
        Dialling(self._loop, self._options.addresses, message["port"], answer).begin()

    def _close_owner(self, message: dict[str, Any], answer: Answer) -> None:
        """Kill everything of one owner, its supervisor last; the answer comes when it is gone, or says what is left."""
        ward = self._wards.get(message["owner"])
        if ward is None:
            answer.give(left=[])
            return
        ward.closers.append(answer)
        if not ward.closing:
            ward.closing = True
            self._end_ward(ward, _LOOKS_MAX)

    def _end_ward(self, ward: Ward, looks: int) -> None:
        if ward not in self._wards.values():
            return
        if self._options.owner_namespaces:
            left = []
        else:
            # Held still it starts nothing more, and what loses its parent still comes to it and not to us.
            process_tree.send_signal([ward.pid], signal.SIGSTOP)
            left = process_tree.kill_below(ward.pid)
        if not left:
            process_tree.send_signal([ward.pid], signal.SIGKILL)
        if looks == 0:
            ward.closing = False
            self._answer_closers(ward, left or [ward.pid])
        else:
            self._loop.after(_LOOK_SECONDS, lambda: self._end_ward(ward, looks - 1))

    def _answer_closers(self, ward: Ward, left: list[int]) -> None:
        closers, ward.closers = ward.closers, []
        for answer in closers:
            answer.give(left=left)

    def _shut_down(self, message: dict[str, Any], answer: Answer) -> None:
        self._enders.append(answer)
        self._end()

    def _end(self) -> None:
        self._ending = True
        for ward in self._wards.values():
            if not ward.closing:
                ward.closing = True
                self._end_ward(ward, _LOOKS_MAX)
        self._leave_if_alone()

    def _children_ended(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self._bury(pid)
        self._kill_strays()
        self._leave_if_alone()

    def _bury(self, pid: int) -> None:
        for label, ward in list(self._wards.items()):
            if ward.pid == pid:
                del self._wards[label]
                ward.channel.close()
                self._answer_closers(ward, [])

    def _kill_strays(self) -> None:
        """What an owner supervisor left that did not end by our hand."""
        if self._options.owner_namespaces:
            return
        if process_tree.kill_below(os.getpid(), {ward.pid for ward in self._wards.values()}):
            self._loop.after(_LOOK_SECONDS, self._kill_strays)

    def _leave_if_alone(self) -> None:
        if self._ending and not self._wards:
            for answer in self._enders:
                answer.give(left=[])
            self._loop.stop()
