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
async def driver(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClusterDriver]:
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


async def _hammer(driver: ClusterDriver) -> None:
    """Submit as fast as possible, from before there is a controller, and collect why the jobs are pending."""
    words = ("--parsable", "--output=/dev/null", "--time=1", "--mem=1", "--wrap", "true")
    while True:
        code, text = await driver.cluster.hammer("sbatch", *words)
        driver.hammered.append((code, text))
        if code == 0:
            _, shown = await driver.cluster.slurm(driver.controller, "squeue", "-h", "-o", "%r")
            driver.reasons |= set(shown.split())
            driver.accepted.set()


async def test_a_submission_from_the_first_moment_on_is_refused_clearly_or_accepted(driver: ClusterDriver) -> None:
    assert any(code == 0 for code, _ in driver.hammered)
    assert "InvalidAccount" not in driver.reasons
    refused = {text.strip().splitlines()[-1] for code, text in driver.hammered if code != 0}
    assert all("Unable to contact" in each or "Invalid account" in each for each in refused), refused


async def test_a_proof_runs_on_both_nodes_and_is_accounted(driver: ClusterDriver) -> None:
    await driver.cluster.done(driver.second, "await-node", "--node", driver.second.name, "--seconds", "60")
    answer = await driver.ask("prove", "--nodes", "2", "--seconds", "60", user="app")
    assert (answer["how"], answer["accounted"]) == ("proof", True)
    assert answer["nodes"] == ["hpc-worker-0", "hpc-worker-1"]


async def test_srun_reaches_both_sandboxes(driver: ClusterDriver) -> None:
    code, text = await driver.cluster.slurm(driver.controller, "srun", "-N2", "hostname")
    said = [line for line in text.splitlines() if not line.startswith("srun:")]  # it may say that it waited
    assert (code, sorted(said)) == (0, ["host5", "host6"])


async def test_the_gate_may_be_passed_again(driver: ClusterDriver) -> None:
    assert await driver.cluster.gate(driver.controller) == {
        "version": (await driver.ask("look"))["version"],
        "accounting": True,
    }


async def test_simulated_gpus_are_handed_out_once_and_the_third_job_waits(driver: ClusterDriver) -> None:
    request = {"gpus": 1, "memory_mib": 32}
    keys = ("g1", "g2", "g3", "g4")
    jobs = await asyncio.gather(*(driver.submit(key, **request) for key in keys))
    found = await driver.jobs_when(jobs, "RUNNING")
    waits = await driver.submit("g5", **request)
    job = await until(lambda: _held_back(driver, waits))
    assert (job["why"], job["gpus"]) == ("Resources", 1)
    assert job["why_text"].startswith("It waits for free cores")
    given = [(found[each]["batch_host"], await driver.output(found[each])) for each in jobs]
    assert sorted(given) == [
        ("hpc-worker-0", "/home/app gpus 0\n"),
        ("hpc-worker-0", "/home/app gpus 1\n"),
        ("hpc-worker-1", "/home/app gpus 0\n"),
        ("hpc-worker-1", "/home/app gpus 1\n"),
    ]
    nodes = (await driver.ask("look"))["nodes"]
    assert {each["name"]: (each["gpus"], each["gpus_used"], each["jobs"]) for each in nodes} == {
        "hpc-worker-0": (2, 2, 2),
        "hpc-worker-1": (2, 2, 2),
    }
    await driver.let_go(*keys, "g5")
    await driver.jobs_when([*jobs, waits], "COMPLETED")


async def _held_back(driver: ClusterDriver, job_id: str) -> dict[str, Any] | None:
    job = await driver.job(job_id)
    return job if job.get("why", "None") != "None" else None


