"""A client that several threads use at once."""

import subprocess
import sys

FIRST_USES = """
import sys, threading
from typing import Annotated
import msgspec
from mooring_sdk import decoding

sys.setswitchinterval(1e-6)

def use(kind, all_at_once, seen):
    all_at_once.wait()
    seen.append(decoding.decode(b'{"field_3": [1]}', kind).field_3)

for number in range(200):
    fields = [(f"field_{each}", "list[Annotated[int, msgspec.Meta(ge=0)]] | None", None) for each in range(20)]
    kind, all_at_once, seen = msgspec.defstruct(f"Kind{number}", fields, module="__main__"), threading.Barrier(4), []
    threads = [threading.Thread(target=use, args=(kind, all_at_once, seen)) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert seen == [[1]] * 4, seen
"""


def test_a_model_that_several_threads_use_first_at_the_same_time_is_read() -> None:
    """In its own process: without the lock it crashes."""
    done = subprocess.run([sys.executable, "-c", FIRST_USES], capture_output=True, text=True, timeout=180, check=False)
    assert (done.returncode, done.stderr) == (0, "")
