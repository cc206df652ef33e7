"""Accounting on real Slurm with a real MariaDB, and a control plane that several projects of a tenant share."""

import json
from typing import Any

import pytest

from mooring_sdk import errors, models
from tests.e2e.slurm.cluster import OVER, SKU, SlurmSite, SlurmTenant
from tests.e2e.slurm.cluster_reads import assert_metered, count_audited, job_state, job_usage

HAMMER = """
import collections, json, subprocess, sys, time
said, reasons, until = collections.Counter(), set(), time.monotonic() + 600
while time.monotonic() < until and said["taken"] < 20:
    try:
        done = subprocess.run(["sbatch", "-o", "/dev/null", "--wrap", "true"], capture_output=True, text=True)
    except FileNotFoundError:
        done = None
    if done is None or done.returncode != 0:
        said["refused" if done is None or done.stderr.strip() else "refused without a word"] += 1
        open("/tmp/refused", "w").close()
    else:
        said["taken"] += 1
    seen = subprocess.run(["squeue", "-h", "-a", "-o", "%r"], capture_output=True, text=True)
    reasons |= set(seen.stdout.split())
print(json.dumps({"said": said, "reasons": sorted(reasons)}))
"""


def test_early_submissions_never_fail_with_invalid_account(place: SlurmSite, ada: SlurmTenant) -> None:
    box = ada.client.create_allocation(ada.project_id, sku=SKU, shape="gpu_slice", gpu_count=2, name="head")
    place.active(ada, box.id)
    hammer = ada.client.create_allocation_task(
        ada.project_id,
        box.id,
        type="process.run",
        label="hammer",
        arguments={"argv": ["python3", "-c", HAMMER], "user": "app", "directory": "/tmp", "timeout_seconds": 660},
    )
    place.do(ada, box.id, "probe.exec", argv=["test", "-e", "/tmp/refused"], attempts=600, interval_seconds=0.2)
    made = ada.client.create_instance(
        ada.project_id,
        app="slurm",
        name="strict",
        config={"accounting": True},
        topology={"controller": 1, "worker": 1},
        placement=models.Placement(allocations=[box.id]),
    )
    running = place.running(ada, made.id)
    assert running.topology_mode == "single_node"
    over = place.ended(ada, hammer.id)
    assert over.status == "succeeded", over
    report = json.loads((over.last_lines or [""])[-1])
    assert report["said"]["taken"] == 20
    assert report["said"]["refused"] > 0
    assert set(report["said"]) == {"taken", "refused"}
    assert "InvalidAccount" not in report["reasons"], report
    place.until(
        lambda: place.slurm(ada, made.id, "sacct", "-n", "-X", "-P", "-o", "state").lines.count("COMPLETED") >= 20,
        "twenty jobs in the accounting",
    )
    place.stop(ada, made.id)


def test_projects_of_a_tenant_share_one_cluster_under_accounts_of_their_own(place: SlurmSite, ada: SlurmTenant) -> None:
    speech = ada.client.create_project(ada.tenant_id, slug="speech", display_name="Speech").id
    cluster = place.launch(ada, "shared", workers=1, config={"accounting": True}, scope="tenant").id
    attachment = ada.client.create_attachment(speech, instance_id=cluster)
    active = attached(place, ada, attachment, "active")
    theirs = act(place, ada, attachment, "queue.submit", script=WAITS, gpus=1, key="theirs")
    ours = place.act(ada, cluster, "queue.submit", script="#!/bin/sh\ntrue\n", key="ours")
    shown = place.slurm(ada, cluster, "scontrol", "-o", "show", "job", str(theirs["job_id"]), user="root")
    assert f"Account={active.account_name}" in shown.text
    listed = [each["id"] for each in act(place, ada, attachment, "queue.read")["jobs"]]
    assert theirs["job_id"] in listed
    assert ours["job_id"] not in listed
    gone = detached_around_a_job(place, ada, attachment, theirs["job_id"])

    again = ada.client.create_attachment(speech, instance_id=cluster)
    active = attached(place, ada, again, "active")
    assert active.account_name == gone.account_name, active
    script = "#!/bin/sh\necho ours\nsleep 600\n"
    secret = place.act(ada, cluster, "queue.submit", script=script, key="secret", name="secret")
    report = spied(place, ada, again)
    assert report["jobs"].split() == [active.account_name], "of the queue it sees its own job alone"
    assert (report["files"], report["keys"]) == ("", "")
    place.act(ada, cluster, "queue.cancel", job_id=secret["job_id"])
    act(place, ada, again, "queue.submit", script="#!/bin/sh\nsleep 600\n")
    ada.client.detach_attachment(speech, again.id, cancel_work=True)
    attached(place, ada, again, "detached")

    wanted = job_usage(place, ada, cluster)
    assert {(theirs["job_id"], "job_hours"), (theirs["job_id"], "gpu_hours")} <= set(wanted)
    place.stop(ada, cluster)
    assert_metered(ada, cluster, wanted, {str(active.account_name): speech})
    own = {each.record_id.split("/")[1] for each in ada.client.iter_attachment_usage(speech, attachment.id)}
    assert theirs["job_id"] in own
    assert own <= {job for job, _ in wanted if wanted[job, "job_hours"].account == active.account_name}
    is_in_both_trails(ada, cluster, attachment)


