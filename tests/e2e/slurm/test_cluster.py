"""A cluster of real Slurm, from its launch to its last receipt; its GPUs are simulated and compute nothing."""

import os
import signal

from mooring_agent.hosts.namespace import NamespaceHost
from mooring_agent.hosts.namespace.sandbox_records import sandbox_owner
from mooring_sdk import models
from mooring_slurm.layout import controller_port, worker_port
from tests.e2e.slurm.cluster import SKU, SlurmSite, SlurmTenant
from tests.e2e.slurm.cluster_reads import assert_metered, in_slurm, job_state, job_usage, wait_for_health
from tests.e2e.slurm.sandbox_footprint import SandboxFootprint

FOREIGN = "disk is being swapped"
GPU_JOB = "echo $CUDA_VISIBLE_DEVICES; while [ ! -e /tmp/go ]; do sleep 0.1; done"


def state(place: SlurmSite, tenant: SlurmTenant, cluster: str, node: str) -> str:
    """How Slurm itself sees a node."""
    return place.slurm(tenant, cluster, "sinfo", "-N", "-h", "-n", node, "-o", "%T").text.strip()


def began(place: SlurmSite, tenant: SlurmTenant, cluster: str, *words: str) -> str:
    """A job that was submitted natively, and runs; its id."""
    said = place.slurm(tenant, cluster, "sbatch", "--parsable", "-o", "/tmp/%j.out", *words)
    assert said.exit_code == 0, said.text
    job = said.text.strip()
    place.until(lambda: job_state(place, tenant, cluster, job) == "RUNNING", f"the start of job {job}")
    return job


def let_go(place: SlurmSite, tenant: SlurmTenant, worker: models.Member, file: str = "/tmp/go") -> None:
    """Let the jobs on a worker end."""
    assert place.inside(tenant, worker, "touch", file).exit_code == 0


def waiting(file: str = "/tmp/go", first: str = "") -> tuple[str, str]:
    """A job that goes on until it is let go."""
    return "--wrap", f"{first}while [ ! -e {file} ]; do sleep 0.1; done; echo survived > {file}.done"


def test_from_launch_to_the_last_receipt(place: SlurmSite, ada: SlurmTenant) -> None:
    cluster = place.launch(ada, "first", workers=2).id
    first, second = place.members(ada, cluster)
    assert (first.status, second.status) == ("ready", "ready")
    is_described(place, ada, cluster)
    said = place.slurm(ada, cluster, "srun", "--quiet", "-N2", "sh", "-c", "echo $SLURMD_NODENAME as $(id -un)")
    assert sorted(said.lines) == [f"{first.name} as app", f"{second.name} as app"]

    # GPU jobs get devices of their own, and the fifth waits for one.
    jobs = [
        place.slurm(ada, cluster, "sbatch", "--parsable", "--gres=gpu:1", "-o", "/tmp/%j.out", "--wrap", GPU_JOB)
        for _ in range(5)
    ]
    ids = [each.text.strip() for each in jobs]
    running = ids[:4]
    place.until(
        lambda: all(job_state(place, ada, cluster, each) == "RUNNING" for each in running), "four jobs with a GPU"
    )
    assert job_state(place, ada, cluster, ids[4]) == "PENDING"
    place.until(
        lambda: (
            not {"Reason=Resources", "Reason=Priority"}.isdisjoint(
                place.slurm(ada, cluster, "scontrol", "-o", "-d", "show", "job", ids[4]).text.split()
            )
        ),
        "the reason why the fifth job waits",
    )
    for worker in (first, second):
        wrote_devices(place, ada, worker)
        let_go(place, ada, worker)
    place.until(lambda: job_state(place, ada, cluster, ids[4]) == "COMPLETED", "the fifth job")

    # A third worker, in an allocation of its own, without a restart of the controller.
    started = booted(place, ada, cluster)
    added = ada.client.add_members(
        ada.project_id, cluster, component="worker", count=1, placement=models.Placement(sku=SKU, gpu_count=2)
    )
    place.over(ada, cluster, added.id)
    third = place.members(ada, cluster)[2]
    assert place.slurm(ada, cluster, "srun", "-w", third.name, "hostname").exit_code == 0
    assert booted(place, ada, cluster) == started

    # A drain while a job runs ends when the job has ended, and not before; one without the time for it names the job.
    drained_around_a_job(place, ada, cluster, third)

    # Removed: gone from Slurm, with a receipt; and another one comes in its place.
    place.over(ada, cluster, ada.client.remove_member(ada.project_id, cluster, third.id).id)
    assert third.name not in place.slurm(ada, cluster, "sinfo", "-N", "-h", "-o", "%N").text.split()
    again = ada.client.add_members(
        ada.project_id, cluster, component="worker", count=1, placement=models.Placement(sku=SKU, gpu_count=2)
    )
    place.over(ada, cluster, again.id)
    fourth = place.members(ada, cluster)[2]
    assert place.slurm(ada, cluster, "srun", "-w", fourth.name, "hostname").exit_code == 0

    places = [each.allocation_id for each in [*place.members(ada, cluster), *place.members(ada, cluster, "controller")]]
    footprint = SandboxFootprint.of(place.machines[0], [each for each in places if each is not None])
    standing = {each.partition(" ")[0] for each in footprint.left()}
    assert standing >= {"directory", "group", "process", "namespace", "link", "socket"}
    assert len(footprint.links) == len(places) == 4
    wanted = job_usage(place, ada, cluster)
    assert wanted
    place.stop(ada, cluster)
    assert footprint.left() == []
    assert_metered(ada, cluster, wanted)


