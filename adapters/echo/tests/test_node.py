"""What runs on a node, run here: it echoes, and is quiet only when it takes no work and has none."""

import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "mooring_echo" / "echo_node.py"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "echo_node.py").write_bytes(SCRIPT.read_bytes())
    return tmp_path


@pytest.fixture
def address(place: Path) -> Iterator[str]:
    command = [sys.executable, "echo_node.py", "serve", "--role", "worker", "--port", "0"]
    with subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE, text=True) as node:
        assert node.stderr is not None
        yield f"http://127.0.0.1:{node.stderr.readline().rsplit(' ', 1)[1].strip()}"
        node.terminate()


def get(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address, timeout=180) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_it_echoes_until_it_is_cordoned_and_again_when_it_is_wanted(address: str, place: Path) -> None:
    assert get(f"{address}/echo?text=hello") == (200, "hello")
    assert get(f"{address}/quiet")[0] == 503
    (place / "cordon").write_text("on\n")
    assert get(f"{address}/echo?text=hello")[0] == 503
    assert get(f"{address}/quiet") == (200, "quiet")
    assert get(f"{address}/wanted")[0] == 200
    assert get(f"{address}/echo?text=again") == (200, "again")


def test_it_is_not_quiet_while_an_answer_is_owed(address: str, place: Path) -> None:
    answers: list[tuple[int, str]] = []
    caller = threading.Thread(target=lambda: answers.append(get(f"{address}/echo?text=slow&seconds=1")))
    caller.start()
    while get(f"{address}/quiet")[1] == "0 under way":
        pass
    (place / "cordon").write_text("on\n")
    busy = get(f"{address}/quiet")
    caller.join()
    assert busy == (503, "1 under way")
    assert answers == [(200, "slow")]
    assert get(f"{address}/quiet") == (200, "quiet")


def test_what_is_remembered_is_in_the_file(place: Path) -> None:
    command = [sys.executable, "echo_node.py", "remember", 'a "text"']
    assert subprocess.run(command, cwd=place, capture_output=True, text=True, check=True).stdout == 'a "text"\n'
    assert (place / "memory").read_text() == '"a \\"text\\""\n'
