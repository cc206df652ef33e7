"""Write the generated files of the SDK and the CLI and their pages from the OpenAPI document, or check them.

With `--check` nothing is written; if a file is out of date, the difference is printed and the exit code is 1.

Every file is formatted by ruff. Run it with `python -m tools.generate_sdk`.
"""

import argparse
import difflib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # when this file is run by its path
    sys.path.insert(0, str(ROOT))

from tools.generation.commands import nouns, table_module  # noqa: E402
from tools.generation.document import OpenApiDocument  # noqa: E402
from tools.generation.errors import errors_module  # noqa: E402
from tools.generation.models import models_module  # noqa: E402
from tools.generation.operations import operation_table, operations_module  # noqa: E402
from tools.generation.pages import cli_page, sdk_page  # noqa: E402
from tools.generation.stubs import methods_stub  # noqa: E402

SOURCE = ROOT / "openapi" / "openapi.json"


def generated(document: OpenApiDocument) -> dict[str, str]:
    """The path and the text of every generated file."""
    table = operation_table(document)
    raw = {
        "sdk/mooring_sdk/models.py": models_module(document),
        "sdk/mooring_sdk/errors.py": errors_module(document),
        "sdk/mooring_sdk/operations.py": operations_module(document),
        "sdk/mooring_sdk/methods.pyi": methods_stub(table),
        "cli/mooring_cli/noun_table.py": table_module(document),
    }
    made = {path: formatted(path, text) for path, text in raw.items()}
    made["docs/sdk.md"] = sdk_page(ROOT / "docs" / "sdk.md", document)
    made["docs/cli.md"] = cli_page(ROOT / "docs" / "cli.md", nouns(document).values(), table)
    return made


def formatted(path: str, text: str) -> str:
    """The text as ruff formats it, without unused imports."""
    ruff = str(Path(sys.executable).parent / "ruff")
    fix = [ruff, "check", "--quiet", "--fix-only", "--select", "F401,I", "--stdin-filename", path, "-"]
    for command in (fix, [ruff, "format", "--quiet", "--stdin-filename", path, "-"]):
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    long = subprocess.run(
        [ruff, "check", "--quiet", "--select", "E501", "-"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    if long.returncode:
        head, _, rest = text.partition("\n")
        text = f"{head}\n# ruff: noqa: E501\n{rest}"  # sentences of the document are not wrapped
    return text


def differences(root: Path, wanted: Mapping[str, str]) -> list[str]:
    """A diff of the stored files and the wanted ones."""
    lines: list[str] = []
    for path, text in wanted.items():
        stored = root / path
        found = stored.read_text(encoding="utf-8") if stored.exists() else ""
        if found != text:
            before, after = found.splitlines(keepends=True), text.splitlines(keepends=True)
            lines += difflib.unified_diff(before, after, f"{path} (stored)", "openapi/openapi.json")
    return lines


def main(arguments: Sequence[str], source: Path = SOURCE, root: Path = ROOT) -> int:
    """Write or check the files; returns the exit code."""
    parser = argparse.ArgumentParser(description="Write the SDK's and the CLI's generated files.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    checks = parser.parse_args(arguments).check
    wanted = generated(OpenApiDocument(json.loads(source.read_text(encoding="utf-8"))))
    if checks:
        found = differences(root, wanted)
        sys.stderr.writelines(found)
        if found:
            sys.stderr.write("generated files are out of date; run python -m tools.generate_sdk\n")
        return 1 if found else 0
    for path, text in wanted.items():
        (root / path).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
