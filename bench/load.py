"""The load: a separate program that sends requests over a few connections, one after the other on each.

It reads a plan from standard input and writes the samples to standard output, both as JSON; the token is part of the
plan, never an argument. Requests are prepared as bytes, only the status and the length of a response are read, and one
epoll loop serves all connections: per request it takes a small part of the server's time (the report says how much),
so that with two cores the load program is not the bottleneck.

A mutation gets a new Idempotency-Key each time. Most plans give every connection targets of its own, so that no two
writers ever meet on one row.
"""

import itertools
import json
import secrets
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

ANSWER_BYTES_MAX = 1 << 16
HEAD_END = b"\r\n\r\n"
LENGTH = b"content-length: "
ACCEPTED = (b"HTTP/1.1 200", b"HTTP/1.1 201")
CONFLICT = b"HTTP/1.1 409"
SILENCE_SECONDS_MAX = 30.0


@dataclass(frozen=True)
class LoadPlan:
    """What to send: where, for how long, and on each connection which requests in turn."""

    host: str
    port: int
    seconds: float
    lanes: list[list[dict[str, str]]]  # of each connection its targets: method, path, token, and a body's template
    counts_conflicts: bool = False  # 409 is an answer too; otherwise it ends the measurement
    once: bool = False  # each target gets one request, however long that takes


@dataclass(frozen=True)
class LoadSamples:
    """The number of responses, their latencies and the CPU time."""

    requests: int
    seconds: float
    cpu_seconds: float
    latencies_ms: list[float]
    last_body: str
    conflicts: int = 0  # of the requests, those that were answered 409


class LoadFailed(Exception):
    """A response was not the expected one, so its latency would mean nothing."""


def request_maker(target: dict[str, str], host: str) -> Callable[[], bytes]:
    """Makes the bytes of each next request to a target."""
    head = (
        f"{target['method']} {target['path']} HTTP/1.1\r\nHost: {host}\r\nAccept: application/json\r\n"
        f"Authorization: Bearer {target['token']}\r\n"
    )
    if target["method"] == "GET":
        fixed = head.encode() + b"\r\n"
        return lambda: fixed
    keys = _keys()
    template = target["body"]

    def make() -> bytes:
        key = next(keys)
        body = template.replace("{key}", key)
        about = f"Idempotency-Key: {key}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return f"{head}{about}\r\n{body}".encode()

    return make


def _keys() -> Iterator[str]:
    start = secrets.token_hex(8)
    return (f"{start}{number:016x}" for number in itertools.count())


class LoadConnection:
    """One connection and its pending request."""

    __slots__ = ("_accepted", "_makers", "_turn", "conflicts", "left", "received", "sent_at", "socket")

    def __init__(self, plan: LoadPlan, targets: list[dict[str, str]]) -> None:
        self._makers = [request_maker(target, f"{plan.host}:{plan.port}") for target in targets]
        self._turn = itertools.cycle(self._makers)
        self._accepted = (*ACCEPTED, CONFLICT) if plan.counts_conflicts else ACCEPTED
        self.conflicts = 0
        self.left = len(targets)  # that have not been asked yet
        self.socket = socket.create_connection((plan.host, plan.port), timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = b""
        self.sent_at = 0.0

    def send(self) -> None:
        """Send the next request."""
        request = next(self._turn)()
        self.left -= 1
        self.received = b""
        self.sent_at = time.perf_counter()
        self.socket.sendall(request)

    def receive(self) -> bytes | None:
        """The body of the response once it is complete."""
        piece = self.socket.recv(ANSWER_BYTES_MAX)
        if not piece:
            raise LoadFailed("the server closed a connection")
        answer = self.received + piece if self.received else piece
        head_end = answer.find(HEAD_END)
        if head_end >= 0:
            if not answer.startswith(self._accepted):
                raise LoadFailed(answer.decode(errors="replace")[:2000])
            at = answer.index(LENGTH) + len(LENGTH)
            length = int(answer[at : answer.index(b"\r", at)])
            if len(answer) >= head_end + len(HEAD_END) + length:
                self.conflicts += answer.startswith(CONFLICT)
                return answer[head_end + len(HEAD_END) :]
        self.received = answer
        return None


def run(plan: LoadPlan) -> LoadSamples:
    """Keep every connection busy until the time is over, then wait for the pending responses."""
    lanes = [LoadConnection(plan, targets) for targets in plan.lanes]
    by_descriptor = {lane.socket.fileno(): lane for lane in lanes}
    latencies: list[float] = []
    body = b""
    with select.epoll() as ready:
        for descriptor in by_descriptor:
            ready.register(descriptor, select.EPOLLIN)
        cpu_begun, begun = time.process_time(), time.perf_counter()
        deadline = begun + plan.seconds
        for lane in lanes:
            lane.send()
        under_way = len(lanes)
        while under_way:
            events = ready.poll(SILENCE_SECONDS_MAX)
            if not events:
                raise LoadFailed(f"no answer for {SILENCE_SECONDS_MAX} s")
            for descriptor, _ in events:
                lane = by_descriptor[descriptor]
                whole = lane.receive()
                if whole is None:
                    continue
                now = time.perf_counter()
                latencies.append((now - lane.sent_at) * 1000)
                body = whole
                if lane.left > 0 if plan.once else now < deadline:
                    lane.send()
                else:
                    under_way -= 1
        ended, cpu_ended = time.perf_counter(), time.process_time()
    for lane in lanes:
        lane.socket.close()
    conflicts = sum(lane.conflicts for lane in lanes)
    return LoadSamples(len(latencies), ended - begun, cpu_ended - cpu_begun, latencies, body.decode(), conflicts)


def main() -> int:
    """Read a plan, run it, write the samples."""
    given: dict[str, Any] = json.load(sys.stdin)
    try:
        seen = run(LoadPlan(**given))
    except (LoadFailed, OSError) as error:
        sys.stderr.write(f"the load failed: {error}\n")
        return 1
    json.dump(asdict(seen), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
