"""The node program on real Slurm: one cluster with accounting, in two sandboxes, for all of these tests in their order.

GPUs are simulated devices: SlurmCommands schedules and hands them out for real, and nothing computes on them.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from adapters.slurm.tests.real.cluster_driver import GO, PATIENCE_SECONDS, WAITS, ClusterDriver
from adapters.slurm.tests.real.real_cluster import RealCluster
from agent.tests.support.namespace_sandboxes import left_of
from mooring_adapter import Instance, InstanceView
from mooring_adapter import Member as Standing
from mooring_agent.hosts.namespace import NamespaceHost
from mooring_slurm import daemons
from mooring_slurm.catalog import manifest_of
from mooring_slurm.launch_config import LaunchConfig
from mooring_slurm.layout import SLURMCTLD, SLURMD
from mooring_slurm.usage import usage_of
from mooring_slurm.watch import forgets
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClusterDriver]:
    """A cluster with accounting, with submissions from the first moment on; removed completely at the end."""
    host = NamespaceHost(tmp_path_factory.mktemp("slurm") / "state", "nod_slurm")
    cluster = RealCluster(host, LaunchConfig(gpu_type="sim", accounting=True, users=("app", "alice")))
    try:
        await asyncio.gather(cluster.sandbox("alc_1", 5), cluster.sandbox("alc_2", 6))
        controller = await cluster.controller()
        made = ClusterDriver(cluster, controller)
        hammering = asyncio.create_task(_hammer(made))
        try:
            await cluster.users(controller)
            gate = cluster.gate(controller)
            workers = [cluster.worker(each) for each in (made.first, made.second)]
            await asyncio.gather(gate, *workers)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await made.accepted.wait()
            for each in (made.first, made.second):
                await cluster.done(each, "await-node", "--node", each.name, "--seconds", "60")
        finally:
            hammering.cancel()
            await asyncio.gather(hammering, return_exceptions=True)
        yield made
    finally:
        for allocation_id in host.store.allocations():
            await host.destroy(allocation_id)
        assert left_of(host) == []


async def _hammer(scene: ClusterDriver) -> None:
    """Submit as fast as possible, from before there is a controller, and collect why the jobs are pending."""
    words = ("--parsable", "--output=/dev/null", "--time=1", "--mem=1", "--wrap", "true")
    while True:
        code, text = await scene.cluster.hammer("sbatch", *words)
        scene.hammered.append((code, text))
        if code == 0:
            _, shown = await scene.cluster.slurm(scene.controller, "squeue", "-h", "-o", "%r")
            scene.reasons |= set(shown.split())
            scene.accepted.set()


async def test_a_submission_from_the_first_moment_on_is_refused_clearly_or_accepted(scene: ClusterDriver) -> None:
    assert any(code == 0 for code, _ in scene.hammered)
    assert "InvalidAccount" not in scene.reasons
    refused = {text.strip().splitlines()[-1] for code, text in scene.hammered if code != 0}
    assert all("Unable to contact" in each or "Invalid account" in each for each in refused), refused


async def test_a_proof_runs_on_both_nodes_and_is_accounted(scene: ClusterDriver) -> None:
    await scene.cluster.done(scene.second, "await-node", "--node", scene.second.name, "--seconds", "60")
    answer = await scene.ask("prove", "--nodes", "2", "--seconds", "60", user="app")
    assert (answer["how"], answer["accounted"]) == ("proof", True)
    assert answer["nodes"] == ["hpc-worker-0", "hpc-worker-1"]


async def test_srun_reaches_both_sandboxes(scene: ClusterDriver) -> None:
    code, text = await scene.cluster.slurm(scene.controller, "srun", "-N2", "hostname")
    said = [line for line in text.splitlines() if not line.startswith("srun:")]  # it may say that it waited
    assert (code, sorted(said)) == (0, ["host5", "host6"])


async def test_the_gate_may_be_passed_again(scene: ClusterDriver) -> None:
    assert await scene.cluster.gate(scene.controller) == {
        "version": (await scene.ask("look"))["version"],
        "accounting": True,
    }


async def test_simulated_gpus_are_handed_out_once_and_the_third_job_waits(scene: ClusterDriver) -> None:
    request = {"gpus": 1, "memory_mib": 32}
    keys = ("g1", "g2", "g3", "g4")
    jobs = await asyncio.gather(*(scene.submit(key, **request) for key in keys))
    found = await scene.jobs_when(jobs, "RUNNING")
    waits = await scene.submit("g5", **request)
    job = await until(lambda: _held_back(scene, waits))
    assert (job["why"], job["gpus"]) == ("Resources", 1)
    assert job["why_text"].startswith("It waits for free cores")
    given = [(found[each]["batch_host"], await scene.output(found[each])) for each in jobs]
    assert sorted(given) == [
        ("hpc-worker-0", "/home/app gpus 0\n"),
        ("hpc-worker-0", "/home/app gpus 1\n"),
        ("hpc-worker-1", "/home/app gpus 0\n"),
        ("hpc-worker-1", "/home/app gpus 1\n"),
    ]
    nodes = (await scene.ask("look"))["nodes"]
    assert {each["name"]: (each["gpus"], each["gpus_used"], each["jobs"]) for each in nodes} == {
        "hpc-worker-0": (2, 2, 2),
        "hpc-worker-1": (2, 2, 2),
    }
    await scene.let_go(*keys, "g5")
    await scene.jobs_when([*jobs, waits], "COMPLETED")


async def _held_back(scene: ClusterDriver, job_id: str) -> dict[str, Any] | None:
    job = await scene.job(job_id)
    return job if job.get("why", "None") != "None" else None


async def test_a_node_that_others_have_taken_is_proven_by_them(scene: ClusterDriver) -> None:
    jobs = await asyncio.gather(*(scene.submit(key, cpus=2, memory_mib=64) for key in ("t1", "t2")))
    await scene.jobs_when(jobs, "RUNNING")
    answer = await scene.cluster.done(scene.second, "prove", "--node", scene.second.name, "--seconds", "60", user="app")
    assert answer["how"] == "other"
    assert answer["job"] in jobs
    listed = (await scene.ask("jobs", "--user", "app", "--state", "PENDING"))["jobs"]
    assert listed == [], "a proof never stands in the queue"
    await scene.let_go("t1", "t2")
    await scene.jobs_when(jobs, "COMPLETED")


async def test_a_submission_is_done_once_for_its_key(scene: ClusterDriver) -> None:
    first, again = await asyncio.gather(scene.submit("once"), scene.submit("once"))
    assert first == again
    code, answer = await scene.cluster.node(
        scene.controller, "submit", stdin={"key": "once", "script": "#!/bin/sh\ntrue\n"}, user="app"
    )
    assert (code, answer["error"]["code"]) == (1, "key_reused")
    await scene.cluster.inside(scene.controller).run(
        "sh", "-c", f"rm {scene.controller.home.below('submits')}/app/*"
    )  # as if it was killed between sbatch and the ledger
    assert await scene.submit("once") == first
    listed = (await scene.ask("jobs", "--user", "app"))["jobs"]
    assert [each.get("key") for each in listed].count("once") == 1
    await scene.let_go("once")


async def test_a_script_does_not_hold_up_who_submits_after_it(scene: ClusterDriver) -> None:
    script = f"#!/bin/sh\n#SBATCH --wait\nuntil test -e {GO}-stays; do sleep 0.05; done\n"
    request = {"key": "stays", "script": script, "memory_mib": 16}
    job_id = (await scene.ask("submit", stdin=request, user="app"))["job_id"]
    assert (await scene.job_when(job_id, "RUNNING"))["key"] == "stays"
    script = "#!/bin/sh\n#SBATCH --test-only\n"
    request = {"key": "tested", "script": script, "memory_mib": 16}
    code, answer = await scene.cluster.node(scene.controller, "submit", stdin=request, user="app")
    assert (code, answer["error"]["code"]) == (1, "job_refused")
    await scene.let_go("stays")
    await scene.job_when(job_id, "COMPLETED")


async def test_an_array_and_its_tasks_are_reported_and_cancelled(scene: ClusterDriver) -> None:
    job_id = await scene.submit("row", array="0-2", memory_mib=16)
    shown = await until(lambda: _spread(scene, job_id))
    assert {each["array"] for each in shown["tasks"]} == {f"{job_id}_{number}" for number in range(3)}
    await scene.ask("cancel", "--job", f"{job_id}_1")
    await scene.job_when(f"{job_id}_1", "CANCELLED")
    await scene.ask("cancel", "--job", job_id)
    await until(lambda: _spread(scene, job_id, "CANCELLED"))
    code, answer = await scene.cluster.node(scene.controller, "cancel", "--job", "99999")
    assert (code, answer["error"]["code"]) == (1, "not_found")


async def test_an_array_is_over_when_its_last_task_is_and_names_the_tasks_that_failed(scene: ClusterDriver) -> None:
    script = f"#!/bin/sh\nuntil test -e {GO}-t$SLURM_ARRAY_TASK_ID; do sleep 0.05; done\nexit $SLURM_ARRAY_TASK_ID\n"
    request = {"key": "parts", "script": script, "array": "0,3,5-6%2", "memory_mib": 16, "minutes": 5}
    job_id = (await scene.ask("submit", stdin=request, user="app"))["job_id"]

    async def array_when(**wanted: int) -> dict[str, Any]:
        async def look() -> dict[str, Any] | None:
            shown: dict[str, Any] = (await scene.ask("job", "--job", job_id))["array"]
            return shown if shown["states"] == wanted else None

        return await until(look)

    assert (await array_when(RUNNING=2, PENDING=2))["task_count"] == 4
    assert (await scene.ask("job", "--job", f"{job_id}_6"))["job"]["state"] == "PENDING"
    code, answer = await scene.cluster.node(scene.first, "output", "--job", job_id, user="app")
    assert (code, answer["error"]["code"]) == (1, "array")
    await scene.let_go("t3")
    half = await array_when(FAILED=1, RUNNING=2, PENDING=1)
    assert (half["over_count"], half["failed"]) == (
        1,
        [{"array": f"{job_id}_3", "state": "FAILED", "exit_code": 3}],
    )
    await scene.ask("cancel", "--job", f"{job_id}_6")  # one that waits
    await scene.let_go("t0", "t5")
    over = await array_when(COMPLETED=1, FAILED=2, CANCELLED=1)
    assert over["over_count"] == over["task_count"] == 4
    assert [each["array"].rpartition("_")[2] for each in over["failed"]] == ["3", "5", "6"]


async def _spread(scene: ClusterDriver, job_id: str, state: str = "RUNNING") -> dict[str, Any] | None:
    shown = await scene.ask("job", "--job", job_id)
    return shown if [each["state"] for each in shown.get("tasks", [])] == [state] * 3 else None


async def test_a_drain_lets_the_job_end_and_only_then_is_the_node_quiet(scene: ClusterDriver) -> None:
    name = scene.second.name
    job_id = await scene.submit("held", nodes=2, memory_mib=16)
    await scene.job_when(job_id, "RUNNING")
    drained = await scene.ask("drain", "--node", name, "--owner", "member", "--reason", "to be removed")
    assert (drained["changed"], drained["foreign"]) == (True, None)
    assert drained["node"]["reason"] == "mooring:member: to be removed"
    code, answer = await scene.cluster.node(scene.second, "quiet", "--node", name)
    assert (code, answer["quiet"], [each["id"] for each in answer["jobs"]]) == (1, False, [job_id])
    code, answer = await scene.cluster.node(scene.controller, "delete", "--node", name)
    assert (code, answer["error"]["code"], [each["id"] for each in answer["jobs"]]) == (1, "busy", [job_id])
    assert (await scene.job(job_id))["state"] == "RUNNING"
    await scene.let_go("held")
    answer = await scene.cluster.done(scene.second, "quiet", "--node", name, "--seconds", "60")
    assert answer["quiet"] is True
    assert (await scene.job_when(job_id, "COMPLETED"))["exit_code"] == 0
    assert (await scene.ask("resume", "--node", name, "--owner", "member"))["changed"] is True


async def test_somebody_elses_drain_stays_as_it_is(scene: ClusterDriver) -> None:
    name = scene.second.name
    words = ("scontrol", "update", f"nodename={name}", "state=drain", "reason=fan is broken")
    assert (await scene.cluster.slurm(scene.controller, *words, user="root"))[0] == 0
    for verb in ("drain", "resume"):
        answer = await scene.ask(verb, "--node", name, "--owner", "member")
        assert (answer["changed"], answer["foreign"]) == (False, "fan is broken")
        assert answer["node"]["reason"] == "fan is broken"
    assert (await scene.cluster.slurm(scene.controller, *words[:3], "state=resume", user="root"))[0] == 0


async def test_a_running_job_survives_restarts_of_controller_and_worker(scene: ClusterDriver) -> None:
    job_id = await scene.submit("long", nodes=2, gpus=1, memory_mib=16)
    await scene.job_when(job_id, "RUNNING")
    await scene.cluster.stop(scene.controller, SLURMCTLD)
    await scene.cluster.start(scene.controller, daemons.slurmctld(scene.controller.home))
    await scene.cluster.gate(scene.controller)
    for each in (scene.first, scene.second):
        assert each.worker is not None
        await scene.cluster.stop(each, SLURMD)
        await scene.cluster.start(each, daemons.slurmd(each.home, each.worker, "sim"))
        await scene.cluster.done(each, "await-node", "--node", each.name, "--seconds", "60")
    assert (await scene.job(job_id))["state"] == "RUNNING"
    await scene.let_go("long")
    job = await scene.job_when(job_id, "COMPLETED")
    assert (job["exit_code"], job["restarts"], job["gpus"]) == (0, 0, 2)


async def test_ended_jobs_are_reported_once_with_their_gpus(scene: ClusterDriver) -> None:
    before = await _mark(scene)
    wide = await scene.submit("wide", nodes=2, gpus=1, memory_mib=16)
    await scene.let_go("wide")
    await scene.job_when(wide, "COMPLETED")
    (shown,) = await until(lambda: _attempts(scene, wide, before, 1))  # it is written shortly after its end
    assert (shown["started_at"] <= shown["ended_at"], shown["gpus"], shown["account"]) == (True, 2, "project")
    mark = await _mark(scene)
    job_id = await scene.submit("late", gpus=1, memory_mib=16)
    await scene.let_go("late")
    await scene.job_when(job_id, "COMPLETED")
    (shown,) = await until(lambda: _attempts(scene, job_id, mark, 1))
    assert shown["gpus"] == 1
    assert (await scene.ask("look", "--ended-after", await _mark(scene)))["ended"] == []


async def test_a_job_that_is_requeued_while_it_runs_is_metered_twice_once_for_each_attempt(
    scene: ClusterDriver,
) -> None:
    mark = await _mark(scene)
    words = ("sbatch", "--parsable", "--requeue", "--gres=gpu:1", "--mem=16", "--chdir=/tmp", "--output=/dev/null")
    job_id = (await scene.cluster.slurm(scene.controller, *words, "--wrap", "sleep 1000"))[1].strip()
    for number in range(2):
        started = await scene.job_when(job_id, "RUNNING")
        assert started["restarts"] == number
        await until(lambda: _is_past(scene, job_id))
        if number == 0:
            assert (await scene.cluster.slurm(scene.controller, "scontrol", "requeue", job_id, user="root"))[0] == 0
            await until(lambda: _may_begin(scene, job_id))
    await scene.ask("cancel", "--job", job_id)
    await scene.job_when(job_id, "CANCELLED")
    shown = await until(lambda: _attempts(scene, job_id, mark, 2))
    assert [(each["state"], each["gpus"]) for each in shown] == [("PENDING", 1), ("CANCELLED", 1)]
    used = usage_of(InstanceView(instance=Instance(id="ins_one"), manifest=manifest_of()), {"ended": [*shown, *shown]})
    assert len({each.record_id for each in used if each.unit == "job_hours"}) == 2
    assert len({each.record_id for each in used if each.unit == "gpu_hours"}) == 2


async def _mark(scene: ClusterDriver) -> str:
    """The current end of the controller's file."""
    seen = await scene.ask("look")
    while seen["ended"]:
        seen = await scene.ask("look", "--ended-after", seen["ended_until"])
    return str(seen["ended_until"])