async def test_a_node_that_others_have_taken_is_proven_by_them(driver: ClusterDriver) -> None:
    jobs = await asyncio.gather(*(driver.submit(key, cpus=2, memory_mib=64) for key in ("t1", "t2")))
    await driver.jobs_when(jobs, "RUNNING")
    answer = await driver.cluster.done(
        driver.second, "prove", "--node", driver.second.name, "--seconds", "60", user="app"
    )
    assert answer["how"] == "other"
    assert answer["job"] in jobs
    listed = (await driver.ask("jobs", "--user", "app", "--state", "PENDING"))["jobs"]
    assert listed == [], "a proof never stands in the queue"
    await driver.let_go("t1", "t2")
    await driver.jobs_when(jobs, "COMPLETED")


async def test_a_submission_is_done_once_for_its_key(driver: ClusterDriver) -> None:
    first, again = await asyncio.gather(driver.submit("once"), driver.submit("once"))
    assert first == again
    code, answer = await driver.cluster.node(
        driver.controller, "submit", stdin={"key": "once", "script": "#!/bin/sh\ntrue\n"}, user="app"
    )
    assert (code, answer["error"]["code"]) == (1, "key_reused")
    await driver.cluster.inside(driver.controller).run(
        "sh", "-c", f"rm {driver.controller.home.below('submits')}/app/*"
    )  # as if it was killed between sbatch and the ledger
    assert await driver.submit("once") == first
    listed = (await driver.ask("jobs", "--user", "app"))["jobs"]
    assert [each.get("key") for each in listed].count("once") == 1
    await driver.let_go("once")


async def test_a_script_does_not_hold_up_who_submits_after_it(driver: ClusterDriver) -> None:
    script = f"#!/bin/sh\n#SBATCH --wait\nuntil test -e {GO}-stays; do sleep 0.05; done\n"
    request = {"key": "stays", "script": script, "memory_mib": 16}
    job_id = (await driver.ask("submit", stdin=request, user="app"))["job_id"]
    assert (await driver.job_when(job_id, "RUNNING"))["key"] == "stays"
    script = "#!/bin/sh\n#SBATCH --test-only\n"
    request = {"key": "tested", "script": script, "memory_mib": 16}
    code, answer = await driver.cluster.node(driver.controller, "submit", stdin=request, user="app")
    assert (code, answer["error"]["code"]) == (1, "job_refused")
    await driver.let_go("stays")
    await driver.job_when(job_id, "COMPLETED")


async def test_an_array_and_its_tasks_are_reported_and_cancelled(driver: ClusterDriver) -> None:
    job_id = await driver.submit("row", array="0-2", memory_mib=16)
    shown = await until(lambda: _spread(driver, job_id))
    assert {each["array"] for each in shown["tasks"]} == {f"{job_id}_{number}" for number in range(3)}
    await driver.ask("cancel", "--job", f"{job_id}_1")
    await driver.job_when(f"{job_id}_1", "CANCELLED")
    await driver.ask("cancel", "--job", job_id)
    await until(lambda: _spread(driver, job_id, "CANCELLED"))
    code, answer = await driver.cluster.node(driver.controller, "cancel", "--job", "99999")
    assert (code, answer["error"]["code"]) == (1, "not_found")


async def test_an_array_is_over_when_its_last_task_is_and_names_the_tasks_that_failed(driver: ClusterDriver) -> None:
    script = f"#!/bin/sh\nuntil test -e {GO}-t$SLURM_ARRAY_TASK_ID; do sleep 0.05; done\nexit $SLURM_ARRAY_TASK_ID\n"
    request = {"key": "parts", "script": script, "array": "0,3,5-6%2", "memory_mib": 16, "minutes": 5}
    job_id = (await driver.ask("submit", stdin=request, user="app"))["job_id"]

    async def array_when(**wanted: int) -> dict[str, Any]:
        async def look() -> dict[str, Any] | None:
            shown: dict[str, Any] = (await driver.ask("job", "--job", job_id))["array"]
            return shown if shown["states"] == wanted else None

        return await until(look)

    assert (await array_when(RUNNING=2, PENDING=2))["task_count"] == 4
    assert (await driver.ask("job", "--job", f"{job_id}_6"))["job"]["state"] == "PENDING"
    code, answer = await driver.cluster.node(driver.first, "output", "--job", job_id, user="app")
    assert (code, answer["error"]["code"]) == (1, "array")
    await driver.let_go("t3")
    half = await array_when(FAILED=1, RUNNING=2, PENDING=1)
    assert (half["over_count"], half["failed"]) == (
        1,
        [{"array": f"{job_id}_3", "state": "FAILED", "exit_code": 3}],
    )
    await driver.ask("cancel", "--job", f"{job_id}_6")  # one that waits
    await driver.let_go("t0", "t5")
    over = await array_when(COMPLETED=1, FAILED=2, CANCELLED=1)
    assert over["over_count"] == over["task_count"] == 4
    assert [each["array"].rpartition("_")[2] for each in over["failed"]] == ["3", "5", "6"]


