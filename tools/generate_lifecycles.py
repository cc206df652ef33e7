"""Write `docs/lifecycles.md` from the lifecycle tables, or compare it with them.

Without an option the page is written; with `--check` nothing is, and the exit code is 1, with the difference
printed, when the page is not what the tables say.
"""

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

from mooring.core.lifecycle_docs import page
from mooring.core.lifecycles import LIFECYCLES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "lifecycles.md"


def check(path: Path, wanted: str) -> int:
    """0 where the page at `path` is the wanted one; else 1, with the difference printed."""
    found = path.read_text(encoding="utf-8") if path.exists() else ""
    if found == wanted:
        return 0
    difference = difflib.unified_diff(
        found.splitlines(keepends=True),
        wanted.splitlines(keepends=True),
        f"{path.name} (stored)",
        "the tables",
    )
    sys.stderr.writelines(difference)
    sys.stderr.write(f"{path} is not what the tables say; run tools/generate_lifecycles.py\n")
    return 1


def main(arguments: Sequence[str], path: Path = PAGE) -> int:
    """Write or check the page; the exit code."""
    parser = argparse.ArgumentParser(description="Write docs/lifecycles.md from the lifecycle tables.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    wanted = page(LIFECYCLES)
    if parser.parse_args(arguments).check:
        return check(path, wanted)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
