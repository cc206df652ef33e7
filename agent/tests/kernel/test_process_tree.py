"""Process trees, tested in a process of their own: it may kill everything below itself."""

import json
import subprocess
import sys

FAMILY = """
import json, os, signal, time
from mooring_agent.kernel import process_tree

def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid

def parent_of_many():
    killed = []
    os.read(begins, 1)
    for _ in range(200):
        pid = child(lambda: time.sleep(0.001))
        _, status = os.waitpid(pid, 0)
        killed.append(os.WIFSIGNALED(status))
    os.write(writer, json.dumps(sum(killed)).encode() + b"\\n")

begins, begin = os.pipe()
reader, writer = os.pipe()
spared = child(parent_of_many)
stranger = child(lambda: time.sleep(1000))
seen = {"below": sorted(process_tree.descendants(os.getpid())) == sorted([spared, stranger])}
os.write(begin, b".")
while process_tree.kill_below(os.getpid(), {spared}):
    pass  # who is killed takes a moment to end
_, status = os.waitpid(stranger, 0)
seen["stranger"] = os.WTERMSIG(status)
while process_tree.descendants(os.getpid()):  # as long as the spared one lives
    process_tree.kill_below(os.getpid(), {spared})
seen["killed"] = json.loads(os.read(reader, 100))
print(json.dumps(seen))
"""


def test_who_is_spared_keeps_what_it_starts_meanwhile() -> None:
    done = subprocess.run([sys.executable, "-c", FAMILY], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"below": True, "stranger": 9, "killed": 0}
