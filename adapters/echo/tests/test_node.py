"""The program on the node, run here: it echoes, and is quiet only when it takes no new work and has none."""

import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

WAIT_SECONDS = 180.0
SCRIPT = Path(__file__).resolve().parents[1] / "mooring_echo" / "echo_node.py"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "echo_node.py").write_bytes(SCRIPT.read_bytes())
    return tmp_path


@contextmanager
def serving(place: Path, role: str) -> Iterator[str]:
    command = [sys.executable, "echo_node.py", "serve", "--role", role, "--port", "0"]
    with subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE, text=True) as node:
        assert node.stderr is not None
        yield f"http://127.0.0.1:{node.stderr.readline().rsplit(' ', 1)[1].strip()}"
        node.terminate()


def get(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address, timeout=WAIT_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def becomes_quiet(address: str) -> tuple[int, str]:
    """Its answer once it is quiet: the client has the response a moment before the request counts as done."""
    until = time.monotonic() + WAIT_SECONDS
    while (said := get(f"{address}/quiet"))[0] != 200 and time.monotonic() < until:
        pass
    return said


def test_it_echoes_until_it_is_cordoned_and_again_when_it_is_wanted(place: Path) -> None:
    with serving(place, "worker") as address:
        assert get(f"{address}/echo?text=hello") == (200, "hello")
        assert get(f"{address}/quiet")[0] == 503
        (place / "cordon").write_text("on\n")
        assert get(f"{address}/echo?text=hello")[0] == 503
        assert becomes_quiet(address) == (200, "quiet")
        assert get(f"{address}/wanted")[0] == 200
        assert get(f"{address}/echo?text=again") == (200, "again")


class WorkerDouble(BaseHTTPRequestHandler):
    """A worker behind a gate, which answers when the test allows it."""

    asked, may_answer = threading.Event(), threading.Event()

    def do_GET(self) -> None:
        self.asked.set()
        self.may_answer.wait(WAIT_SECONDS)
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"slow")

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def worker() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), WorkerDouble) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield server
        WorkerDouble.may_answer.set()
        server.shutdown()


def test_it_is_not_idle_while_a_response_is_due(worker: ThreadingHTTPServer, place: Path) -> None:
    peer = {"role": "worker", "name": "worker-0", "address": "127.0.0.1", "port": worker.server_port}
    (place / "peers.json").write_text(json.dumps([peer]))
    answers: list[tuple[int, str]] = []
    with serving(place, "gate") as address:
        caller = threading.Thread(target=lambda: answers.append(get(f"{address}/echo?text=fast")))
        caller.start()
        assert WorkerDouble.asked.wait(WAIT_SECONDS)
        (place / "cordon").write_text("on\n")
        busy = get(f"{address}/quiet")
        WorkerDouble.may_answer.set()
        caller.join()
        assert busy == (503, "1 under way")
        assert answers == [(200, "slow")], "the answer is the worker's"
        assert becomes_quiet(address) == (200, "quiet")


def test_what_is_remembered_is_in_the_file(place: Path) -> None:
    command = [sys.executable, "echo_node.py", "remember", 'a "text"']
    assert subprocess.run(command, cwd=place, capture_output=True, text=True, check=True).stdout == 'a "text"\n'
    assert (place / "memory").read_text() == '"a \\"text\\""\n'