def is_described(place: SlurmSite, tenant: SlurmTenant, cluster: str) -> None:
    """How a cluster does is read from Slurm as soon as it runs, and shown of the whole and of every member."""
    instance = wait_for_health(place, tenant, cluster, "healthy")
    version = place.slurm(tenant, cluster, "sinfo", "--version").text.split()[-1]
    assert instance.health_detail == "2 workers"
    assert instance.adapter_detail["drift"] == []
    assert instance.adapter_detail["slurm"].items() >= {"version": version, "nodes": 2}.items()
    (controller,) = place.members(tenant, cluster, "controller")
    assert (controller.health, in_slurm(controller)["version"]) == ("healthy", version)
    for worker in place.members(tenant, cluster):
        seen = in_slurm(worker)
        assert (worker.health, seen["version"], seen["jobs"], seen.get("reason")) == ("healthy", version, 0, None)
        assert {"DRAIN", "DOWN", "NOT_RESPONDING"}.isdisjoint(seen["state"]), seen


def wrote_devices(place: SlurmSite, tenant: SlurmTenant, worker: models.Member) -> None:
    """Wait until the two jobs of a worker have printed their devices: a job that runs may not have begun its script."""
    devices = place.patiently(
        lambda _: sorted(place.inside(tenant, worker, "sh", "-c", "cat /tmp/*.out").lines),
        lambda seen: seen == ["0", "1"],
    )
    assert devices == ["0", "1"]


def drained_in_haste(place: SlurmSite, tenant: SlurmTenant, cluster: str, worker: models.Member, held_by: str) -> None:
    """A drain without the time for what runs there fails as not quiet, and says what holds it."""
    asked = tenant.client.drain_member(tenant.project_id, cluster, worker.id, timeout_seconds=1, reason="in haste")
    failed = place.over(tenant, cluster, asked.id, "failed")
    assert failed.failure_code == "not_quiet"
    assert held_by in str(failed.failure_detail)


def drained_around_a_job(place: SlurmSite, tenant: SlurmTenant, cluster: str, worker: models.Member) -> None:
    """A job runs on a worker, and goes on to its end, while the worker is drained."""
    job = began(place, tenant, cluster, "-w", worker.name, *waiting("/tmp/third"))
    drained_in_haste(place, tenant, cluster, worker, f"{job} (wrap of app)")
    drained = tenant.client.drain_member(
        tenant.project_id, cluster, worker.id, timeout_seconds=600, reason="new memory"
    )
    place.until(
        lambda: any(
            each.name.startswith("quiet/")
            for each in tenant.client.get_operation(tenant.project_id, cluster, drained.id).steps
        ),
        "the drain's own look for jobs",
    )
    assert state(place, tenant, cluster, worker.name) == "draining"
    place.until(
        lambda: any(str(job) in each.text for each in tenant.client.explain_instance(tenant.project_id, cluster).chain),
        "an explanation that names the job",
    )
    assert tenant.client.get_operation(tenant.project_id, cluster, drained.id).status == "blocked"
    let_go(place, tenant, worker, "/tmp/third")
    place.over(tenant, cluster, drained.id)
    assert job_state(place, tenant, cluster, job) == "COMPLETED"
    reason = place.slurm(tenant, cluster, "sinfo", "-h", "-R", "-o", "%E", "-n", worker.name).text
    assert reason.startswith("mooring:member: drain op_")
    assert reason.endswith(": new memory")


def booted(place: SlurmSite, tenant: SlurmTenant, cluster: str) -> str:
    """When the controller was started."""
    return place.slurm(tenant, cluster, "sh", "-c", "scontrol show config | grep BOOT_TIME").text


