"""Each rule of tidy has a text that it refuses and a text that it lets pass."""

import subprocess
from pathlib import Path, PurePosixPath

import pytest

from tests.support.rows import every_row
from tools import tidy
from tools.tidy import (
    FILE_LINES_MAX,
    FUNCTION_LINES_MAX,
    ROOT,
    files,
    long_subjects,
    problems,
)

HEAD = '"""What this is."""\n'
CORE = "server/mooring/core/fleet/node.py"
COMMAND = "server/mooring/commands/fleet/node.py"
TEST = "server/tests/core/fleet/test_node.py"
LONG_FUNCTION = "def long() -> None:\n" + "    pass\n" * FUNCTION_LINES_MAX


@every_row(
    ("path", "code", "complaint"),
    [
        (COMMAND, "x = 1\n" * FILE_LINES_MAX, "the file has 501 lines"),
        ("agent/mooring_agent/tasks/x.py", "import os\nos.chmod('x', 0o600)\n", "follow a tenant's link"),
        ("agent/mooring_agent/containers/x.py", "def f(p):\n    p.chmod(0o600)\n", "follow a tenant's link"),
        ("agent/mooring_agent/supervisor/x.py", "open('x')\n", "a link or a FIFO"),
        ("agent/mooring_agent/supervisor/x.py", "import os\nos.open('x', os.O_RDONLY)\n", "a link or a FIFO"),
        ("agent/mooring_agent/hosts/log_parts.py", "def f(p):\n    return p.read_bytes()\n", "a link or a FIFO"),
        (COMMAND, LONG_FUNCTION, "long() has 71 lines"),
        (COMMAND, "def f(a, b, c, d, e, g): ...\n", "f() takes 6 positional parameters"),
        (
            "server/tests/core/fleet/test_node.py",
            "def make(a, b, c, d, e, g): ...\n",
            "make() takes 6 positional parameters",
        ),
        ("server/mooring/commands/node_utils.py", "", "'node_utils' names no thing"),
        ("server/mooring/common/node.py", "", "'common' names no thing"),
        (COMMAND, "class NodeManager: ...\n", "class NodeManager names no thing"),
        (CORE, "async def look() -> None: ...\n", "nothing in it is asynchronous"),
        (CORE, "at = datetime.now()\n", "now() in the core"),
        (CORE, "def f() -> None:\n    global x\n", "keeps no state"),
        (COMMAND, "connection.transaction()\n", "only storage/kernel/unit_of_work.py"),
        (COMMAND, "connection.transaction(readonly=False)\n", "only storage/kernel/unit_of_work.py"),
        (COMMAND, "session.commit()\n", "only storage/kernel/unit_of_work.py"),
        (
            COMMAND,
            'connection.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")\n',
            "only storage/kernel/unit_of_work.py",
        ),
        (COMMAND, "def f() -> None:\n    import os\n", "hides a cycle"),
        ("server/tests/core/fleet/test_node.py", "def f() -> None:\n    import os\n", "hides a cycle"),
        (COMMAND, "kind = 'slurm_node'\n", "'slurm' is known by an adapter"),
        (COMMAND, "class WorkerTold: ...\n", "'Told' is a word of the old dialect"),
        (COMMAND, "x = 1  # begun anew\n", "'anew' is a word"),
        (COMMAND, "x = 'Whoever asks'\n", "'Whoever' is a word"),
        (COMMAND, "heeds = 1\n", "'heeds' is a word"),
        (COMMAND, "def f(a: tuple[str, int]) -> None: ...\n", "a is an anonymous tuple"),
        (COMMAND, "def f(*, a: Sequence[tuple[str, int]] | None) -> None: ...\n", "a is an anonymous tuple"),
        (TEST, "def make(a: tuple[str, int]) -> None: ...\n", "a is an anonymous tuple"),
        (COMMAND, "f(\n    1, 2,\n)  # fmt: skip\n", "outside a table"),
        (COMMAND, "def f() -> None:\n    x = [\n        1,\n    ]  # fmt: skip\n", "outside a table"),
        (COMMAND, "x = f(\n    1, 2,\n)  # fmt: skip\n", "outside a table"),
        (TEST, "time.sleep(1)\n", "a test that sleeps"),
        (TEST, "async def f() -> None:\n    await asyncio.sleep(0)\n", "a test that sleeps"),
        (TEST, "from asyncio import sleep\n", "a test that sleeps"),
    ],
)
def test_a_violation_is_reported_with_its_place(path: str, code: str, complaint: str) -> None:
    found = problems(PurePosixPath(path), HEAD + code)
    assert len(found) == 1
    assert found[0].startswith(f"{path}:")
    assert complaint in found[0]


