"""A cluster by hand: Slurm's commands by `mooring connect`, the queue by `mooring slurm`, and what is written of it."""

import json
import os
import subprocess
import sys

import pytest

from tests.e2e.slurm.cluster import REASON, SlurmSite, SlurmTenant
from tests.e2e.slurm.cluster_reads import count_audited

SCRIPT = "#!/bin/sh\necho begun on $SLURMD_NODENAME; echo of errors >&2; exit 3\n"


def mooring(place: SlurmSite, tenant: SlurmTenant, *words: str, given: str = "") -> "subprocess.CompletedProcess[str]":
    """The command line of the tenant's admin, in a pipeline."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MOORING_")}
    environment = {
        **kept,
        "MOORING_URL": place.mooring.url,
        "MOORING_TOKEN": tenant.token,
        "MOORING_PROJECT": tenant.project_id,
        "HOME": str(place.directory),
    }
    command = [sys.executable, "-m", "mooring_cli", *words]
    return subprocess.run(
        command, env=environment, input=given, capture_output=True, text=True, timeout=180, check=False
    )


@pytest.fixture(scope="module")
def cluster(place: SlurmSite, ada: SlurmTenant) -> str:
    """A cluster with two workers."""
    return place.launch(ada, "byhand", workers=2).id


def test_slurms_own_commands_behave_in_a_pipeline_as_its_users_expect(
    place: SlurmSite, ada: SlurmTenant, cluster: str
) -> None:
    names = [each.name for each in place.members(ada, cluster)]
    script = ("sh", "-c", "echo $SLURMD_NODENAME $(id -un)")
    said = mooring(place, ada, "connect", "byhand", "--", "srun", "-N2", "--quiet", *script)
    assert (sorted(said.stdout.splitlines()), said.stderr, said.returncode) == (
        [f"{each} app" for each in names],
        "",
        0,
    )
    said = mooring(place, ada, "slurm", "run", "byhand", "--", "-N1", "sh", "-c", "echo lost >&2; exit 7")
    assert (said.stdout, said.returncode) == ("", 7)
    assert "lost" in said.stderr.splitlines()
    said = mooring(place, ada, "connect", "byhand", "--shell", given="sinfo -h -o %D; id -un; pwd; exit 5\n")
    assert (said.stdout.split()[-3:], said.returncode) == (["2", "app", "/home/app"], 5)
    sent = mooring(place, ada, "connect", "byhand", "--", "sbatch", "--parsable", given=SCRIPT)
    assert (sent.stdout.strip().isdigit(), sent.returncode) == (True, 0), sent
    rows = list(ada.client.iter_tenant_audit(ada.tenant_id, action="instance.exec"))
    assert any(each.after and (each.after.get("argv") or [])[:2] == ["srun", "-N2"] for each in rows)


def test_the_queue_and_the_nodes_are_worked_with_by_the_plug_in(
    place: SlurmSite, ada: SlurmTenant, cluster: str
) -> None:
    worker = place.members(ada, cluster)[0].name
    said = mooring(place, ada, "slurm", "submit", "byhand", "-", "--name", "by-hand", "--wait", given=SCRIPT)
    assert said.returncode == 3, said
    number = said.stdout.split()[-1]
    (job,) = json.loads(mooring(place, ada, "slurm", "queue", "byhand", "--job", number, "-o", "json").stdout)
    assert (job["name"], job["state"], job["exit_code"]) == ("by-hand", "FAILED", 3)
    assert "begun on" in mooring(place, ada, "slurm", "output", "byhand", number, "--follow").stdout
    drained = mooring(place, ada, "slurm", "drain", "byhand", worker, "--reason", "a new disk")
    assert (drained.returncode, "DRAIN" in drained.stderr) == (0, True), drained
    shown = mooring(place, ada, "slurm", "nodes", "byhand").stdout
    assert "a new disk" in shown
    written = mooring(place, ada, "logs", "byhand", worker, "--service", "slurmd").stdout
    assert "slurmd started" in written, written
    resumed = mooring(place, ada, "slurm", "resume", "byhand", worker)
    assert (resumed.returncode, "DRAIN" in resumed.stderr) == (0, False), resumed


def test_each_privileged_action_leaves_its_audit_row(place: SlurmSite, ada: SlurmTenant, cluster: str) -> None:
    """Those of the app itself; what is done with members, versions and attachments has its rows where that is done."""
    worker = place.members(ada, cluster)[0].name
    job = place.act(ada, cluster, "queue.submit", script="#!/bin/sh\nsleep 600\n", key="audited")
    place.act(ada, cluster, "queue.cancel", job_id=job["job_id"])
    place.act(ada, cluster, "node.operate", name=worker, do="drain", reason=REASON)
    place.act(ada, cluster, "node.operate", name=worker, do="resume")
    place.act(ada, cluster, "node.read")
    place.stop(ada, cluster)
    done = count_audited(ada, cluster)
    assert set(done) == {"deploy", "queue.submit", "queue.cancel", "node.operate", "decommission"}
    assert (done["queue.cancel"], done["node.operate"] % 2) == (1, 0)
