"""The simulated Slurm answers in the same shapes as the node program, which runs here on recordings of real Slurm."""

import subprocess
from argparse import Namespace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from adapters.slurm.tests.test_job_completions import RECORDED as ATTEMPT
from adapters.slurm.tests.test_node_program import RECORDED, recorded
from mooring_slurm.simulated_slurm import BESIDE, HOLD, VERBS, SimulatedCluster, SimulatedFailure
from mooring_slurm.slurm_node import accounting, nodes, queue
from mooring_slurm.slurm_node.program import MODULE_OF, _words
from mooring_slurm.slurm_node.slurm_commands import SlurmCommands, VerbFailed

OPTIONAL = frozenset(
    {"reason", "reason_by", "account", "key", "array", "name", "why", "why_text", "nodes", "batch_host"}
)
OPTIONAL_TIMES = frozenset({"started_at", "ended_at", "exit_code"})
"""Fields that the program leaves out if they are unknown."""
Answer = dict[str, Any]


@pytest.fixture
def slurm(tmp_path: Path) -> SlurmCommands:
    """A member whose Slurm commands print recordings."""
    for name in ("etc", "log"):
        (tmp_path / name).mkdir()
    (tmp_path / "etc" / "slurm.conf").write_text(
        "JobCompType=jobcomp/script\nAccountingStorageType=accounting_storage/slurmdbd\n", encoding="utf-8"
    )
    (tmp_path / "log" / "ended").write_text(f"{ATTEMPT}\n", encoding="utf-8")
    (tmp_path / "out").write_text("hello\n", encoding="utf-8")
    scontrol = f"""case "$*" in
  *"show node absent"*) echo "Node absent not found"; exit 1;;
  *"show node hpc"*) for last; do :; done; grep "NodeName=$last " {RECORDED}/nodes.txt;;
  *"show node"*) cat {RECORDED}/nodes.txt;;
  *"show job"*) printf 'JobId=1\\n   StdErr=/nowhere\\n   StdOut={tmp_path}/out\\n';;
  *"show assoc"*) echo "UserName=root(0)";;
esac"""
    return recorded(
        tmp_path,
        scontrol=scontrol,
        squeue=f"cat {RECORDED}/squeue_accounted.json",
        scancel="true",
        sinfo="case $1 in --version) echo slurm-wlm 22.05.8;; *) echo 'main|up';; esac",
        sbatch="echo 12",
        sacctmgr="true",
        srun="echo 9 hpc-worker-1",
        sacct="echo COMPLETED",
    )


def real(slurm: SlurmCommands, verb: str, *words: str, given: Answer | None = None) -> Answer:
    """The node program's answer, or its error."""
    arguments: Namespace = _words().parse_args(["--home", slurm.home, verb, *words])
    module = {"nodes": nodes, "queue": queue, "accounting": accounting}[MODULE_OF[verb]]
    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(module, "read_input", lambda: given or {}, raising=False)
        patched.setattr(SlurmCommands, "await_controller", lambda self, deadline: None)
        try:
            answer: Answer = module.VERBS[verb](slurm, arguments)
        except VerbFailed as failed:
            return {"error": failed.code, **failed.more}
    return answer


def simulated(cluster: SimulatedCluster, verb: str, given: Answer | None = None, **options: str) -> Answer:
    """The simulator's answer, or its error."""
    try:
        return cluster.answer(verb, options, given or {}, "app")
    except SimulatedFailure as failed:
        return {"error": failed.code, **failed.more}


def cluster() -> SimulatedCluster:
    """A controller, a worker that runs a job, one that is drained, and a job that waits."""
    made = SimulatedCluster()
    made.start("head", "controller", "slurmctld")
    made.start("one", "worker", "slurmd")
    simulated(made, "submit", {"script": "#!/bin/sh\n", "key": "over"})
    simulated(made, "look")
    simulated(made, "submit", {"script": HOLD, "key": "runs"})
    made.start("two", "worker", "slurmd")
    simulated(made, "drain", node="two", owner="member", reason="why")
    made.accounts["p-one"] = True
    made.nodes["one"].drained = True
    simulated(made, "submit", {"script": HOLD, "key": "waits"})
    made.nodes["one"].drained = False
    return made


def differing(sim: Any, actual: Any, where: str = "") -> list[str]:
    """Where two answers differ in keys or types; of lists every element is like one of the other's."""
    if isinstance(sim, dict) and isinstance(actual, dict):
        free = OPTIONAL | OPTIONAL_TIMES if "id" in actual or "name" in actual else frozenset()
        if where.endswith("counts"):
            return [f"{where}.{name}" for name, value in sim.items() if not isinstance(value, int)]
        odd = [f"{where}.{name}" for name in set(sim) ^ set(actual) if name not in free]
        return odd + [
            each for name in set(sim) & set(actual) for each in differing(sim[name], actual[name], f"{where}.{name}")
        ]
    if isinstance(sim, list) and isinstance(actual, list):
        bad = [min((differing(each, other, f"{where}[]") for other in actual), key=len, default=[]) for each in sim]
        return [each for some in bad for each in some]
    same = type(sim) is type(actual) or (sim is None) != (actual is None)
    return [] if same and _alike(sim, actual) else [f"{where}: {sim!r}, and really {actual!r}"]