def test_a_module_without_a_docstring_is_reported() -> None:
    assert problems(PurePosixPath(COMMAND), "x = 1\n") == [f"{COMMAND}:1: the module has no docstring"]


@every_row(
    ("path", "code"),
    [
        (COMMAND, "def f(a, b, c, d, e, *, g): ...\n"),
        (COMMAND, "class A:\n    def f(self, a, b, c, d, e): ...\n"),
        (COMMAND, "connection.transaction(readonly=True)\n"),
        (COMMAND, "names = array.arrays\n"),
        (COMMAND, "trigger = 'commit'\n"),
        (CORE, "def f(now: int) -> int:\n    return now\n"),
        ("server/mooring/storage/kernel/unit_of_work.py", "connection.transaction()\n"),
        ("server/mooring/storage/kernel/database.py", "class DatabaseUrl: ...\n"),
        ("server/tests/core/fleet/test_node.py", "def test_it(a, b, c, d, e, g) -> None: ...\n"),
        ("agent/mooring_agent/tasks/x.py", "import os\nos.fchmod(3, 0o600)\n"),
        ("agent/mooring_agent/supervisor/x.py", "import os\nos.open('x', os.O_RDONLY | os.O_NOFOLLOW)\n"),
        ("agent/mooring_agent/hosts/select.py", "import os\nos.open('x', os.O_RDONLY)\n"),
        ("cli/mooring_cli/main.py", "def f() -> None:\n    import rich\n"),
        (COMMAND, "x = 'a new threshold'\n"),
        (COMMAND, "def f(a: tuple[str, ...], b: tuple[int, int]) -> tuple[str, int]: ...\n"),
        (TEST, "def test_it(a: tuple[str, int]) -> None: ...\n"),
        (COMMAND, "TABLE = {\n    1: 2,\n}  # fmt: skip\n"),
        (COMMAND, "class A:\n    TABLE: Final = f((\n        1, 2,\n    ))  # fmt: skip\n"),
        (TEST, "@pytest.mark.parametrize('a', [\n    1, 2,\n])  # fmt: skip\ndef test_it(a: int) -> None: ...\n"),
        (COMMAND, "x = '# fmt: skip'\n"),
        (COMMAND, "time.sleep(1)\n"),
        ("server/tests/support/waiting.py", "time.sleep(1)\n"),
        (TEST, "clock.sleep(1)\nscript = 'sleep 1'\n"),
    ],
)
def test_what_is_allowed_passes(path: str, code: str) -> None:
    assert problems(PurePosixPath(path), HEAD + code) == []


def test_a_long_subject_is_reported_if_its_commit_is_newer_than_the_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        named = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        return subprocess.run(["git", *named, *words], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "x" * 80)
    monkeypatch.setattr(tidy, "SUBJECTS_SINCE", git("rev-parse", "HEAD").strip())
    git("commit", "-q", "--allow-empty", "-m", "y" * 72)
    assert long_subjects(tmp_path) == []
    git("commit", "-q", "--allow-empty", "-m", "z" * 73)
    (found,) = long_subjects(tmp_path)
    assert "the subject has 73 characters (at most 72)" in found


def test_without_a_history_no_subject_is_reported(tmp_path: Path) -> None:
    assert long_subjects(tmp_path) == []


def test_a_generated_file_is_not_read() -> None:
    assert problems(PurePosixPath("sdk/mooring_sdk/models.py"), "# Generated from openapi/\n" + LONG_FUNCTION) == []


def test_every_part_of_the_tree_is_visited() -> None:
    visited = {path.relative_to(ROOT).parts[0] for path in files(ROOT)}
    assert {"server", "sdk", "cli", "tools", "conftest.py"} <= visited
