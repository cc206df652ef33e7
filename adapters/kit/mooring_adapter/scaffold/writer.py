"""What `mooring adapter init` writes: a small app, its manifest, and an adapter that keeps every promise of the suite.

The templates are complete, working files: `templates/app` is the same for every language, and the others hold the
adapter itself. Writing replaces the name of the app, and pins the app's program in the manifest.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

APP: Final = "example-app"
PROGRAM: Final = "server.py"
UNPINNED: Final = "sha256:" + "0" * 64
SLUG: Final = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
RENAMED: Final = {"gitignore": ".gitignore"}
"""A `.gitignore` among the templates would hide files of this project."""


class ScaffoldRefused(Exception):
    """Nothing was written; the message says why."""


@dataclass(frozen=True, slots=True)
class Language:
    """How an adapter in this language is run."""

    needs: str
    run: str
    parts: str
    build: str = ""


LANGUAGES: Final = {
    "python": Language(
        needs="Python 3.11 and the kit: `pip install 'mooring-adapter[conformance]'`",
        run="python3 adapter.py",
        parts="`adapter.py` says what the app needs; the kit (`mooring_adapter`) speaks the contract",
    ),
    "node": Language(
        needs="Node 18.17 or newer, and no packages",
        run="node adapter.mjs",
        parts="`adapter.mjs` says what the app needs, `steps.mjs` does what is due, `mooring.mjs` speaks the contract",
    ),
    "shell": Language(
        needs="bash, curl, jq and openssl",
        run="./adapter.sh",
        parts="`plan.jq` says what the app needs, `steps.jq` what is due, `mooring.sh` speaks the contract",
    ),
    "go": Language(
        needs="Go 1.19 or newer, and no modules",
        run="./adapter",
        parts="`adapter.go` says what the app needs, `steps.go` does what is due, `mooring.go` speaks the contract",
        build="go build -o adapter .",
    ),
}


def write(directory: Path, language: str, app: str) -> list[str]:
    """Write an adapter into a directory that is new or empty; returns the names of its files."""
    if SLUG.fullmatch(app) is None:
        raise ScaffoldRefused(f"{app!r} cannot be the name of an app: lower-case letters, digits and hyphens")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ScaffoldRefused(f"{directory} exists and is not an empty directory")
    written = {name: _filled(text, language, app) for name, text in _templates(language)}
    digest = hashlib.sha256(written[PROGRAM].encode()).hexdigest()
    written["manifest.json"] = written["manifest.json"].replace(UNPINNED, f"sha256:{digest}")
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in written.items():
        (directory / name).write_text(text, encoding="utf-8")
        if name.endswith(".sh"):
            (directory / name).chmod(0o755)
    return sorted(written)


def _templates(language: str) -> Iterator[tuple[str, str]]:
    for folder in ("app", language):
        place: Traversable = files("mooring_adapter.scaffold") / "templates" / folder
        for each in place.iterdir():
            if each.is_file():
                yield RENAMED.get(each.name, each.name), each.read_text(encoding="utf-8")


def _filled(text: str, language: str, app: str) -> str:
    found = LANGUAGES[language]
    build = f"{found.build}\n" if found.build else ""
    before = f"--before '{found.build}' " if found.build else ""
    values = {
        APP: app,
        "@NEEDS@": found.needs,
        "@PARTS@": found.parts,
        "@BUILD@\n": build,
        "@BEFORE@ ": before,
        "@RUN@": found.run,
    }
    for name, value in values.items():
        text = text.replace(name, value)
    return text
