"""`mooring adapter dev`: requests are shown, a changed file starts the adapter again, typed words are operations."""

import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

from mooring_adapter.conformance.fake_api import ApiRequest
from mooring_adapter.dev import FileWatch, described
from mooring_adapter.scaffold.writer import write

SECONDS_MAX = 60


def wait_for(lines: "queue.Queue[str]", wanted: str) -> str:
    said = ""
    while True:
        line = lines.get(timeout=SECONDS_MAX)
        said += line
        if wanted in line:
            return said


def test_it_deploys_reloads_and_ends(tmp_path: Path) -> None:
    write(tmp_path, "python", "my-app")
    words = ["--manifest", "manifest.json", "--profile", "profile.json", "--", sys.executable, "adapter.py"]
    program = subprocess.Popen(
        [sys.executable, "-m", "mooring_adapter.dev", *words],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdin is not None
    assert program.stdout is not None
    lines: queue.Queue[str] = queue.Queue()
    output = program.stdout

    def pump() -> None:
        for line in output:
            lines.put(line)

    threading.Thread(target=pump, daemon=True).start()
    try:
        shown = wait_for(lines, "= dev is running")
        assert "200 POST /runtime/claims" in shown
        with (tmp_path / "adapter.py").open("a", encoding="utf-8") as file:
            file.write("# changed\n")
        wait_for(lines, "- adapter.py changed; starting the adapter again")
        program.stdin.write("add\n")
        program.stdin.flush()
        wait_for(lines, "dev-server-3 ready")
        program.send_signal(signal.SIGINT)
        assert program.wait(SECONDS_MAX) == 0
    finally:
        program.kill()
        program.wait()


def test_a_refused_request_is_marked_and_hidden_files_are_not_watched(tmp_path: Path) -> None:
    body = {"tasks": [{"step": "start/a"}, {"step": "start/b"}]}
    request = ApiRequest("POST", "/api/v1/runtime/instances/ins_1/tasks:batch", {}, body)
    line = described(request, 403, "permission_denied")
    assert line == "! 403 POST /runtime/instances/ins_1/tasks:batch  start/a, start/b  permission_denied"
    assert described(request, 200, None).startswith("  200 ")
    watch = FileWatch(tmp_path)
    assert watch.changed() == []
    for name in ("plan.py", ".hidden"):
        (tmp_path / name).touch()
    assert (watch.changed(), watch.changed()) == (["plan.py"], [])
