"""Each rule of tidy has a text that it refuses and a text that it lets pass."""

from pathlib import PurePosixPath

from tests.support.rows import every_row
from tools.tidy import FILE_LINES_MAX, FUNCTION_LINES_MAX, ROOT, files, problems

HEAD = '"""What this is."""\n'
CORE = "server/mooring/core/fleet/node.py"
COMMAND = "server/mooring/commands/fleet/node.py"
LONG_FUNCTION = "def long() -> None:\n" + "    pass\n" * FUNCTION_LINES_MAX


@every_row(
    ("path", "code", "complaint"),
    [
        (COMMAND, "x = 1\n" * FILE_LINES_MAX, "the file has 501 lines"),
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
        ("cli/mooring_cli/main.py", "def f() -> None:\n    import rich\n"),
    ],
)
def test_what_is_allowed_passes(path: str, code: str) -> None:
    assert problems(PurePosixPath(path), HEAD + code) == []


def test_a_generated_file_is_not_read() -> None:
    assert problems(PurePosixPath("sdk/mooring_sdk/models.py"), "# Generated from openapi/\n" + LONG_FUNCTION) == []


def test_every_part_of_the_tree_is_visited() -> None:
    visited = {path.relative_to(ROOT).parts[0] for path in files(ROOT)}
    assert {"server", "sdk", "cli", "tools", "conftest.py"} <= visited