async def _is_past(scene: ClusterDriver, job_id: str) -> bool | None:
    """Whether it runs since a second at least: times are in whole seconds."""
    _, shown = await scene.cluster.slurm(scene.controller, "squeue", "-h", "-j", job_id, "-O", "TimeUsed", user="root")
    return shown.strip() not in ("0:00", "") or None


async def _may_begin(scene: ClusterDriver, job_id: str) -> bool | None:
    """Slurm lets a job that is requeued wait for two minutes; here it may begin when the second of its end is over."""
    if (await scene.job(job_id)).get("why") != "BeginTime":
        return None
    words = ("scontrol", "update", f"jobid={job_id}", "starttime=now+3")
    return (await scene.cluster.slurm(scene.controller, *words, user="root"))[0] == 0 or None


async def _attempts(scene: ClusterDriver, job_id: str, mark: str, count: int) -> list[dict[str, Any]] | None:
    seen = await scene.ask("look", "--ended-after", mark)
    found = [each for each in seen["ended"] if each["id"] == job_id]
    return found if len(found) == count else None


async def test_a_third_worker_joins_while_a_job_runs_and_is_deleted_when_its_machine_is_gone(
    scene: ClusterDriver,
) -> None:
    await scene.cluster.sandbox("alc_3", 7)
    third = scene.cluster.worker_of("hpc-worker-2", "alc_3", (0,))
    await scene.cluster.worker(third)
    answer = await scene.cluster.done(third, "prove", "--node", third.name, "--seconds", "60", user="app")
    assert (answer["how"], answer["nodes"]) == ("proof", [third.name])
    words = ("sbatch", "--parsable", "-w", third.name, "--chdir=/tmp", "--wrap", "sleep 1000")
    job_id = (await scene.cluster.slurm(scene.controller, *words))[1].strip()
    await scene.job_when(job_id, "RUNNING")
    await scene.cluster.host.destroy("alc_3")
    asked = await until(lambda: _forgotten(scene))  # as after a forced remove: no member has that name any more
    assert asked == [("delete", "--node", third.name, "--gone", "--owner", "member")]
    assert await scene.ask(*asked[0]) == {"deleted": True, "jobs": [job_id]}
    assert (await scene.job_when(job_id, "NODE_FAIL"))["restarts"] == 0
    assert await scene.ask("delete", "--node", third.name) == {"deleted": False, "jobs": []}


