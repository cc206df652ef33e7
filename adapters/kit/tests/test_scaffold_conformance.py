"""The adapter of each language keeps every promise, as `mooring adapter init` writes it."""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mooring_adapter.conformance.report import KEPT, PromiseResult
from mooring_adapter.conformance.suite import play, promises, read_json, read_profile
from mooring_adapter.scaffold.writer import LANGUAGES, write

LANES = 3
PROGRAMS = {"node": ("node",), "shell": ("bash", "curl", "jq", "openssl"), "go": ("go",)}
COMMANDS = {
    "python": (sys.executable, "adapter.py"),
    "node": ("node", "adapter.mjs"),
    "shell": ("./adapter.sh",),
    "go": ("./adapter",),
}


@pytest.mark.real_part("languages of adapters")
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_new_adapter_keeps_every_promise(language: str, tmp_path: Path) -> None:
    missing = [name for name in PROGRAMS.get(language, ()) if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not on this machine: {', '.join(missing)}")
    write(tmp_path, language, "my-app")
    if build := LANGUAGES[language].build:
        subprocess.run(build.split(), cwd=tmp_path, check=True)
    *program, last = COMMANDS[language]
    command = (*program, str(tmp_path / last))
    known = promises()

    def lane(number: int) -> list[PromiseResult]:
        details = {**read_json(tmp_path / "profile.json"), "patience_seconds": 120}
        profile = read_profile(read_json(tmp_path / "manifest.json"), details)
        return play(command, profile, known[number::LANES], lambda result: None)

    with ThreadPoolExecutor(LANES) as lanes:
        results = [each for found in lanes.map(lane, range(LANES)) for each in found]
    assert {each.promise: (each.reason, *each.last_lines) for each in results if each.verdict != KEPT} == {}
    assert len(results) == len(known)
