"""The pipeline of docs/app-teams/pipeline.md, run as it stands there, by a service account alone."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_cli import Run, home, mooring, platform_admin, run, tenant_admin

__all__ = ["home", "mooring", "platform_admin", "run", "tenant_admin"]  # fixtures

pytestmark = pytest.mark.real_part("postgresql")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "app-teams" / "pipeline.md"
TITLED = re.compile(r"^```\w+ title=(\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_documented_pipeline_publishes_stages_activates_and_rolls_back(
    run: Run, tenant_admin: str, home: Path, tmp_path: Path
) -> None:
    blocks = dict(TITLED.findall(PAGE.read_text(encoding="utf-8")))
    for name in ("bundle.yaml", "manifest.yaml", "program.sh", "pipeline.sh"):
        (tmp_path / name).write_text(blocks[name])
    check = tmp_path / "canary-is-well"
    check.write_text("#!/bin/sh\nexit 0\n")
    check.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MOORING_", "XDG_"))}
    environment = {**kept, "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}", "HOME": str(home)}

    def shell(script: str, **more: str) -> subprocess.CompletedProcess[str]:
        words = ["sh", "-euc", script]
        return subprocess.run(
            words, cwd=tmp_path, env=environment | more, capture_output=True, text=True, timeout=120, check=False
        )

    set_up = shell(blocks["set-up"], MOORING_CONTEXT=tenant_admin)
    assert set_up.returncode == 0, set_up.stderr
    account = dict(re.findall(r"export (\w+)=(\S+)", set_up.stderr))
    environment |= account | {"HOME": str(tmp_path / "nobody")}  # no context of a person is near

    first = shell(blocks["pipeline.sh"])
    assert first.returncode == 0, first.stderr
    again = shell("mooring publish . --promote active -o json")
    assert (again.returncode, '"changed": false' in again.stdout) == (0, True), again.stdout + again.stderr

    program = tmp_path / "program.sh"
    program.write_text(program.read_text() + "# changed\n")
    other = shell("mooring publish .")
    assert (other.returncode, "raise the version" in other.stderr) == (5, True), other.stderr
    (tmp_path / "manifest.yaml").write_text(blocks["manifest.yaml"].replace("1.0.0", "1.1.0", 1))
    check.write_text("#!/bin/sh\nexit 1\n")
    second = shell(blocks["pipeline.sh"])
    assert second.returncode == 1, second.stderr
    listed = run("apps", "versions", "list", "welcome", "--context", tenant_admin, "-o", "json").data
    assert {each["version"]: each["status"] for each in listed} == {"1.0.0": "active", "1.1.0": "staged"}
    assert shell("mooring apps create --slug other --display-name Other --category web").returncode == 3
    program.write_bytes(b"x" * (128 * 1024 + 1))
    assert shell("mooring publish .").returncode == 1