async def _forgotten(scene: ClusterDriver) -> list[tuple[str, ...]] | None:
    """What the watch would have the controller delete, by what Slurm says now; the other two have their members."""
    seen = await scene.ask("look")
    head, *workers = (
        Standing(id=each.name, name=each.name, component_key="worker" if each.worker else "controller", status="ready")
        for each in (scene.controller, scene.first, scene.second)
    )
    here = InstanceView(instance=Instance(id="ins_one", name="hpc"), members=[head, *workers])
    found = forgets(here, head, seen)
    return [tuple(each.arguments["argv"][-6:]) for each in found] or None


async def test_an_account_comes_closes_and_goes(scene: ClusterDriver) -> None:
    who = {"account": "p-other", "user": "alice"}
    await scene.ask("account-add", stdin=who)
    words = ("sacctmgr", "-n", "-P", "list", "associations", "format=account,user,grpsubmitjobs")
    _, shown = await scene.cluster.slurm(scene.controller, *words, user="root")
    assert "p-other||2500" in shown.split(), "one project does not fill the queue of all"
    given = {"key": "hers", "script": WAITS.replace("$1", "hers"), "account": "p-other", "memory_mib": 16}
    job_id = (await scene.ask("submit", stdin=given, user="alice"))["job_id"]
    assert (await scene.job_when(job_id, "RUNNING"))["account"] == "p-other"
    code, answer = await scene.cluster.node(scene.controller, "job", "--job", job_id, "--account", "project")
    assert (code, answer["error"]["code"]) == (1, "not_found")
    assert await scene.ask("account-close", stdin=who) == {"jobs": [job_id]}
    again = {**given, "key": "again"}
    code, answer = await scene.cluster.node(scene.controller, "submit", stdin=again, user="alice")
    assert (code, answer["error"]["code"]) == (1, "closed"), answer
    code, answer = await scene.cluster.node(scene.controller, "account-remove", stdin=who)
    assert (code, answer["error"]["code"], answer["jobs"]) == (1, "busy", [job_id])
    await scene.ask("account-close", "--cancel", stdin=who)
    await scene.job_when(job_id, "CANCELLED")
    assert await scene.ask("account-remove", stdin=who) == {"removed": True}
    assert await scene.ask("account-remove", stdin=who) == {"removed": False}


