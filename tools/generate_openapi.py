"""Write `openapi/openapi.json`, the public contract, from the routes; or compare it with them.

Without an option the document is written; with `--check` nothing is, and the exit code is 1, with the difference
printed, when the committed document is not what the routes say. The order is that of the paths and of the names of the
schemas, so that a change of the contract is a difference that a person can read.
"""

import argparse
import difflib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from mooring.api.openapi import document
from mooring.api.routes import ROUTES

FILE = Path(__file__).resolve().parent.parent / "openapi" / "openapi.json"
DIFFERENCE_LINES_MAX = 200


def text() -> str:
    """The document as it is committed."""
    if not ROUTES:
        raise RuntimeError("no route is declared: there would be nothing in the document")
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


def check(path: Path, wanted: str) -> int:
    """0 where the document at `path` is the wanted one; else 1, with the beginning of the difference printed."""
    found = path.read_text(encoding="utf-8") if path.exists() else ""
    if found == wanted:
        return 0
    difference = difflib.unified_diff(
        found.splitlines(keepends=True),
        wanted.splitlines(keepends=True),
        f"{path.name} (stored)",
        "the routes",
    )
    for _, line in zip(range(DIFFERENCE_LINES_MAX), difference, strict=False):
        sys.stderr.write(line)
    sys.stderr.write(f"{path} is not what the routes say; run tools/generate_openapi.py and note it in CHANGELOG.md\n")
    return 1


def main(arguments: Sequence[str], path: Path = FILE) -> int:
    """Write or check the document; the exit code."""
    parser = argparse.ArgumentParser(description="Write openapi/openapi.json from the routes.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    checked = parser.parse_args(arguments).check
    wanted = text()
    if checked:
        return check(path, wanted)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