async def _spread(driver: ClusterDriver, job_id: str, state: str = "RUNNING") -> dict[str, Any] | None:
    shown = await driver.ask("job", "--job", job_id)
    return shown if [each["state"] for each in shown.get("tasks", [])] == [state] * 3 else None


async def test_a_drain_lets_the_job_end_and_only_then_is_the_node_quiet(driver: ClusterDriver) -> None:
    name = driver.second.name
    job_id = await driver.submit("held", nodes=2, memory_mib=16)
    await driver.job_when(job_id, "RUNNING")
    drained = await driver.ask("drain", "--node", name, "--owner", "member", "--reason", "to be removed")
    assert (drained["changed"], drained["foreign"]) == (True, None)
    assert drained["node"]["reason"] == "mooring:member: to be removed"
    code, answer = await driver.cluster.node(driver.second, "quiet", "--node", name)
    assert (code, answer["quiet"], [each["id"] for each in answer["jobs"]]) == (1, False, [job_id])
    code, answer = await driver.cluster.node(driver.controller, "delete", "--node", name)
    assert (code, answer["error"]["code"], [each["id"] for each in answer["jobs"]]) == (1, "busy", [job_id])
    assert (await driver.job(job_id))["state"] == "RUNNING"
    await driver.let_go("held")
    answer = await driver.cluster.done(driver.second, "quiet", "--node", name, "--seconds", "60")
    assert answer["quiet"] is True
    assert (await driver.job_when(job_id, "COMPLETED"))["exit_code"] == 0
    assert (await driver.ask("resume", "--node", name, "--owner", "member"))["changed"] is True


async def test_somebody_elses_drain_stays_as_it_is(driver: ClusterDriver) -> None:
    name = driver.second.name
    words = ("scontrol", "update", f"nodename={name}", "state=drain", "reason=fan is broken")
    assert (await driver.cluster.slurm(driver.controller, *words, user="root"))[0] == 0
    for verb in ("drain", "resume"):
        answer = await driver.ask(verb, "--node", name, "--owner", "member")
        assert (answer["changed"], answer["foreign"]) == (False, "fan is broken")
        assert answer["node"]["reason"] == "fan is broken"
    assert (await driver.cluster.slurm(driver.controller, *words[:3], "state=resume", user="root"))[0] == 0


async def test_a_running_job_survives_restarts_of_controller_and_worker(driver: ClusterDriver) -> None:
    job_id = await driver.submit("long", nodes=2, gpus=1, memory_mib=16)
    await driver.job_when(job_id, "RUNNING")
    await driver.cluster.stop(driver.controller, SLURMCTLD)
    await driver.cluster.start(driver.controller, daemons.slurmctld(driver.controller.home))
    await driver.cluster.gate(driver.controller)
    for each in (driver.first, driver.second):
        assert each.worker is not None
        await driver.cluster.stop(each, SLURMD)
        await driver.cluster.start(each, daemons.slurmd(each.home, each.worker, "sim"))
        await driver.cluster.done(each, "await-node", "--node", each.name, "--seconds", "60")
    assert (await driver.job(job_id))["state"] == "RUNNING"
    await driver.let_go("long")
    job = await driver.job_when(job_id, "COMPLETED")
    assert (job["exit_code"], job["restarts"], job["gpus"]) == (0, 0, 2)