async def test_users_see_their_own_jobs_and_files_alone_and_no_key(scene: ClusterDriver) -> None:
    job_id = await scene.submit("private", memory_mib=16)
    job = await scene.job_when(job_id, "RUNNING")
    await scene.output(job)  # it is there
    member = scene.first if job["batch_host"] == scene.first.name else scene.second
    own = scene.cluster.slurm(member, "squeue", "-h", "-o", "%A", user="app")
    assert job_id in (await own)[1].split()
    for listing in (("squeue", "-h", "-o", "%A"), ("sacct", "-n", "-a", "-X", "-o", "JobID")):
        _, shown = await scene.cluster.slurm(member, *listing, user="alice")
        assert job_id not in shown.split(), listing
    for words in (
        ("scontrol", "show", "job", job_id),
        ("scancel", job_id),
        ("cat", f"/home/app/slurm-{job_id}.out"),
        ("ls", "/home/app"),
        ("cat", member.home.munge_key),
        ("ls", scene.controller.home.below("database")),
        ("mariadb", f"--socket={scene.controller.home.database_socket}", "-u", "root", "-e", "select 1"),
        ("scontrol", "update", f"nodename={member.name}", "state=drain", "reason=mine"),
        ("sacctmgr", "-i", "add", "user", "alice", "account=project", "adminlevel=admin"),
    ):
        where = scene.controller if "database" in " ".join(words) or "mariadb" in words[0] else member
        code, shown = await scene.cluster.slurm(where, *words, user="alice")
        assert code != 0, (words, shown)
    assert (await scene.job(job_id))["state"] == "RUNNING"
    await scene.let_go("private")
    await scene.job_when(job_id, "COMPLETED")