def test_somebody_elses_drain_is_left_alone(place: SlurmSite, ada: SlurmTenant) -> None:
    cluster = place.launch(ada, "foreign", workers=2).id
    worker, other = place.members(ada, cluster)
    job = began(place, ada, cluster, "-w", worker.name, "--gres=gpu:1", *waiting("/tmp/foreign", "sleep 1; "))
    drain = ("nodename=" + worker.name, "state=drain", f"reason={FOREIGN}")
    assert place.slurm(ada, cluster, "scontrol", "update", *drain, user="root").exit_code == 0
    place.over(ada, cluster, ada.client.drain_member(ada.project_id, cluster, other.id).id)
    is_degraded(place, ada, cluster, worker)
    let_go(place, ada, worker, "/tmp/foreign")
    place.over(ada, cluster, ada.client.drain_member(ada.project_id, cluster, worker.id).id)
    ada.client.resume_member(ada.project_id, cluster, worker.id)
    repaired = place.over(ada, cluster, ada.client.reconcile_instance(ada.project_id, cluster).id)
    differs(repaired, worker, other)
    assert state(place, ada, cluster, worker.name) == "drained"
    reason = place.slurm(ada, cluster, "sinfo", "-h", "-R", "-o", "%E", "-n", worker.name).text
    assert reason.strip() == FOREIGN
    wanted = job_usage(place, ada, cluster)
    assert {(job, "job_hours"), (job, "gpu_hours")} <= set(wanted)
    place.stop(ada, cluster)
    assert_metered(ada, cluster, wanted)


def is_degraded(place: SlurmSite, tenant: SlurmTenant, cluster: str, worker: models.Member) -> None:
    """Somebody else's drain is shown, of the whole and of the worker: its state, its reason and the job there."""
    instance = wait_for_health(place, tenant, cluster, "degraded")
    assert str(instance.health_detail).startswith(f"{worker.name}: ")
    assert FOREIGN in str(instance.health_detail)
    (drift,) = instance.adapter_detail["drift"]
    assert (drift["node"], drift["difference"], drift["repairable"]) == (worker.name, "foreign_drain", False)
    seen = tenant.client.get_member(tenant.project_id, cluster, worker.id)
    assert (seen.status, seen.health) == ("degraded", "degraded")
    assert FOREIGN in str(seen.health_detail)
    shown = in_slurm(seen)
    assert (shown["reason"], shown["reason_by"], shown["jobs"], shown["gpus_used"]) == (FOREIGN, "root", 1, 1)
    assert "DRAIN" in shown["state"]


def differs(reconciled: models.Operation, worker: models.Member, other: models.Member) -> None:
    """A reconcile shows what platform, adapter and Slurm say, and names the difference that somebody's drain makes."""
    evidence = dict(reconciled.evidence or {})
    assert set(evidence["platform"]) >= {worker.name, other.name}
    assert evidence["adapter"] == {worker.name: "takes jobs", other.name: "drained"}
    assert set(evidence["slurm"]["nodes"]) == {worker.name, other.name}
    assert FOREIGN in evidence["slurm"]["nodes"][worker.name]
    found = [(each["node"], each["difference"], each["repairable"]) for each in evidence["differences"]]
    assert found == [(worker.name, "foreign_drain", False)], evidence
    assert FOREIGN in evidence["differences"][0]["detail"]


def test_a_worker_whose_sandbox_was_killed_is_replaced(place: SlurmSite, ada: SlurmTenant) -> None:
    cluster = place.launch(ada, "broken", workers=2).id
    victim = place.members(ada, cluster)[1]
    assert victim.allocation_id is not None
    machine = place.machines[0]
    init = NamespaceHost(machine.directory / "host", machine.node_id).store.load_init(
        sandbox_owner(victim.allocation_id)
    )
    assert init is not None
    os.kill(init.pid, signal.SIGKILL)
    replaced = ada.client.replace_member(
        ada.project_id, cluster, victim.id, surge=True, placement=models.Placement(sku=SKU, gpu_count=2)
    )
    place.over(ada, cluster, replaced.id)
    standing = place.members(ada, cluster)
    assert victim.id not in {each.id for each in standing}
    names = place.slurm(ada, cluster, "sinfo", "-N", "-h", "-o", "%N").text.split()
    assert sorted(names) == sorted(each.name for each in standing)
    assert place.slurm(ada, cluster, "srun", "-N2", "hostname").exit_code == 0
    place.stop(ada, cluster)


def test_a_worker_that_was_removed_by_force_leaves_slurm_too(place: SlurmSite, ada: SlurmTenant) -> None:
    cluster = place.launch(ada, "forced", workers=2).id
    kept, victim = place.members(ada, cluster)
    job = began(place, ada, cluster, "--no-requeue", "-w", victim.name, *waiting("/tmp/forced"))
    removed = ada.client.remove_member(ada.project_id, cluster, victim.id, force=True)
    place.over(ada, cluster, removed.id)
    assert [each.id for each in place.members(ada, cluster)] == [kept.id]
    place.until(
        lambda: place.slurm(ada, cluster, "sinfo", "-N", "-h", "-o", "%N").text.split() == [kept.name],
        "Slurm without the node whose member was torn down",
    )
    assert job_state(place, ada, cluster, job) == "NODE_FAIL"
    assert wait_for_health(place, ada, cluster, "healthy").adapter_detail["drift"] == []
    assert place.slurm(ada, cluster, "srun", "hostname").exit_code == 0
    place.stop(ada, cluster)