WAITS = "#!/bin/sh\nsleep 1\nwhile [ ! -e /tmp/theirs ]; do sleep 0.1; done\n"


def detached_around_a_job(
    place: SlurmSite, tenant: SlurmTenant, attachment: models.Attachment, job: str
) -> models.Attachment:
    """A detach takes no new work, names the job that is in its way, and waits for its end where it has the time."""
    cluster, account, project = attachment.instance_id, attachment.account_name, attachment.project_id
    place.until(lambda: job_state(place, tenant, cluster, job, "root") == "RUNNING", f"the start of job {job}")
    tenant.client.detach_attachment(project, attachment.id, timeout_seconds=0)
    refused = place.patiently(
        lambda _: tenant.client.get_attachment(project, attachment.id), lambda each: each.blocker is not None
    )
    assert refused.status == "detaching"
    assert f"jobs of {account} still run: {job}" in str(refused.blocker)
    with pytest.raises(errors.IllegalTransition) as late:
        tenant.client.start_attachment_action(project, attachment.id, "queue.submit", input={"script": WAITS})
    assert late.value.details["state"] == "detaching"
    sent = place.slurm(tenant, cluster, "sbatch", "--account", account, "--wrap", "true", user=account)
    assert sent.exit_code != 0, sent

    waiting = tenant.client.detach_attachment(project, attachment.id, timeout_seconds=600)
    place.until(
        lambda: any(
            each.name == "close/2"
            for each in tenant.client.get_operation(tenant.project_id, cluster, waiting.operation_id).steps
        ),
        "the detach's second look for jobs",
    )
    assert job_state(place, tenant, cluster, job, "root") == "RUNNING"
    (worker,) = place.members(tenant, cluster)
    assert place.inside(tenant, worker, "touch", "/tmp/theirs").exit_code == 0
    gone = attached(place, tenant, attachment, "detached")
    assert job_state(place, tenant, cluster, job, "root") == "COMPLETED"
    known = place.slurm(tenant, cluster, "sacctmgr", "-n", "-P", "list", "associations", "format=account", user="root")
    assert account not in known.lines, known
    with pytest.raises(errors.IllegalTransition):
        tenant.client.start_attachment_action(project, attachment.id, "queue.read", input={})
    return gone


def is_in_both_trails(tenant: SlurmTenant, cluster: str, attachment: models.Attachment) -> None:
    """What was asked of the cluster has its row where it is, and what an attached project asked for in its own too."""
    done = count_audited(tenant, cluster)
    assert done == {"deploy": 1, "attach": 2, "detach": 3, "queue.submit": 5, "queue.cancel": 1, "decommission": 1}, (
        done
    )
    person = tenant.client.get_whoami().id
    rows = list(tenant.client.iter_project_audit(attachment.project_id, limit=100, actor_id=person))
    own = [(each.outcome, each.action) for each in rows if each.noun == "attachment" and each.before is None]
    assert own.count(("done", "scheduler.queue.submit")) == 3
    both = [each.after or {} for each in rows if each.action == "scheduler.queue.submit" and each.outcome == "done"]
    assert {(each["instance_id"], each["owning_project_id"]) for each in both} == {(cluster, tenant.project_id)}


SPY = """#!/bin/sh
printf 'jobs='; squeue -h -o %u | tr '\\n' ' '; echo
printf 'files='; cat /home/app/slurm-*.out 2> /dev/null | tr '\\n' ' '; echo
printf 'keys='; cat /srv/slurm/*/key/* 2> /dev/null | wc -c | grep -v '^0$'; echo
"""


def attached(place: SlurmSite, tenant: SlurmTenant, attachment: models.Attachment, wanted: str) -> models.Attachment:
    """An attachment at the end of its way to a state."""
    until = f"{wanted},refused"
    seen = place.patiently(
        lambda wait: tenant.client.get_attachment(attachment.project_id, attachment.id, wait=wait, until=until),
        lambda each: each.status in until.split(","),
    )
    assert seen.status == wanted, f"{seen}\n{place.said()}"
    return seen


def act(
    place: SlurmSite, tenant: SlurmTenant, attachment: models.Attachment, name: str, **given: object
) -> dict[str, Any]:
    """An action of an attached project to its good end; its output."""
    project_id = attachment.project_id
    asked = tenant.client.start_attachment_action(project_id, attachment.id, name, input=given)
    seen = place.patiently(
        lambda wait: tenant.client.get_attachment_operation(project_id, attachment.id, asked.id, wait=wait, until=OVER),
        lambda each: each.status in OVER.split(","),
    )
    assert seen.status == "succeeded", f"{seen}\n{place.said()}"
    return dict(seen.output or {})


def spied(place: SlurmSite, tenant: SlurmTenant, attachment: models.Attachment) -> dict[str, str]:
    """What a job of an attached project sees of others, by its own account of it."""
    job_id = act(place, tenant, attachment, "queue.submit", script=SPY)["job_id"]
    place.until(
        lambda: [
            each
            for each in act(place, tenant, attachment, "queue.read", job_id=job_id)["jobs"]
            if each["state"] != "PENDING"
        ],
        "the begin of the spy",
    )
    wrote = place.until(
        lambda: next(
            (each for each in [act(place, tenant, attachment, "queue.output", job_id=job_id)] if each.get("end")), None
        ),
        "the output of the spy",
    )
    return dict(line.split("=", 1) for line in str(wrote["text"]).splitlines() if "=" in line)