async def test_odd_names_of_a_job_harm_nobody(scene: ClusterDriver) -> None:
    odd = 'a"b\\c\n   StdOut=/etc/shadow\tNodeName=x State=IDLE \x1b[31m é'
    given = ("--parsable", "--hold", f"--job-name={odd}", f"--comment={odd}", "--output=%x", "--wrap", "true")
    code, shown = await scene.cluster.slurm(scene.controller, "sbatch", *given, user="alice")
    assert code == 0, shown
    raw = "sbatch --parsable --hold --job-name=$(printf 'x\\377\\376y') --output=/dev/null --wrap true"
    code, bad = await scene.cluster.slurm(scene.controller, "sh", "-c", raw, user="alice")
    assert code == 0, bad
    ids = {shown.strip(), bad.strip()}
    assert ids <= {each["id"] for each in (await scene.ask("jobs"))["jobs"]}
    seen = await scene.ask("look")
    assert ids <= {each["id"] for each in seen["jobs"]}
    assert {each["name"] for each in seen["nodes"]} == {scene.first.name, scene.second.name}
    for each in ids:
        await scene.ask("cancel", "--job", each, "--account", "project")


async def test_what_left_its_job_behind_is_ended_with_its_user(scene: ClusterDriver) -> None:
    script = "#!/bin/sh\nsetsid sh -c 'setsid sleep 4321 > /dev/null 2>&1 < /dev/null &'\nsleep 0.2\n"
    given = {"key": "escape", "script": script, "memory_mib": 16}
    job_id = (await scene.ask("submit", stdin=given, user="alice"))["job_id"]
    job = await scene.job_when(job_id, "COMPLETED")
    member = scene.first if job["batch_host"] == scene.first.name else scene.second
    inside = scene.cluster.inside(member)
    assert (await inside.run("pgrep", "-f", "sleep 4321"))[0] == 0, "it outlives its job: nothing confines it"
    await scene.cluster.done(member, "user-end", stdin={"user": "alice"})

    async def is_gone() -> bool | None:
        return (await inside.run("pgrep", "-f", "sleep 4321"))[0] == 1 or None  # SIGKILL is sent, and not waited for

    assert await until(is_gone)
    await scene.cluster.done(member, "user-end", stdin={"user": "alice"})
    await scene.cluster.done(member, "user-end", stdin={"user": "nobody-here"})
    assert (await scene.ask("look"))["controller"] == "up"


async def test_a_node_is_deleted_when_it_is_quiet(scene: ClusterDriver) -> None:
    name = scene.second.name
    await scene.ask("drain", "--node", name, "--owner", "member")
    await scene.cluster.done(scene.second, "quiet", "--node", name, "--seconds", "60")
    assert await scene.ask("delete", "--node", name) == {"deleted": True, "jobs": []}
    assert [each["name"] for each in (await scene.ask("look"))["nodes"]] == [scene.first.name]
