"""Write the copies of the task families, or compare them.

The agent is installed without the server and refuses what its copy does not know. The public contract has the registry
as `openapi/task-schemas.json`, with the arguments as adapters give them; the conformance suite of the kit checks tasks
by the same, and the bodies of an adapter's requests by their schemas in `openapi/openapi.json`. Without an option the
copies are written; with `--check` nothing is, and the exit code is 1, with the difference printed, when one is not what
the registry or the routes say. Run it by `python -m tools.generate_task_schemas`.
"""

import argparse
import difflib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mooring.api.openapi import document
from mooring.api.routes import ROUTES
from mooring.core.fleet.task_family import published, published_for_adapters

ROOT = Path(__file__).resolve().parent.parent
KIT = ROOT / "adapters" / "kit" / "mooring_adapter" / "conformance"


def copies() -> dict[Path, str]:
    """Each copy as it is committed."""
    for_adapters = _text(published_for_adapters())
    return {
        ROOT / "agent" / "mooring_agent" / "tasks" / "task_schemas.json": _text(published()),
        ROOT / "openapi" / "task-schemas.json": for_adapters,
        KIT / "task_schemas.json": for_adapters,
        KIT / "request_schemas.json": _text(adapter_requests(document())),
    }


def adapter_requests(contract: dict[str, Any]) -> dict[str, Any]:
    """The schema of each body that an adapter sends, by the last part of its route, with the parts they refer to."""
    if not ROUTES:
        raise RuntimeError("no route is declared: there would be no schema")
    routes = {
        path.rpartition("/")[2]: verbs["post"]["requestBody"]["content"]["application/json"]["schema"]
        for path, verbs in contract["paths"].items()
        if path.startswith("/api/v1/runtime/") and "post" in verbs
    }
    schemas, needed = contract["components"]["schemas"], dict[str, Any]()
    waiting = _references(routes)
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed[name] = schemas[name]
            waiting |= _references(schemas[name])
    return {"routes": routes, "components": {"schemas": {name: needed[name] for name in sorted(needed)}}}


def _references(schema: Any) -> set[str]:
    if isinstance(schema, dict):
        own = {schema["$ref"].rpartition("/")[2]} if isinstance(schema.get("$ref"), str) else set()
        return own.union(*(_references(each) for each in schema.values()))
    return set().union(*(_references(each) for each in schema)) if isinstance(schema, list) else set()


def _text(registry: dict[str, Any]) -> str:
    return json.dumps(registry, indent=1, ensure_ascii=False) + "\n"


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


def main(arguments: Sequence[str]) -> int:
    """Write or check the copies; the exit code."""
    parser = argparse.ArgumentParser(description="Write the copies of the task families.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    wanted = copies()
    if parser.parse_args(arguments).check:
        return max(check(path, text) for path, text in wanted.items())
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
