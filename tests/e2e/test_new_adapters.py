"""The adapters that `mooring adapter init` writes, on a whole Mooring: deploy, add, drain, remove, an action, stop."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mooring_adapter.bundle import blob_at, installable, key_at, write_bundle
from mooring_adapter.scaffold.writer import LANGUAGES, PROGRAM, write
from tests.e2e.full_platform import FullPlatform

PROGRAMS = {"node": ("node",), "shell": ("bash", "curl", "jq", "openssl"), "go": ("go",)}
COMMANDS = {
    "python": [sys.executable, "adapter.py"],
    "node": ["node", "adapter.mjs"],
    "shell": ["./adapter.sh"],
    "go": ["./adapter"],
}


def here(language: str) -> bool:
    return all(shutil.which(name) for name in PROGRAMS.get(language, ()))


def installed(place: FullPlatform, language: str) -> Path:
    """A new adapter, built, with its app in the catalog and the project entitled to it."""
    app, directory = f"new-{language}", place.directory / f"new-{language}"
    write(directory, language, app)
    if build := LANGUAGES[language].build:
        subprocess.run(build.split(), cwd=directory, check=True)
    manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
    name = f"{app}-{PROGRAM}"
    about = {"slug": app, "display_name": app, "category": "web"}
    bundle = installable(about, manifest, {"program": blob_at(name)}, key_at(directory / "adapter.pem"))
    file = write_bundle(place.apps, bundle, {name: (directory / PROGRAM).read_bytes()})
    place.platform.did("install", str(file), context="platform")
    place.platform.did("install", str(file), "--project", place.platform.project_id)
    return directory


@pytest.fixture(scope="module")
def place(full_platform: FullPlatform) -> Iterator[FullPlatform]:
    """The platform, with a new adapter of each language running on it."""
    with ExitStack() as ends:
        for language in filter(here, LANGUAGES):
            directory = installed(full_platform, language)
            environment = {"MOORING_URL": full_platform.platform.mooring.url, "MOORING_KEY_FILE": "adapter.pem"}
            log = ends.enter_context((full_platform.directory / f"new-{language}.log").open("ab"))
            adapter = subprocess.Popen(
                ["env", *(f"{name}={value}" for name, value in environment.items()), *COMMANDS[language]],
                cwd=directory,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
            ends.callback(adapter.wait, timeout=120)
            ends.callback(adapter.terminate)
        yield full_platform


@pytest.mark.real_part("languages of adapters")
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_new_adapter_operates_its_app(place: FullPlatform, language: str) -> None:
    if not here(language):
        pytest.skip(f"not on this machine: {language}")
    app, name = f"new-{language}", f"{language}-page"

    def statuses() -> list[str]:
        return [each["status"] for each in place.members(name)]

    def changed(*words: str) -> dict[str, Any]:
        return place.changed(name, *words)

    running = place.launch(app, name, "--region", "process")
    assert [each["name"] for each in running["endpoints"]] == ["web"]
    assert place.entered("web").ask("GET", "/").text == f"Hello from {app} 1.0.0\n"
    changed("members", "add", name, "--component", "server", "--count", "1")
    assert statuses() == ["ready", "ready"]
    last = place.members(name)[1]["id"]
    changed("members", "drain", name, last)
    assert statuses() == ["ready", "drained"]
    changed("members", "remove", name, last, "--yes")
    assert statuses() == ["ready"]
    greeted = changed("actions", "act", name, "page.greet", "--input", '{"name": "Ada"}', "--wait", "60")
    assert greeted["output"] == {"greeting": "Hello, Ada"}
    proofs = place.stopped(name)
    assert len(proofs) >= 1
    assert all(place.receipt(each["receipt_id"])["clean"] for each in proofs)