async def test_ended_jobs_are_reported_once_with_their_gpus(driver: ClusterDriver) -> None:
    before = await _mark(driver)
    wide = await driver.submit("wide", nodes=2, gpus=1, memory_mib=16)
    await driver.let_go("wide")
    await driver.job_when(wide, "COMPLETED")
    (shown,) = await until(lambda: _attempts(driver, wide, before, 1))  # it is written shortly after its end
    assert (shown["started_at"] <= shown["ended_at"], shown["gpus"], shown["account"]) == (True, 2, "project")
    mark = await _mark(driver)
    job_id = await driver.submit("late", gpus=1, memory_mib=16)
    await driver.let_go("late")
    await driver.job_when(job_id, "COMPLETED")
    (shown,) = await until(lambda: _attempts(driver, job_id, mark, 1))
    assert shown["gpus"] == 1
    assert (await driver.ask("look", "--ended-after", await _mark(driver)))["ended"] == []


async def test_a_job_that_is_requeued_while_it_runs_is_metered_twice_once_for_each_attempt(
    driver: ClusterDriver,
) -> None:
    mark = await _mark(driver)
    words = ("sbatch", "--parsable", "--requeue", "--gres=gpu:1", "--mem=16", "--chdir=/tmp", "--output=/dev/null")
    job_id = (await driver.cluster.slurm(driver.controller, *words, "--wrap", "sleep 1000"))[1].strip()
    for number in range(2):
        started = await driver.job_when(job_id, "RUNNING")
        assert started["restarts"] == number
        await until(lambda: _is_past(driver, job_id))
        if number == 0:
            assert (await driver.cluster.slurm(driver.controller, "scontrol", "requeue", job_id, user="root"))[0] == 0
            await until(lambda: _may_begin(driver, job_id))
    await driver.ask("cancel", "--job", job_id)
    await driver.job_when(job_id, "CANCELLED")
    shown = await until(lambda: _attempts(driver, job_id, mark, 2))
    assert [(each["state"], each["gpus"]) for each in shown] == [("PENDING", 1), ("CANCELLED", 1)]
    used = usage_of(InstanceView(instance=Instance(id="ins_one"), manifest=manifest_of()), {"ended": [*shown, *shown]})
    assert len({each.record_id for each in used if each.unit == "job_hours"}) == 2
    assert len({each.record_id for each in used if each.unit == "gpu_hours"}) == 2


async def _mark(driver: ClusterDriver) -> str:
    """The current end of the controller's file."""
    seen = await driver.ask("look")
    while seen["ended"]:
        seen = await driver.ask("look", "--ended-after", seen["ended_until"])
    return str(seen["ended_until"])


async def _is_past(driver: ClusterDriver, job_id: str) -> bool | None:
    """Whether it runs since a second at least: times are in whole seconds."""
    _, shown = await driver.cluster.slurm(
        driver.controller, "squeue", "-h", "-j", job_id, "-O", "TimeUsed", user="root"
    )
    return shown.strip() not in ("0:00", "") or None


async def _may_begin(driver: ClusterDriver, job_id: str) -> bool | None:
    """Slurm lets a job that is requeued wait for two minutes; here it may begin when the second of its end is over."""
    if (await driver.job(job_id)).get("why") != "BeginTime":
        return None
    words = ("scontrol", "update", f"jobid={job_id}", "starttime=now+3")
    return (await driver.cluster.slurm(driver.controller, *words, user="root"))[0] == 0 or None


async def _attempts(driver: ClusterDriver, job_id: str, mark: str, count: int) -> list[dict[str, Any]] | None:
    seen = await driver.ask("look", "--ended-after", mark)
    found = [each for each in seen["ended"] if each["id"] == job_id]
    return found if len(found) == count else None


