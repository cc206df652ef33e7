"""Modules that are loaded when they are first used."""

import subprocess
import sys
from pathlib import Path

import pytest

from mooring.gateways.lazy_import import lazy_module

LOADED = """
import sys
import mooring.wiring
print(*(name for name, module in sys.modules.items() if type(module).__name__ != "_LazyModule"))
"""
USED_LATER = {"argon2", "httpx", "rich", "structlog", "mooring.gateways.signing.cosign"}
SOME_PROCESSES = (
    "mooring.api.app",
    "mooring.api.routes.",
    "mooring.api.schemas.",
    "mooring.relay.",
    "mooring.workers.",
)


def test_a_lazy_module_is_loaded_at_its_first_use_and_is_the_one_that_an_import_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "lazy_example"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "part.py").write_text("import sys\nsys.modules['loaded_example'] = sys\nvalue = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    part = lazy_module("lazy_example.part")

    assert "loaded_example" not in sys.modules
    assert sys.modules["lazy_example"].part is part is lazy_module("lazy_example.part")
    assert part.value == 7
    assert sys.modules.pop("loaded_example") is sys
    with pytest.raises(ImportError, match=r"lazy_example\.none"):
        lazy_module("lazy_example.none")


def test_the_start_loads_nothing_that_only_some_processes_use() -> None:
    printed = subprocess.run([sys.executable, "-c", LOADED], check=True, capture_output=True, text=True).stdout
    loaded = set(printed.split())

    assert "mooring.commands.services" in loaded
    assert loaded & USED_LATER == set()
    assert {name for name in loaded if name.startswith(SOME_PROCESSES)} == set()
