"""Bytes that nobody would send, made from bytes that somebody would: a small mutation fuzzer for parsers.

In `make test` it makes a fixed number of inputs from a fixed seed; in `make soak` it goes on for a bounded time from
the seed of that run. A failure names the input, so that it can become an example.
"""

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hypothesis import settings

from tools.soak import is_soak, played, seed

INPUTS = 400
SOAK_SECONDS = 120.0
SIZE_MAX = 200_000
thorough = settings(max_examples=5_000 if is_soak() else 100)
"""For properties: their number of examples, more in a soak."""


@contextmanager
def named(data: bytes) -> Iterator[None]:
    """Name the input in a failure."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"the input was {data!r}")
        raise


def mutated(corpus: Sequence[bytes]) -> Iterator[bytes]:
    """Mutations of these inputs."""
    chance = random.Random(seed())
    until = time.monotonic() + SOAK_SECONDS
    number = 0
    while (time.monotonic() < until) if is_soak() else (number < INPUTS):
        number += 1
        data = chance.choice(corpus)
        for _ in range(chance.randrange(1, 6)):
            data = _mutate(chance, data, corpus)
        played()
        yield data[:SIZE_MAX]


def _mutate(chance: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    begin = chance.randrange(len(data) + 1)
    end = min(len(data), begin + chance.randrange(1, 20))
    way = chance.randrange(6)
    if way == 0:
        return data[:begin] + data[end:]
    if way == 1:
        return data[:end] + data[begin:end] * chance.choice((1, 2, 50)) + data[end:]
    if way == 2:
        return data[:begin] + chance.randbytes(chance.randrange(1, 9)) + data[end:]
    if way == 3:
        return (
            data[:begin] + chance.choice((b"\r", b"\n", b"\0", b" ", b"\t", b"\xff", b":", b"\r\n\r\n")) + data[begin:]
        )
    if way == 4:
        other = chance.choice(corpus)
        return data[:begin] + other[chance.randrange(len(other) + 1) :]
    return data[:begin]
