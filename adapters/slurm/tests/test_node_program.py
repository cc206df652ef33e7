"""The node program as a node runs it: one file, an interpreter without packages, one line of JSON.

Slurm's commands are stand-ins here that print what real Slurm said (`recorded/`); on real Slurm it is driven by
`real/`.
"""

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mooring_adapter.bundle import digest_of, key_at
from mooring_slurm.bundle import bundle_of, program_name, write_version
from mooring_slurm.catalog import NEXT_VERSION, ROLE, VERSION, manifest_of, program
from mooring_slurm.slurm_node import nodes, queue
from mooring_slurm.slurm_node.program import _words
from mooring_slurm.slurm_node.slurm_commands import SlurmCommands, VerbFailed
from tests.support.rows import every_row

RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A member's directory with a listening controller that says nothing: the commands print recordings."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        (tmp_path / "etc").mkdir()
        conf = f"SlurmctldHost=here(127.0.0.1)\nSlurmctldPort={listening.getsockname()[1]}\n"
        (tmp_path / "etc" / "slurm.conf").write_text(conf, encoding="utf-8")
        yield tmp_path


def recorded(home: Path, **said: str) -> SlurmCommands:
    """Slurm commands that print recordings."""
    commands = home / "commands"
    commands.mkdir(exist_ok=True)
    for name, script in said.items():
        path = commands / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)
    slurm = SlurmCommands(str(home))
    slurm.environment["PATH"] = f"{commands}:{slurm.environment['PATH']}"
    return slurm


def run(home: Path, *words: str, stdin: str = "") -> tuple[int, dict[str, Any], str]:
    """The program as a node starts it."""
    file = home / "slurm_node.pyz"
    file.write_bytes(program())
    command = [sys.executable, "-I", "-S", str(file), "--home", str(home), *words]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=60)
    lines = done.stdout.splitlines()
    assert len(lines) == 1, done
    return done.returncode, json.loads(lines[0]), done.stderr


def test_it_runs_from_one_file_without_packages(home: Path) -> None:
    assert run(home, "version") == (0, {"version": VERSION}, "")


@every_row(
    ("words", "stdin", "why"),
    [
        (("dance",), "", "invalid choice"),
        (("drain",), "", "--node"),
        (("drain", "--node", "ALL"), "", "--node"),
        (("delete", "--node", "a,b"), "", "--node"),
        (("quiet", "--node", "a[0-9]"), "", "--node"),
        (("account-add",), '{"account": "a,b", "user": "c"}', "not a valid name"),
        (("users",), '{"users": [{"name": "a:x:0:0", "uid": 0}]}', "not a valid name"),
        (("users",), '{"users": [{"name": "eve", "uid": 0}]}', "between 1000"),
        (("job", "--job", "1;2"), "", "--job must name a job"),
        (("submit",), "no json", "not JSON"),
        (("submit",), "[]", "not an object"),
        (("submit",), '{"key": "k", "script": "no shebang"}', "#!"),
        (("submit",), '{"key": "$(x)", "script": "#!/bin/sh"}', "a key must have"),
    ],
)
def test_a_malformed_request_is_explained(home: Path, words: tuple[str, ...], stdin: str, why: str) -> None:
    code, answer, shown = run(home, *words, stdin=stdin)
    assert (code, answer["error"]["code"]) == (2, "usage")
    assert why in answer["error"]["detail"]
    assert why in shown


