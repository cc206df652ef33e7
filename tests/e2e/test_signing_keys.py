"""Keys that sign tasks, from the command line to a real agent: many rotations, and the root key's last word."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.e2e.agent_platform import AgentPlatform, running_agent_platform
from tests.support.waiting import until_sync


def mooring(place: AgentPlatform | None, *words: str) -> str:
    """The output of the command, as the platform's admin."""
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    if place is not None:
        environment |= {
            "MOORING_URL": place.mooring.url,
            "MOORING_TOKEN": place.admin.create_token(name="keys").token,
        }
    command = [sys.executable, "-m", "mooring_cli", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def trusted(place: AgentPlatform) -> dict[str, Any]:
    """What the agent has stored."""
    return dict(json.loads((place.machines[0].directory / "identity.json").read_text()))


def test_a_node_follows_its_platform_and_the_root_key_replaces_every_other(tmp_path: Path) -> None:
    root = tmp_path / "root.pem"
    public = mooring(None, "root-key", "create", "--private-key-file", str(root)).strip()
    with running_agent_platform(MOORING_ROOT_KEY=public) as place:
        place.offer()
        machine, project = place.join("process"), place.projects[0]
        assert trusted(place)["root_key"] == public
        for _ in range(12):  # more than a poll announces
            newest = place.admin.rotate_task_signing_key()
        works(place, project)
        assert trusted(place)["platform_keys"][-1]["key_id"] == newest.key_id
        prepared, signed = tmp_path / "prepared.json", tmp_path / "signed.json"
        prepared.write_text(mooring(place, "task-signing-keys", "prepare", "-o", "json"))
        signed.write_text(mooring(None, "root-key", "sign", str(prepared), "--private-key-file", str(root)))
        mooring(place, "task-signing-keys", "install", "-f", str(signed))
        shown = json.loads(prepared.read_text())
        until_sync(lambda: trusted(place)["epoch"] == shown["epoch"], 60)
        assert [key["key_id"] for key in trusted(place)["platform_keys"]] == [shown["key_id"]]
        assert trusted(place)["retired"] == {}
        machine.stop(signal.SIGKILL)
        machine.start()
        works(place, project)


def works(place: AgentPlatform, project: Any) -> None:
    """The node does what the platform signs."""
    allocation = place.allocate(project)
    place.tenant_admin.release_allocation(project.id, allocation.id)
    over = place.until(lambda seen: seen.status in ("released", "release_failed"), project, allocation.id)
    assert over.teardown_proof == "receipts"
