"""Write `openapi/bundle-schema.json`, the JSON Schema of bundles, from the command line's; or compare it.

Without an option it is written; with `--check` nothing is, and the exit code is 1 when it differs. Run it by
`python -m tools.generate_bundle_schema`.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from mooring_cli.bundle import SCHEMA
from tools.generate_task_schemas import check

FILE = Path(__file__).resolve().parent.parent / "openapi" / "bundle-schema.json"


def text() -> str:
    return json.dumps(SCHEMA, indent=1, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write or check the schema; the exit code."""
    parser = argparse.ArgumentParser(description="Write the JSON Schema of bundles.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    if parser.parse_args(arguments).check:
        return check(FILE, text())
    FILE.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
