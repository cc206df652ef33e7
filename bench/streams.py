"""The event streams under load: how long after a change each of many followers sees its event.

A separate program, like the load: it opens the streams, makes one change after the other, and records when the
event of each arrives on each stream. The time counts from before the request is sent until the bytes are there, so
the mutation itself is in it.
"""

import json
import select
import socket
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from bench.load import LoadFailed, request_maker

OPENED = b": the stream is open"
SILENCE_SECONDS_MAX = 30.0


@dataclass(frozen=True)
class StreamsPlan:
    """How many followers of which stream, and what is changed how often."""

    host: str
    port: int
    token: str
    stream_path: str
    change: dict[str, str]
    followers: int
    changes: int


@dataclass(frozen=True)
class StreamsSamples:
    """The delay of each event on each stream."""

    latencies_ms: list[float]


def _open(plan: StreamsPlan) -> list[socket.socket]:
    head = (
        f"GET {plan.stream_path} HTTP/1.1\r\nHost: {plan.host}:{plan.port}\r\nAccept: text/event-stream\r\n"
        f"Authorization: Bearer {plan.token}\r\n\r\n"
    ).encode()
    followers = []
    for _ in range(plan.followers):
        follower = socket.create_connection((plan.host, plan.port), timeout=SILENCE_SECONDS_MAX)
        follower.sendall(head)
        followers.append(follower)
    for follower in followers:
        begun = b""
        while OPENED not in begun:
            piece = follower.recv(65536)
            if not piece or (begun and not begun.startswith(b"HTTP/1.1 200")):
                raise LoadFailed(f"a stream was not opened: {begun.decode(errors='replace')[:500]}")
            begun += piece
    return followers


def run(plan: StreamsPlan) -> StreamsSamples:
    """Make a change, wait until every follower has its event, and repeat."""
    followers = _open(plan)
    make = request_maker(plan.change, f"{plan.host}:{plan.port}")
    writer = socket.create_connection((plan.host, plan.port), timeout=SILENCE_SECONDS_MAX)
    latencies: list[float] = []
    by_descriptor = {follower.fileno(): follower for follower in followers}
    with select.epoll() as ready:
        for descriptor in by_descriptor:
            ready.register(descriptor, select.EPOLLIN)
        for _ in range(plan.changes):
            begun = time.perf_counter()
            writer.sendall(make())
            missing = set(by_descriptor)
            while missing:
                events = ready.poll(SILENCE_SECONDS_MAX)
                if not events:
                    raise LoadFailed(f"{len(missing)} followers saw no event for {SILENCE_SECONDS_MAX} s")
                for descriptor, _ in events:
                    piece = by_descriptor[descriptor].recv(65536)
                    if not piece:
                        raise LoadFailed("the server closed a stream")
                    if b"\nevent: " in piece or piece.startswith(b"id: "):
                        latencies.append((time.perf_counter() - begun) * 1000)
                        missing.discard(descriptor)
            answer = writer.recv(65536)
            if not answer.startswith(b"HTTP/1.1 200"):
                raise LoadFailed(answer.decode(errors="replace")[:500])
    return StreamsSamples(latencies)


def main() -> int:
    """Read a plan, run it, write the samples."""
    given: dict[str, Any] = json.load(sys.stdin)
    try:
        seen = run(StreamsPlan(**given))
    except (LoadFailed, OSError) as error:
        sys.stderr.write(f"the streams failed: {error}\n")
        return 1
    json.dump(asdict(seen), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