def _alike(sim: Any, actual: Any) -> bool:
    """Times look alike, and marks do."""
    if not isinstance(sim, str) or not isinstance(actual, str):
        return True
    return [sim.count(each) for each in "TZ:"] == [actual.count(each) for each in "TZ:"] or not sim.endswith("Z")


WHY = {"reason": "why"}


class Compared(NamedTuple):
    """A verb, and the arguments of the program and of the simulator."""

    verb: str
    words: tuple[str, ...]
    given: Answer
    options: dict[str, str]
    given_simulated: Answer


ASKED: tuple[Compared, ...] = (
    Compared("look", ("--ended-after", "at:-:0"), {}, {"ended-after": "at:simulated:0"}, {}),
    Compared("jobs", (), {}, {}, {}),
    Compared("jobs", ("--limit", "1"), {}, {"limit": "1"}, {}),
    Compared("job", ("--job", "4"), {}, {"job": "2"}, {}),
    Compared("job", ("--job", "99"), {}, {"job": "99"}, {}),
    Compared("cancel", ("--job", "4"), {}, {"job": "2"}, {}),
    Compared("output", ("--job", "1"), {}, {"job": "1"}, {}),
    Compared(
        "drain", ("--node", "hpc-worker-1", "--owner", "member"), {}, {"node": "one", "owner": "member", **WHY}, {}
    ),
    Compared("drain", ("--node", "absent"), {}, {"node": "absent", "owner": "member", **WHY}, {}),
    Compared(
        "drain", ("--node", "hpc-worker-2", "--owner", "member"), {}, {"node": "two", "owner": "operator", **WHY}, {}
    ),
    Compared("resume", ("--node", "hpc-worker-0", "--owner", "member"), {}, {"node": "two", "owner": "member"}, {}),
    Compared("resume", ("--node", "hpc-worker-2", "--owner", "member"), {}, {"node": "two", "owner": "operator"}, {}),
    Compared("quiet", ("--node", "hpc-worker-4"), {}, {"node": "two"}, {}),
    Compared("quiet", ("--node", "hpc-worker-0"), {}, {"node": "one"}, {}),
    Compared("delete", ("--node", "absent"), {}, {"node": "absent"}, {}),
    Compared("delete", ("--node", "hpc-worker-0"), {}, {"node": "one"}, {}),
    Compared("delete", ("--node", "hpc-worker-0", "--gone"), {}, {"node": "one", "gone": ""}, {}),
    Compared("await-node", ("--node", "hpc-worker-1"), {}, {"node": "one"}, {}),
    Compared("await-node", ("--node", "absent", "--seconds", "0.01"), {}, {"node": "absent"}, {}),
    Compared("prove", ("--node", "hpc-worker-1"), {}, {"node": "one"}, {}),
    Compared("submit", (), {"key": "k", "script": "#!/bin/sh\n"}, {}, {"key": "k", "script": "#!/bin/sh\n"}),
    Compared("gate", (), {"users": [], "accounting": False}, {}, {"users": [], "accounting": False}),
    Compared("account-add", (), {"account": "p-one", "user": "root"}, {}, {"account": "p-one", "user": "root"}),
    Compared("account-close", (), {"account": "p-one"}, {}, {"account": "p-one"}),
    Compared("account-remove", (), {"account": "p-one", "user": "root"}, {}, {"account": "p-one", "user": "root"}),
    Compared("users", (), {"users": []}, {}, {"users": []}),
    Compared("user-end", (), {"user": "nobody-here"}, {}, {"user": "nobody-here"}),
)


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: " ".join((asked.verb, *asked.words)))
def test_an_answer_has_the_keys_and_the_types_of_the_programs(slurm: SlurmCommands, asked: Compared) -> None:
    verb, words, given, options, given_simulated = asked
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    Path(slurm.below("submits", user)).mkdir(parents=True)
    actual = real(slurm, verb, *words, given=given)
    sim = simulated(cluster(), verb, given_simulated, **options)
    assert sim.get("error") == actual.get("error")
    assert differing(sim, actual, verb) == []


def test_every_verb_of_the_simulator_is_compared_and_every_difference_is_seen() -> None:
    beside = {"database"}  # it waits for a database that there is not here
    assert {each.verb for each in ASKED} == (set(VERBS) | set(BESIDE)) - beside
    assert {*VERBS, *BESIDE, "serve-database"} == set(MODULE_OF)
    actual = {"ended_until": "at:x:1", "jobs": [{"id": "1", "started_at": "2026-01-01T00:00:00Z", "gpus": 1}]}
    for wrong in (
        {**actual, "ended_until": 1},
        {"jobs": actual["jobs"]},
        {**actual, "jobs": [{"id": "1", "started_at": 1_700_000_000, "gpus": 1}]},
        {**actual, "jobs": [{"id": "1", "started_at": "2026-01-01T00:00:00Z", "gpus": None, "odd": 1}]},
        {**actual, "jobs": [{"id": 1, "gpus": 1}]},
    ):
        assert differing(wrong, actual) != [], wrong
    assert differing({**actual, "jobs": [{"id": "7", "gpus": 2}]}, actual) == []
