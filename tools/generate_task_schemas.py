"""Write the agent's copy of the task families, `agent/mooring_agent/tasks/task_schemas.json`, or compare it.

The agent is installed without the server and refuses what its copy does not know. Without an option the copy is
written; with `--check` nothing is, and the exit code is 1, with the difference printed, when it is not what the
registry says. Run it by `python -m tools.generate_task_schemas`.
"""

import argparse
import difflib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from mooring.core.fleet.task_family import published

FILE = Path(__file__).resolve().parent.parent / "agent" / "mooring_agent" / "tasks" / "task_schemas.json"


def text() -> str:
    """The copy as it is committed."""
    return json.dumps(published(), indent=1, ensure_ascii=False) + "\n"


def check(path: Path, wanted: str) -> int:
    """0 where the copy at `path` is the wanted one; else 1, with the difference printed."""
    found = path.read_text(encoding="utf-8") if path.exists() else ""
    if found == wanted:
        return 0
    difference = difflib.unified_diff(
        found.splitlines(keepends=True),
        wanted.splitlines(keepends=True),
        f"{path.name} (stored)",
        "the registry",
    )
    sys.stderr.writelines(difference)
    sys.stderr.write(f"{path} is not what the registry says; run python -m tools.generate_task_schemas\n")
    return 1


def main(arguments: Sequence[str], path: Path = FILE) -> int:
    """Write or check the copy; the exit code."""
    parser = argparse.ArgumentParser(description="Write the agent's copy of the task families.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    wanted = text()
    if parser.parse_args(arguments).check:
        return check(path, wanted)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
