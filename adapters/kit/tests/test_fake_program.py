"""A fake program answers for the app's programs on the simulated nodes; its failure is reported as such."""

import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from adapters.kit.tests.test_suite_can_fail import BROKEN_ADAPTER, MANIFEST, PATIENCE_SECONDS
from mooring_adapter.conformance.fake_nodes import FakeNodes
from mooring_adapter.conformance.fake_program import FakeOutcome, FakeProgram, FakeProgramFailed, read_answer
from mooring_adapter.conformance.fake_records import FakeMember, FakeTask
from mooring_adapter.conformance.report import BROKEN
from mooring_adapter.conformance.suite import ProfileRefused, chosen, play, promises, read_profile
from tests.support.rows import every_row

ANSWERING = """
import json, sys
asked = 0
for line in sys.stdin:
    asked += 1
    task = json.loads(line)["task"]
    match task["arguments"].get("argv", [""])[-1]:
        case "look":
            output = json.dumps({"asked": asked, "member": task["member"]["name"], "of": task["instance_id"]})
            print(json.dumps({"result": {"exit_code": 0, "output": output}, "exit_code": 0}), flush=True)
        case "fail":
            print(json.dumps({"failure_code": "exited", "exit_code": 4, "last_lines": ["no"]}), flush=True)
        case "die":
            sys.exit("it went out")
        case _:
            print("{}", flush=True)
"""
MEMBER = FakeMember("mbr_1", "worker-0", "worker", 0, "1.0.0", "nod_1")


def task(type_: str, **arguments: Any) -> FakeTask:
    """A task of a simulated node."""
    return FakeTask("tsk_1", 1, None, "a/step", type_, MEMBER.id, arguments, "", datetime.now(UTC))


def program(directory: Path, text: str) -> Sequence[str]:
    """A stand-in of a few lines."""
    (directory / "stand_in.py").write_text(text)
    return (sys.executable, str(directory / "stand_in.py"))


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[FakeNodes]:
    """Simulated nodes with a stand-in."""
    fake_program = FakeProgram(program(tmp_path, ANSWERING))
    yield FakeNodes(fake_program=fake_program)
    fake_program.close()


def test_a_stand_in_is_asked_before_the_usual_answer_and_keeps_its_state(nodes: FakeNodes) -> None:
    content = "x" * 300_000  # more than a pipe holds
    assert nodes.do(task("files.write", files=[{"path": "/a", "content": content}]), MEMBER, "ins_1").result == {
        "written": 1
    }
    looked = nodes.do(task("process.run", argv=["program", "look"]), MEMBER, "ins_1")
    assert looked.result["output"] == '{"asked": 2, "member": "worker-0", "of": "ins_1"}'
    failed = nodes.do(task("process.run", argv=["program", "fail"]), MEMBER, "ins_1")
    assert (failed.failure_code, failed.exit_code, failed.last_lines) == ("exited", 4, ("no",))


def test_what_a_scenario_wants_to_go_wrong_comes_before_the_stand_in(nodes: FakeNodes) -> None:
    nodes.behaviour = lambda task, member: FakeOutcome(failure_code="host_error")
    assert nodes.do(task("process.run", argv=["look"]), MEMBER, "ins_1").failure_code == "host_error"


def test_what_is_started_is_noted_whatever_the_stand_in_says_but_not_what_it_lets_fail(nodes: FakeNodes) -> None:
    nodes.do(task("service.start", name="web", argv=["fail"]), MEMBER, "ins_1")
    assert nodes.running.get(MEMBER.id, set()) == set()
    nodes.do(task("service.start", name="web", argv=["look"]), MEMBER, "ins_1")
    assert nodes.running[MEMBER.id] == {"web"}


def test_a_program_that_ends_is_reported_with_its_last_output_and_restarted(nodes: FakeNodes) -> None:
    died = nodes.do(task("process.run", argv=["die"]), MEMBER, "ins_1")
    assert died.failure_code == "host_error"
    assert "the stand-in ended with 1: it went out, on process.run (a/step)" in str(died.failure_detail)
    assert nodes.do(task("process.run", argv=["look"]), MEMBER, "ins_1").failure_code == "host_error"
    assert nodes.fake_program is not None
    nodes.fake_program.restart()
    assert '"asked": 1' in nodes.do(task("process.run", argv=["look"]), MEMBER, "ins_1").result["output"]


def test_a_silent_program_is_waited_for_within_a_bound(tmp_path: Path) -> None:
    fake_program = FakeProgram(program(tmp_path, "import sys\nfor line in sys.stdin: pass"), seconds=0.05)
    with pytest.raises(FakeProgramFailed, match="did not answer within"):
        fake_program.ask(task("process.run", argv=["look"]), MEMBER, "ins_1")
    fake_program.close()


@every_row("line", [b"nothing", b"[]", b'{"results": {}}', b'{"result": []}', b'{"exit_code": "1"}'])
def test_an_invalid_answer_is_refused(line: bytes) -> None:
    with pytest.raises(FakeProgramFailed):
        read_answer(line)


def test_a_promise_that_is_broken_by_the_stand_in_alone_says_so(tmp_path: Path) -> None:
    fake_program = program(tmp_path, "import sys; sys.exit('no recorded answers')")
    profile = read_profile(MANIFEST, {"patience_seconds": PATIENCE_SECONDS, "stand_in": list(fake_program)})
    command = (sys.executable, str(BROKEN_ADAPTER), "nothing")
    (result,) = play(command, profile, chosen(promises(), ["deploy"]), lambda result: None)
    assert result.verdict == BROKEN
    assert "the stand-in ended with 1: no recorded answers" in result.reason


@every_row("given", ["program", [""], [1], ["there-is-no-such-program"]])
def test_a_profile_with_no_program_as_its_stand_in_is_refused(given: Any) -> None:
    with pytest.raises(ProfileRefused, match="stand_in"):
        read_profile(MANIFEST, {"stand_in": given})