def test_a_worker_that_could_not_start_says_why_and_is_removed_and_added_again(
    place: SlurmSite, ada: SlurmTenant
) -> None:
    cluster = place.launch(ada, "hindered", workers=1).id
    box = ada.client.create_allocation(ada.project_id, sku=SKU, shape="gpu_slice", gpu_count=2, name="box")
    place.active(ada, box.id)
    listening = f"import socket, time; s = socket.create_server(('', {worker_port(cluster)})); time.sleep(9999)"
    place.do(ada, box.id, "service.start", name="squatter", argv=["python3", "-c", listening])
    place.do(ada, box.id, "probe.tcp", port=worker_port(cluster), attempts=600, interval_seconds=0.2)

    here = models.Placement(allocations=[box.id])
    added = ada.client.add_members(ada.project_id, cluster, component="worker", count=1, placement=here)
    failed = place.over(ada, cluster, added.id, "failed")
    assert "does not stay up; slurmd" in str(failed.failure_detail), failed
    assert str(failed.failure_detail).endswith("Address already in use"), failed
    assert "in use" in "\n".join(failed.last_lines or []), failed
    _, broken = place.members(ada, cluster)
    assert (broken.status, broken.failure_code) == ("failed", failed.failure_code)
    assert place.slurm(ada, cluster, "srun", "-N1", "hostname").exit_code == 0

    place.over(ada, cluster, ada.client.remove_member(ada.project_id, cluster, broken.id).id)
    place.do(ada, box.id, "service.stop", name="squatter")
    again = ada.client.add_members(ada.project_id, cluster, component="worker", count=1, placement=here)
    place.over(ada, cluster, again.id)
    _, second = place.members(ada, cluster)
    assert (second.status, second.allocation_id) == ("ready", box.id)
    assert place.slurm(ada, cluster, "srun", "-N2", "hostname").exit_code == 0
    place.stop(ada, cluster)
    ada.client.release_allocation(ada.project_id, box.id)
    place.released(ada, box.id)


def test_a_running_job_survives_an_upgrade_and_a_rollback(place: SlurmSite, ada: SlurmTenant) -> None:
    cluster = place.launch(ada, "lasting", workers=2).id
    first, _ = place.members(ada, cluster)
    job = began(place, ada, cluster, "-w", first.name, *waiting("/tmp/lasting"))
    place.over(ada, cluster, ada.client.upgrade_instance(ada.project_id, cluster, version="1.1.0").id)
    assert {each.version for each in place.members(ada, cluster)} == {"1.1.0"}
    assert job_state(place, ada, cluster, job) == "RUNNING"
    assert place.slurm(ada, cluster, "srun", "-N2", "hostname").exit_code == 0
    place.over(ada, cluster, ada.client.rollback_instance(ada.project_id, cluster).id)
    assert {each.version for each in place.members(ada, cluster)} == {"1.0.0"}
    assert job_state(place, ada, cluster, job) == "RUNNING"
    let_go(place, ada, first, "/tmp/lasting")
    place.until(lambda: job_state(place, ada, cluster, job) == "COMPLETED", "the end of the job")
    assert place.inside(ada, first, "cat", "/tmp/lasting.done").lines == ["survived"]
    place.stop(ada, cluster)


def test_two_tenants_with_the_same_names_never_see_each_other(place: SlurmSite, ada: SlurmTenant) -> None:
    other = place.tenant("rival")
    ours, theirs = (place.launch(each, "same", workers=1).id for each in (ada, other))
    job = place.act(ada, ours, "queue.submit", script="#!/bin/sh\nsleep 30\n", name="secret-plan", key="one")
    queue = place.act(other, theirs, "queue.read")
    assert {each["name"] for each in queue["jobs"]} == {"mooring-proof"}
    assert "secret-plan" not in place.slurm(other, theirs, "squeue", "-a").text
    at = place.slurm(ada, ours, "hostname", "-I").text.split()[0]
    dial = ("bash", "-c", f"exec 3<>/dev/tcp/{at}/{controller_port(ours)}")
    assert place.slurm(ada, ours, "timeout", "120", *dial).exit_code == 0
    assert place.slurm(other, theirs, "timeout", "5", *dial).exit_code != 0
    place.act(ada, ours, "queue.cancel", job_id=job["job_id"])
    for tenant, cluster in ((ada, ours), (other, theirs)):
        place.stop(tenant, cluster)