def test_a_controller_that_is_away_is_said_and_not_waited_for_by_slurms_own_commands(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # nobody else listens there meanwhile
        conf = f"SlurmctldHost=here(127.0.0.1)\nSlurmctldPort={silent.getsockname()[1]}\n"
        (tmp_path / "etc" / "slurm.conf").write_text(conf, encoding="utf-8")
        code, answer, _ = run(tmp_path, "look", "--seconds", "0.1")
    assert (code, answer["error"]["code"]) == (1, "controller_down")


def test_one_observation_reports_everything(home: Path) -> None:
    slurm = recorded(
        home,
        squeue=f"cat {RECORDED}/squeue_plain.json",
        scontrol=f"cat {RECORDED}/nodes.txt",
        sinfo="echo 'main|up'",
    )
    seen = nodes.look(slurm, None, None)
    assert (seen["version"], seen["controller"], seen["truncated"]) == ("22.05.8", "up", False)
    assert seen["job_counts"] == {"COMPLETED": 1, "FAILED": 2, "RUNNING": 2, "PENDING": 2}
    assert [each["id"] for each in seen["jobs"]] == ["4", "5", "6", "7"], "what runs comes first"
    assert [each["id"] for each in seen["ended"]] == ["1", "2", "3"]
    assert seen["partitions"] == [{"name": "main", "state": "up"}]
    assert len(json.dumps(seen)) < 60_000


def test_somebody_elses_drain_is_neither_renamed_nor_cleared(home: Path) -> None:
    line = next(each for each in (RECORDED / "nodes.txt").read_text().splitlines() if "fan is broken" in each)
    (home / "node").write_text(f"{line}\n", encoding="utf-8")
    script = f'case "$1" in update) echo "$@" >> {home}/changed;; *) cat {home}/node;; esac'
    slurm = recorded(home, scontrol=script)
    for answer in (nodes.drain(slurm, "hpc-worker-2", "member", "why"), nodes.resume(slurm, "hpc-worker-2", "member")):
        assert (answer["changed"], answer["foreign"]) == (False, "fan is broken [really]")
    assert not (home / "changed").exists()


def test_a_drain_has_its_owner_in_the_reason(home: Path) -> None:
    line = (RECORDED / "nodes.txt").read_text().splitlines()[0]
    (home / "node").write_text(f"{line}\n", encoding="utf-8")
    slurm = recorded(home, scontrol=f'case "$1" in update) echo "$@" >> {home}/changed;; *) cat {home}/node;; esac')
    assert nodes.drain(slurm, "hpc-worker-1", "member", "to be\nremoved")["changed"] is True
    said = (home / "changed").read_text(encoding="utf-8")
    assert said == "update nodename=hpc-worker-1 state=drain reason=mooring:member: to be removed\n"


def test_a_node_that_is_busy_is_not_deleted(home: Path) -> None:
    line = (RECORDED / "nodes.txt").read_text().splitlines()[1]
    (home / "node").write_text(f"{line}\n", encoding="utf-8")
    slurm = recorded(home, scontrol=f"cat {home}/node", squeue=f"cat {RECORDED}/squeue_plain.json")
    with pytest.raises(VerbFailed) as raised:
        nodes.delete(slurm, "hpc-worker-0", "member", gone=False)
    assert raised.value.code == "busy"
    assert [each["id"] for each in raised.value.more["jobs"]] == ["4", "5"]
    with pytest.raises(VerbFailed) as raised:
        nodes.quiet(slurm, "hpc-worker-0", 0.0)
    assert (raised.value.code, raised.value.more["quiet"]) == ("not_quiet", False)
    assert "held by jobs 4, 5" in raised.value.detail


def test_a_daemon_is_given_up_only_by_what_the_probes_observed(home: Path) -> None:
    slurm = recorded(home)
    words = ["slurmd", "-c", "echo up; read line", "-N", "hpc-worker-1", slurm.conf]
    daemon, late = nodes.DaemonWatch(slurm, "hpc-worker-1"), time.monotonic() + 2 * nodes.DAEMON_SECONDS
    with subprocess.Popen(words, executable="/bin/sh", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as up:
        assert up.stdout is not None
        assert up.stdout.readline() == b"up\n", "until then the kernel may not show its words"
        daemon.look(late)  # the first proof took longer than a daemon may be down
        daemon.look(late + 2 * nodes.DAEMON_SECONDS)
        up.communicate()
    daemon.look(late + 3 * nodes.DAEMON_SECONDS)
    with pytest.raises(VerbFailed, match="does not stay up"):
        daemon.look(late + 3 * nodes.DAEMON_SECONDS + 1)
    never = nodes.DaemonWatch(slurm, "hpc-worker-1")
    never.look(0.0)
    never.look(nodes.DAEMON_SECONDS)
    with pytest.raises(VerbFailed, match="does not stay up"):
        never.look(nodes.DAEMON_SECONDS + 1)


def test_an_array_is_reported_with_its_tasks_and_as_a_whole(home: Path) -> None:
    slurm = recorded(home, squeue=f"cat {RECORDED}/squeue_plain.json", scontrol="exit 1", scancel=f"touch {home}/ended")
    shown = queue.job(slurm, "2", None)
    assert [each["array"] for each in shown["tasks"]] == ["2_0", "2_1"]
    assert shown["array"] == {
        "task_count": 2,
        "over_count": 2,
        "states": {"FAILED": 2},
        "failed_count": 2,
        "failed": [{"array": f"2_{number}", "state": "FAILED", "exit_code": 3} for number in (0, 1)],
    }
    waits = queue.job(slurm, "6", None)
    assert waits["array"]["states"] == {"PENDING": 4}, "tasks that wait are one record"
    assert ("tasks" in waits, queue.job(slurm, "6_3", None)["job"]["id"]) == (False, "6")
    with pytest.raises(VerbFailed, match="there is no job 6_4"):
        queue.job(slurm, "6_4", None)
    assert "array" not in queue.job(slurm, "3", None), "this is the number of one task"
    for each in ("2", "6"):
        with pytest.raises(VerbFailed, match="name one") as raised:
            queue.output(slurm, each, "out", 0, 100)
        assert raised.value.code == "array"
    queue.cancel(slurm, "2", None)
    assert not (home / "ended").exists(), "all of it is over"
    queue.cancel(slurm, "6", None)
    assert (home / "ended").exists()


@pytest.mark.parametrize(
    ("words", "ids"),
    [((), 7), (("--user", "nobody"), 0), (("--state", "PENDING"), 2), (("--limit", "1"), 1), (("--limit", "0"), 1)],
)
def test_the_queue_is_reported_of_one_user_in_one_state_and_not_longer_than_asked(
    home: Path, words: tuple[str, ...], ids: int
) -> None:
    slurm = recorded(home, squeue=f"cat {RECORDED}/squeue_plain.json")
    shown = queue.jobs(slurm, _words().parse_args(["--home", str(home), "jobs", *words]))
    assert len(shown["jobs"]) == ids
    assert shown["truncated"] is ("--limit" in words)


def test_a_submission_that_was_cut_off_is_found_by_its_comment(home: Path) -> None:
    user = os.environ.get("USER") or "root"
    name = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip() or user
    (home / "submits" / name).mkdir(parents=True)
    jobs = json.loads((RECORDED / "squeue_plain.json").read_text(encoding="utf-8"))
    for each in jobs["jobs"]:
        each["user_name"] = name
    (home / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    slurm = recorded(home, squeue=f"cat {home}/jobs.json", sbatch=f'echo "$@" >> {home}/said; echo 12')
    request = {"key": "key-1", "script": "#!/bin/sh\n"}
    assert queue.submit(slurm, request) == {"job_id": "5", "repeated": True}
    fresh = {"key": "key-2", "script": "#!/bin/sh\n", "gpus": 2, "minutes": 5, "array": "0-3"}
    assert queue.submit(slurm, fresh) == {"job_id": "12", "repeated": False}
    assert queue.submit(slurm, fresh) == {"job_id": "12", "repeated": True}
    with pytest.raises(VerbFailed, match="belongs to another submission"):
        queue.submit(slurm, {**fresh, "gpus": 1})
    said = (home / "said").read_text(encoding="utf-8").splitlines()
    assert len(said) == 1
    assert said[0].endswith("--gpus-per-node=2 --array=0-3 --time=5")
    assert "--comment=mooring:key-2" in said[0]


def test_output_is_read_in_pieces_that_end_between_characters(home: Path) -> None:
    (home / "out").write_text("héllo wörld", encoding="utf-8")
    slurm = recorded(
        home,
        squeue=f"cat {RECORDED}/squeue_plain.json",
        scontrol=f"printf 'JobId=1\\n   StdErr=/nowhere\\n   StdOut={home}/out\\n'",
    )
    first = queue.output(slurm, "1", "out", 0, 2)
    assert first == {"text": "h", "offset": 1, "end": False, "size": 13}
    assert queue.output(slurm, "1", "out", 1, 100) == {"text": "éllo wörld", "offset": 13, "end": True, "size": 13}
    with pytest.raises(VerbFailed, match="is not on this node"):
        queue.output(slurm, "1", "err", 0, 100)


def test_a_script_that_has_its_submission_wait_or_say_something_else_holds_nobody_up(home: Path) -> None:
    name = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    place = home / "submits" / name
    place.mkdir(parents=True)
    empty = """echo '{"jobs": []}'"""
    request = {"key": "waits", "script": "#!/bin/sh\n#SBATCH --wait\n"}
    slurm = recorded(home, squeue=empty, sbatch="cat > /dev/null; echo 12; exec sleep 1000")
    assert queue.submit(slurm, request) == {"job_id": "12", "repeated": False}
    slurm = recorded(home, squeue=empty, sbatch="echo 'sbatch: Job 4 to start at once' >&2")
    with pytest.raises(VerbFailed, match="Job 4 to start") as raised:
        queue.submit(slurm, {**request, "key": "tests"})
    assert raised.value.code == "job_refused"
    odd = place / hashlib.sha256(b"odd").hexdigest()
    slurm = recorded(home, squeue=empty, sbatch="echo 13")
    for make in (lambda: os.mkfifo(odd), lambda: odd.write_text("[]", encoding="utf-8")):
        odd.unlink(missing_ok=True)
        make()
        assert queue.submit(slurm, {**request, "key": "odd"}) == {"job_id": "13", "repeated": False}


def test_output_that_ends_within_a_character_comes_to_its_end(home: Path) -> None:
    (home / "out").write_bytes(b"caf\xc3")
    slurm = recorded(
        home,
        squeue=f"cat {RECORDED}/squeue_plain.json",
        scontrol=f"printf 'JobId=1\\n   StdErr=/nowhere\\n   StdOut={home}/out\\n'",
    )
    assert queue.output(slurm, "1", "out", 0, 100) == {"text": "caf", "offset": 3, "end": False, "size": 4}
    assert queue.output(slurm, "1", "out", 3, 100) == {"text": "\ufffd", "offset": 4, "end": True, "size": 4}
    assert queue.output(slurm, "1", "out", 4, 100) == {"text": "", "offset": 4, "end": True, "size": 4}


@pytest.mark.parametrize("wrote", [b"\x1b" * 40_000, "ж".encode() * 20_000, b"\x00\xff" * 20_000])
def test_binary_output_is_read_to_its_end_in_responses_that_fit(home: Path, wrote: bytes) -> None:
    (home / "out").write_bytes(wrote)
    slurm = recorded(
        home,
        squeue=f"cat {RECORDED}/squeue_plain.json",
        scontrol=f"printf 'JobId=1\\n   StdErr=/nowhere\\n   StdOut={home}/out\\n'",
    )
    text, offset, ends = "", 0, False
    while not ends:
        answer = queue.output(slurm, "1", "out", offset, 32_768)
        assert len(json.dumps(answer)) < 60_000
        text, offset, ends = text + answer["text"], answer["offset"], answer["end"]
    assert (offset, text) == (len(wrote), wrote.decode("utf-8", "replace").replace("\x00", "\ufffd"))


def test_output_that_is_not_a_regular_file_blocks_nobody(home: Path) -> None:
    os.mkfifo(home / "pipe")
    slurm = recorded(
        home,
        squeue=f"cat {RECORDED}/squeue_plain.json",
        scontrol=f"printf 'JobId=1\\n   StdErr=/dev/zero\\n   StdOut={home}/pipe\\n'",
    )
    for stream in ("out", "err"):
        with pytest.raises(VerbFailed, match="not a regular file"):
            queue.output(slurm, "1", stream, 0, 100)


def test_each_version_has_a_program_of_its_own_and_always_the_same_bytes() -> None:
    assert program() == program()
    assert manifest_of()["artifacts"] == {ROLE: digest_of(program())}
    assert manifest_of(NEXT_VERSION)["artifacts"] == {ROLE: digest_of(program(NEXT_VERSION))}
    assert program() != program(NEXT_VERSION)
    assert (manifest_of()["version"], manifest_of(NEXT_VERSION)["version"]) == (VERSION, NEXT_VERSION)
    assert len(program()) < 100_000


def test_a_bundle_has_its_program_beside_it(tmp_path: Path) -> None:
    key = key_at(tmp_path / "key")
    file = write_version(tmp_path / "apps", key, NEXT_VERSION)
    written = json.loads(file.read_text(encoding="utf-8"))
    assert written == json.loads(json.dumps(bundle_of(key, NEXT_VERSION)))
    place = tmp_path / "apps" / program_name(NEXT_VERSION)
    assert digest_of(place.read_bytes()) == written["manifest"]["artifacts"][ROLE]
    assert written["artifacts"][ROLE]["location"] == f"file:{place.name}"
    assert written["app"]["category"] == "scheduler"