async def test_a_third_worker_joins_while_a_job_runs_and_is_deleted_when_its_machine_is_gone(
    driver: ClusterDriver,
) -> None:
    await driver.cluster.sandbox("alc_3", 7)
    third = driver.cluster.worker_of("hpc-worker-2", "alc_3", (0,))
    await driver.cluster.worker(third)
    answer = await driver.cluster.done(third, "prove", "--node", third.name, "--seconds", "60", user="app")
    assert (answer["how"], answer["nodes"]) == ("proof", [third.name])
    words = ("sbatch", "--parsable", "-w", third.name, "--chdir=/tmp", "--wrap", "sleep 1000")
    job_id = (await driver.cluster.slurm(driver.controller, *words))[1].strip()
    await driver.job_when(job_id, "RUNNING")
    await driver.cluster.host.destroy("alc_3")
    asked = await until(lambda: _forgotten(driver))  # as after a forced remove: no member has that name any more
    assert asked == [("delete", "--node", third.name, "--gone", "--owner", "member")]
    assert await driver.ask(*asked[0]) == {"deleted": True, "jobs": [job_id]}
    assert (await driver.job_when(job_id, "NODE_FAIL"))["restarts"] == 0
    assert await driver.ask("delete", "--node", third.name) == {"deleted": False, "jobs": []}


async def _forgotten(driver: ClusterDriver) -> list[tuple[str, ...]] | None:
    """What the watch would have the controller delete, by what Slurm says now; the other two have their members."""
    seen = await driver.ask("look")
    head, *workers = (
        Standing(id=each.name, name=each.name, component_key="worker" if each.worker else "controller", status="ready")
        for each in (driver.controller, driver.first, driver.second)
    )
    here = InstanceView(instance=Instance(id="ins_one", name="hpc"), members=[head, *workers])
    found = forgets(here, head, seen)
    return [tuple(each.arguments["argv"][-6:]) for each in found] or None


async def test_an_account_is_added_closed_and_removed(driver: ClusterDriver) -> None:
    who = {"account": "p-other", "user": "alice"}
    await driver.ask("account-add", stdin=who)
    words = ("sacctmgr", "-n", "-P", "list", "associations", "format=account,user,grpsubmitjobs")
    _, shown = await driver.cluster.slurm(driver.controller, *words, user="root")
    assert "p-other||2500" in shown.split(), "one project does not fill the queue of all"
    given = {"key": "hers", "script": WAITS.replace("$1", "hers"), "account": "p-other", "memory_mib": 16}
    job_id = (await driver.ask("submit", stdin=given, user="alice"))["job_id"]
    assert (await driver.job_when(job_id, "RUNNING"))["account"] == "p-other"
    code, answer = await driver.cluster.node(driver.controller, "job", "--job", job_id, "--account", "project")
    assert (code, answer["error"]["code"]) == (1, "not_found")
    assert await driver.ask("account-close", stdin=who) == {"jobs": [job_id]}
    again = {**given, "key": "again"}
    code, answer = await driver.cluster.node(driver.controller, "submit", stdin=again, user="alice")
    assert (code, answer["error"]["code"]) == (1, "closed"), answer
    code, answer = await driver.cluster.node(driver.controller, "account-remove", stdin=who)
    assert (code, answer["error"]["code"], answer["jobs"]) == (1, "busy", [job_id])
    await driver.ask("account-close", "--cancel", stdin=who)
    await driver.job_when(job_id, "CANCELLED")
    assert await driver.ask("account-remove", stdin=who) == {"removed": True}
    assert await driver.ask("account-remove", stdin=who) == {"removed": False}


