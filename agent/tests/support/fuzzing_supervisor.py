"""An owner spawner whose supervisor sends the init random requests instead of sensible ones.

Runs as a program of its own: the plan comes on standard input, then the seconds and the seed as arguments. What came of
it is one line of JSON in the file `fuzzed` in the owner's directory.
"""

import array
import contextlib
import json
import os
import random
import select
import socket
import struct
import sys
import time
from pathlib import Path
from typing import NoReturn

from mooring_agent.sandbox_init.owner_spawner import OwnerSpawner
from mooring_agent.sandbox_init.spawner import run

LIST = 4
BATCH = 50


class FuzzingSpawner(OwnerSpawner):
    def _supervise(self, listener: socket.socket, init: socket.socket, go: int) -> NoReturn:
        os.read(go, 2)
        chance, seconds = random.Random(sys.argv[2]), float(sys.argv[1])
        outcome = {"packets": 0, "answered": 0, "alive": True}
        try:
            end = time.monotonic() + seconds
            while time.monotonic() < end and outcome["alive"]:
                for _ in range(BATCH):
                    outcome["packets"] += send_something(init, chance)
                    outcome["answered"] += len(drained(init))
                outcome["alive"] = answers(init)
        finally:
            Path(self.plan["directory"], "fuzzed").write_text(json.dumps(outcome))
            os._exit(0)


def send_something(init: socket.socket, chance: random.Random) -> int:
    """One packet: noise, or a request with odd numbers, texts and descriptors. None that asks to signal everything."""
    operation, number = chance.choice([0, 1, 1, 1, 3, 4, 5, 6, 2**31]), chance.choice([0, 1, 4, 2**31 - 1, -(2**31)])
    noise = chance.randbytes(chance.choice([0, 1, 19, 20, 21, 200, 4096, 9000]))
    packet = noise if chance.random() < 0.3 else struct.pack("=IIiii", 7, operation, number, 15, 80) + noise
    if packet[4:8] == struct.pack("=I", 2) or not packet:
        return 0
    files = [os.memfd_create("noise") for _ in range(chance.randrange(5))]
    for file in files:
        os.write(file, plan_like(chance) if chance.random() < 0.7 else chance.randbytes(chance.randrange(300)))
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    with contextlib.suppress(BlockingIOError):
        init.sendmsg([packet], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    for file in files:
        os.close(file)
    return 1


def plan_like(chance: random.Random) -> bytes:
    """Nearly a plan: right or wrong counts, with or without the ends of its words."""
    counts = [chance.choice([0, 1, 2, 3, 16384, 2**32 - 1]) for _ in range(3)]
    words = [b"/", *(chance.choice([b"true", b"", b"A=b", b"x" * 5000]) for _ in range(chance.randrange(6)))]
    return struct.pack("=5I", 1000, 1000, *counts) + b"\0".join(words) + chance.choice([b"\0", b""])


def drained(init: socket.socket) -> list[bytes]:
    """What the init has said so far; descriptors are closed."""
    said = []
    while select.select([init], [], [], 0.0)[0]:
        packet, descriptors, _, _ = socket.recv_fds(init, 65536, 8)
        for each in descriptors:
            os.close(each)
        if not packet:
            break
        said.append(packet)
    return said


def answers(init: socket.socket) -> bool:
    """Whether the init still answers a sensible request."""
    number = 0x1234
    init.setblocking(True)
    init.settimeout(60)
    try:
        init.send(struct.pack("=IIiii", number, LIST, 0, 0, 0))
        while True:
            packet, descriptors, _, _ = socket.recv_fds(init, 65536, 8)
            for each in descriptors:
                os.close(each)
            if not packet:
                return False
            if struct.unpack_from("=I", packet)[0] == number:
                return True
    except OSError:
        return False


if __name__ == "__main__":
    run(FuzzingSpawner)
