"""`mooring adapter init`: what it writes, and what it refuses."""

import hashlib
import json
import re
import sys
from pathlib import Path

import pytest

from mooring_adapter.conformance.report import KEPT
from mooring_adapter.conformance.suite import chosen, play, promises, read_json, read_profile
from mooring_adapter.scaffold.writer import LANGUAGES, ScaffoldRefused, write

QUICK = ("deploy", "drain", "upgrade", "actions", "graceful")
CLIENTS = {"node": "mooring.mjs", "shell": "mooring.sh", "go": "mooring.go"}
"""The contract client of each language; Python has the kit."""
CLIENT_LINES_MAX = 150


@pytest.mark.parametrize("language", LANGUAGES)
def test_it_writes_a_whole_app_under_its_own_name(language: str, tmp_path: Path) -> None:
    names = write(tmp_path / "new", language, "my-app")
    texts = {name: (tmp_path / "new" / name).read_text(encoding="utf-8") for name in names}
    assert {"README.md", "manifest.json", "profile.json", "server.py", ".gitignore"} < set(names)
    assert [name for name, text in texts.items() if re.search("example-app|@[A-Z]+@", text)] == []
    manifest = json.loads(texts["manifest.json"])
    digest = hashlib.sha256(texts["server.py"].encode()).hexdigest()
    assert (manifest["app"], manifest["artifacts"]["program"]) == ("my-app", f"sha256:{digest}")
    if language in CLIENTS:
        assert len(texts[CLIENTS[language]].splitlines()) <= CLIENT_LINES_MAX


def test_nothing_is_written_over_files_or_under_a_bad_name(tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine").touch()
    for directory, app in ((tmp_path / "used", "my-app"), (tmp_path / "new", "My App")):
        with pytest.raises(ScaffoldRefused):
            write(directory, "python", app)
    assert [each.name for each in tmp_path.rglob("*")] == ["used", "mine"]


def test_a_new_python_adapter_keeps_its_first_promises(tmp_path: Path) -> None:
    write(tmp_path, "python", "my-app")
    details = {**read_json(tmp_path / "profile.json"), "patience_seconds": 60}
    profile = read_profile(read_json(tmp_path / "manifest.json"), details)
    command = (sys.executable, str(tmp_path / "adapter.py"))
    results = play(command, profile, chosen(promises(), QUICK), lambda result: None)
    assert [(each.promise, each.reason) for each in results if each.verdict != KEPT] == []
    assert len(results) == len(QUICK)