async def test_users_see_their_own_jobs_and_files_alone_and_no_key(driver: ClusterDriver) -> None:
    job_id = await driver.submit("private", memory_mib=16)
    job = await driver.job_when(job_id, "RUNNING")
    await driver.output(job)  # it is there
    member = driver.first if job["batch_host"] == driver.first.name else driver.second
    own = driver.cluster.slurm(member, "squeue", "-h", "-o", "%A", user="app")
    assert job_id in (await own)[1].split()
    for listing in (("squeue", "-h", "-o", "%A"), ("sacct", "-n", "-a", "-X", "-o", "JobID")):
        _, shown = await driver.cluster.slurm(member, *listing, user="alice")
        assert job_id not in shown.split(), listing
    for words in (
        ("scontrol", "show", "job", job_id),
        ("scancel", job_id),
        ("cat", f"/home/app/slurm-{job_id}.out"),
        ("ls", "/home/app"),
        ("cat", member.home.munge_key),
        ("ls", driver.controller.home.below("database")),
        ("mariadb", f"--socket={driver.controller.home.database_socket}", "-u", "root", "-e", "select 1"),
        ("scontrol", "update", f"nodename={member.name}", "state=drain", "reason=mine"),
        ("sacctmgr", "-i", "add", "user", "alice", "account=project", "adminlevel=admin"),
    ):
        where = driver.controller if "database" in " ".join(words) or "mariadb" in words[0] else member
        code, shown = await driver.cluster.slurm(where, *words, user="alice")
        assert code != 0, (words, shown)
    assert (await driver.job(job_id))["state"] == "RUNNING"
    await driver.let_go("private")
    await driver.job_when(job_id, "COMPLETED")


async def test_odd_names_of_a_job_harm_nobody(driver: ClusterDriver) -> None:
    odd = 'a"b\\c\n   StdOut=/etc/shadow\tNodeName=x State=IDLE \x1b[31m é'
    given = ("--parsable", "--hold", f"--job-name={odd}", f"--comment={odd}", "--output=%x", "--wrap", "true")
    code, shown = await driver.cluster.slurm(driver.controller, "sbatch", *given, user="alice")
    assert code == 0, shown
    raw = "sbatch --parsable --hold --job-name=$(printf 'x\\377\\376y') --output=/dev/null --wrap true"
    code, bad = await driver.cluster.slurm(driver.controller, "sh", "-c", raw, user="alice")
    assert code == 0, bad
    ids = {shown.strip(), bad.strip()}
    assert ids <= {each["id"] for each in (await driver.ask("jobs"))["jobs"]}
    seen = await driver.ask("look")
    assert ids <= {each["id"] for each in seen["jobs"]}
    assert {each["name"] for each in seen["nodes"]} == {driver.first.name, driver.second.name}
    for each in ids:
        await driver.ask("cancel", "--job", each, "--account", "project")


async def test_what_left_its_job_behind_is_ended_with_its_user(driver: ClusterDriver) -> None:
    script = "#!/bin/sh\nsetsid sh -c 'setsid sleep 4321 > /dev/null 2>&1 < /dev/null &'\nsleep 0.2\n"
    given = {"key": "escape", "script": script, "memory_mib": 16}
    job_id = (await driver.ask("submit", stdin=given, user="alice"))["job_id"]
    job = await driver.job_when(job_id, "COMPLETED")
    member = driver.first if job["batch_host"] == driver.first.name else driver.second
    inside = driver.cluster.inside(member)
    assert (await inside.run("pgrep", "-f", "sleep 4321"))[0] == 0, "it outlives its job: nothing confines it"
    await driver.cluster.done(member, "user-end", stdin={"user": "alice"})

    async def is_gone() -> bool | None:
        return (await inside.run("pgrep", "-f", "sleep 4321"))[0] == 1 or None  # SIGKILL is sent, and not waited for

    assert await until(is_gone)
    await driver.cluster.done(member, "user-end", stdin={"user": "alice"})
    await driver.cluster.done(member, "user-end", stdin={"user": "nobody-here"})
    assert (await driver.ask("look"))["controller"] == "up"


async def test_a_node_is_deleted_when_it_is_quiet(driver: ClusterDriver) -> None:
    name = driver.second.name
    await driver.ask("drain", "--node", name, "--owner", "member")
    await driver.cluster.done(driver.second, "quiet", "--node", name, "--seconds", "60")
    assert await driver.ask("delete", "--node", name) == {"deleted": True, "jobs": []}
    assert [each["name"] for each in (await driver.ask("look"))["nodes"]] == [driver.first.name]
