"""Reports: what counts, what does not, and what is kept of it."""

import asyncio
import base64
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from mooring.commands.live.refusal_limit import BURST
from mooring.core.fleet.node import WriteOff, write_off_node
from mooring.storage.fleet import node as nodes
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.kernel.unit_of_work import apply
from server.tests.support.agent_double import agent_of
from server.tests.support.agents import encoded
from server.tests.support.lifecycle_rows import context
from server.tests.support.node_site import NodeSite
from tests.support.waiting import turns

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]

FAILED = {"outcome": "failed", "failure": {"code": "exited", "detail": "false ended with 3", "exit_code": 3}}


async def test_a_result_ends_the_task_and_stays_readable(site: NodeSite) -> None:
    made = await site.make()
    task = await site.agent.claim_one()
    assert await site.agent.finish(task, last_lines=["one", "two"]) == {"accepted": True, "code": None, "detail": None}
    seen = (await site.people.get(f"{site.path}/tasks/{made.id}")).json()
    assert (seen["status"], seen["result"], seen["last_lines"]) == ("succeeded", {"exit_code": 0}, ["one", "two"])
    assert (seen["finished_at"] is not None, seen["exit_code"]) == (True, 0)
    listed = (await site.people.get(f"{site.path}/tasks?status=succeeded")).json()["items"]
    assert [each["id"] for each in listed] == [made.id]


async def test_a_result_that_comes_again_is_accepted_and_has_no_second_effect(site: NodeSite) -> None:
    made = await site.make("sandbox.destroy")
    task = await site.agent.claim_one()
    report = site.agent.result(task)
    first = await site.agent.report(report, report)
    again = await site.agent.report(report)
    assert [each["accepted"] for each in (*first, *again)] == [True, True, True]
    assert await site.count("SELECT count(*) FROM receipt WHERE task_id = $1", made.id) == 1
    finished = "SELECT count(*) FROM event WHERE subject_id = $1 AND type = 'nodes.task.finished'"
    assert await site.count(finished, made.id) == 1
    assert (await site.stands(made)).generation == 2


async def test_a_failure_says_why(site: NodeSite) -> None:
    made = await site.make()
    assert (await site.agent.finish(await site.agent.claim_one(), result=None, **FAILED))["accepted"]
    stands = await site.stands(made)
    assert (stands.status, stands.failure_code, stands.exit_code) == ("failed", "exited", 3)
    assert stands.failure_detail == "false ended with 3"


async def test_requested_output_does_not_count_for_the_size_of_the_result(site: NodeSite) -> None:
    asked = {"argv": ["look"], "output_bytes": 65_536}
    made, failed = await site.make(arguments=asked), await site.make(arguments=asked)
    one, two = await site.agent.claim()
    output = "\n" * 65_536  # twice as long when it is written as JSON
    report = {"exit_code": 0, "output": output, "output_truncated": True}
    assert (await site.agent.finish(one, result=report))["accepted"]
    assert (await site.agent.finish(two, result={**report, "exit_code": 3}, **FAILED))["accepted"]
    assert (await site.stands(made)).result == report
    assert (await site.stands(failed)).result == {**report, "exit_code": 3}


@pytest.mark.parametrize("outcome", [{}, FAILED])
async def test_an_output_that_nobody_asked_for_is_refused(site: NodeSite, outcome: dict[str, Any]) -> None:
    await site.make(arguments={"argv": ["look"], "output_bytes": 4})
    await site.make()
    one, two = await site.agent.claim()
    for task, output in ((one, "zwölf"), (one, 5), (two, "x")):
        refused = await site.agent.finish(task, result={"exit_code": 0, "output": output}, **outcome)
        assert (refused["accepted"], refused["code"]) == (False, "validation_failed")
    assert (await site.agent.finish(one, result={"exit_code": 0, "output": "zwö"}, **outcome))["accepted"]


async def test_a_task_that_its_agent_ended_without_being_asked_has_failed(site: NodeSite) -> None:
    made = await site.make()
    task = await site.agent.claim_one()
    report = {"outcome": "cancelled", "failure": {"code": "cancelled", "detail": "the owner was closed"}}
    assert (await site.agent.finish(task, result=None, **report))["accepted"]
    assert (await site.stands(made)).failure_code == "cancelled"


@pytest.mark.parametrize(
    "wrong",
    [
        {"outcome": "done"},
        {"result": {"exit_code": "none"}},
        {"result": {"exit_code": 0, "more": 1}},
        {"outcome": "failed", "failure": {"code": "made_up", "detail": ""}},
        {"last_lines": ["a\x00b"]},
        {"last_lines": ["x"] * 51},
        {"unknown": True},
    ],
)
async def test_a_result_that_is_not_of_the_schema_is_refused_alone(site: NodeSite, wrong: dict[str, Any]) -> None:
    made, other = await site.make(), await site.make()
    one, two = await site.agent.claim()
    verdicts = await site.agent.report(site.agent.result(one, **wrong), site.agent.result(two))
    assert [each["code"] for each in verdicts] == ["validation_failed", None]
    assert [(await site.stands(each)).status for each in (made, other)] == ["claimed", "succeeded"]


async def test_an_agent_reports_of_its_own_tasks_only(site: NodeSite) -> None:
    made = await site.make()
    other = await site.another_agent()
    task = await site.agent.claim_one()
    (verdict,) = await other.report(other.result(task))
    assert verdict["code"] == "not_found"
    assert (await site.stands(made)).status == "claimed"


async def test_progress_is_seen_and_renews_the_lease(site: NodeSite) -> None:
    made = await site.make()
    task = await site.agent.claim_one()
    await site.later(timedelta(seconds=80))
    sent_progress = {"stage": "fetching", "done": 3, "total": 9, "unit": "bytes"}
    report = {"kind": "progress", "task_id": task["task_id"], "fence": 1, "progress": sent_progress}
    stale = report | {"fence": 0}
    assert [each["code"] for each in await site.agent.report(report, stale)] == [None, "lease_lost"]
    await site.later(timedelta(seconds=80))
    stands = await site.stands(made)
    assert (stands.status, stands.progress) == ("claimed", sent_progress)


def logged(task: dict[str, Any], offset: int, text: bytes) -> dict[str, Any]:
    return {
        "kind": "log",
        "task_id": task["task_id"],
        "fence": task["fence"],
        "offset": offset,
        "text": encoded(text),
    }


async def test_the_whole_output_is_read_back_whatever_was_sent_twice(site: NodeSite) -> None:
    made = await site.make()
    task = await site.agent.claim_one()
    verdicts = await site.agent.report(
        logged(task, 0, b"hello "),
        logged(task, 0, b"hello "),
        logged(task, 3, b"lo wor"),
        logged(task, 20, b"gap"),
        logged(task, 9, b"ld\n"),
    )
    assert [each["code"] for each in verdicts] == [None, None, None, "log_gap", None]
    path = f"{site.path}/tasks/{made.id}/log"
    seen = (await site.people.get(path)).json()
    assert (seen["text"], seen["next_offset"], seen["log_bytes"], seen["ended"]) == ("hello world\n", 12, 12, False)
    assert (await site.people.get(f"{path}?offset=6&limit=5")).json()["text"] == "world"
    assert (await site.agent.finish(task))["accepted"]
    assert (await site.people.get(f"{path}?offset=12")).json()["ended"] is True


async def test_a_character_that_is_cut_is_left_for_the_next_part(site: NodeSite) -> None:
    made = await site.make()
    task = await site.agent.claim_one()
    text = "äöü€".encode()
    await site.agent.report(logged(task, 0, text[:5]))
    path = f"{site.path}/tasks/{made.id}/log"
    first = (await site.people.get(path)).json()
    assert (first["text"], first["next_offset"]) == ("äö", 4)
    await site.agent.report(logged(task, 5, text[5:]))
    assert (await site.people.get(f"{path}?offset=4")).json()["text"] == "ü€"


async def test_output_is_followed_as_it_comes(site: NodeSite) -> None:
    made = await site.make()
    task = await site.agent.claim_one()
    path = f"{site.path}/tasks/{made.id}/log"
    following = asyncio.create_task(site.people.get(f"{path}?wait=60"))
    await turns()
    await site.agent.report(logged(task, 0, b"first\n"))
    assert (await following).json()["text"] == "first\n"
    ending = asyncio.create_task(site.people.get(f"{path}?offset=6&wait=60"))
    await turns()
    await site.agent.finish(task)
    assert (await ending).json()["ended"] is True


async def test_output_beyond_the_limit_is_marked_as_truncated(site: NodeSite) -> None:
    settings = replace(site.services.settings, task_log_limit_bytes=10)
    object.__setattr__(site.services, "settings", settings)
    made = await site.make()
    task = await site.agent.claim_one()
    verdicts = await site.agent.report(logged(task, 0, b"12345678"), logged(task, 8, b"9abc"), logged(task, 12, b"d"))
    assert [each["code"] for each in verdicts] == [None, "log_full", "log_gap"]
    seen = (await site.people.get(f"{site.path}/tasks/{made.id}/log")).json()
    assert (seen["text"], seen["truncated"]) == ("123456789a", True)


@pytest.mark.parametrize("reason", ["owner_closed", "unknown_type", "bad_arguments", "expired"])
async def test_a_task_that_can_never_run_on_its_node_has_failed(site: NodeSite, reason: str) -> None:
    made = await site.make()
    task = await site.agent.claim_one()
    (verdict,) = await site.agent.report(
        {"kind": "refused", "task_id": task["task_id"], "reason": reason, "detail": "no"}
    )
    assert verdict["accepted"]
    stands = await site.stands(made)
    assert (stands.status, stands.failure_code, stands.failure_detail) == ("failed", "refused", f"{reason}: no")
    assert await refusals(site) == [f"{reason}: no"]


@pytest.mark.parametrize("reason", ["bad_signature", "wrong_node", "wrong_audience", "replayed"])
async def test_what_somebody_else_showed_the_node_is_audited_and_ends_nothing(site: NodeSite, reason: str) -> None:
    made = await site.make()
    task = await site.agent.claim_one()
    forged = {"kind": "refused", "task_id": task["task_id"], "reason": reason, "detail": "no"}
    unnamed = {"kind": "refused", "reason": reason, "detail": "no"}
    assert [each["accepted"] for each in await site.agent.report(forged, unnamed)] == [True, True]
    assert (await site.stands(made)).status == "claimed"
    assert await refusals(site) == [f"{reason}: no", f"{reason}: no"]


async def test_strays_stand_in_the_audit_trail_and_end_the_sweep(site: NodeSite) -> None:
    database = site.services.database
    await database.fetchval(PLATFORM, "UPDATE node SET sweep_due = true WHERE id = $1", site.agent.node_id)
    stray = {"kind": "processes", "name": "4711", "verdict": "reaped", "allocation_id": None}
    (verdict,) = await site.agent.report({"kind": "stray", "what": [stray]})
    assert verdict["accepted"]
    node = await nodes.find(database, site.agent.node_id)
    assert node is not None
    assert not node.sweep_due
    strays = "SELECT count(*) FROM audit WHERE action = 'agent.report' AND after ? 'stray' AND actor_id = $1"
    assert await site.count(strays, node.id) == 1


async def test_a_malformed_report_is_refused(site: NodeSite) -> None:
    for wrong in ({}, {"kind": "gossip"}, {"kind": "log", "task_id": "x", "fence": 1, "offset": 0, "text": "!"}):
        (verdict,) = await site.agent.report(wrong)
        assert verdict["code"] == "validation_failed"
    answer = await site.agent.client.post("/api/v1/agent/reports", json={"reports": [{}] * 101})
    assert answer.status_code == 422


# Receipts -------------------------------------------------------------------------------------------------------------


async def test_a_receipt_is_kept_as_it_was_signed_and_is_read_back(site: NodeSite) -> None:
    made = await site.make("sandbox.destroy")
    task = await site.agent.claim_one()
    receipt = site.agent.receipt(task, found=[{"kind": "processes", "name": "7"}])
    assert (await site.agent.finish(task, receipt=receipt))["accepted"]
    (seen,) = (await site.people.get(f"{site.path}/receipts")).json()["items"]
    assert (seen["task_id"], seen["sequence"], seen["clean"], seen["late"]) == (made.id, 1, True, False)
    assert (seen["body"], seen["signature"]) == (receipt["body"], receipt["signature"])
    assert seen["document"]["found"] == [{"kind": "processes", "name": "7"}]
    assert (await site.people.get(f"{site.path}/receipts/{seen['id']}")).json() == seen
    bundle = (await site.people.get(f"{site.path}/receipts/{seen['id']}/export")).json()
    assert bundle["signing_key"] == site.agent.machine.signing_key
    assert bundle["chain"] == [{"sequence": 1, "digest": seen["digest"]}]


async def test_a_teardown_succeeds_only_with_a_receipt(site: NodeSite) -> None:
    made = await site.make("sandbox.destroy")
    task = await site.agent.claim_one()
    assert (await site.agent.finish(task, receipt=None))["code"] == "receipt_missing"
    assert (await site.stands(made)).status == "claimed"
    report = {"outcome": "failed", "failure": {"code": "host_error", "detail": "no"}, "result": None, "receipt": None}
    assert (await site.agent.finish(task, **report))["accepted"]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"clean": True, "remaining": [{"kind": "mounts", "name": "/x"}]}, "receipt_invalid"),
        ({"clean": True, "not_looked": ["mounts"]}, "receipt_invalid"),
        ({"looked": {}}, "receipt_invalid"),
        ({"looked_at": 1.5}, "receipt_invalid"),
        ({"more": 1}, "receipt_invalid"),
        ({"owner": "another"}, "receipt_other_task"),
        ({"tenant_id": "another"}, "receipt_other_task"),
        ({"node_id": "another"}, "receipt_other_task"),
        ({"sequence": 2}, "receipt_gap"),
        ({"previous": "1" * 64}, "receipt_fork"),
    ],
)
async def test_a_receipt_that_is_not_right_is_refused_and_audited(
    site: NodeSite, wrong: dict[str, Any], code: str
) -> None:
    made = await site.make("sandbox.destroy")
    task = await site.agent.claim_one()
    verdict = await site.agent.finish(task, receipt=site.agent.receipt(task, advance=False, **wrong))
    assert verdict["code"] == code, verdict
    assert (await site.stands(made)).status == "claimed"
    assert await site.count("SELECT count(*) FROM receipt WHERE tenant_id = $1", site.tenant.id) == 0
    (reason,) = await refusals(site)
    assert reason.startswith(code)
    assert (await site.agent.finish(task))["accepted"]  # the right one is taken afterwards


async def test_a_receipt_that_another_key_signed_is_refused(site: NodeSite) -> None:
    await site.make("sandbox.destroy")
    other = await site.another_agent()
    task = await site.agent.claim_one()
    forged = other.receipt(task, node_id=site.agent.node_id)
    assert (await site.agent.finish(task, receipt=forged))["code"] == "receipt_signature"
    bent = site.agent.receipt(task, advance=False)
    body = bytearray(base64.urlsafe_b64decode(bent["body"] + "==="))
    body[-2:-2] = b" "
    assert (await site.agent.finish(task, receipt=bent | {"body": encoded(bytes(body))}))["code"] == "receipt_signature"
    signed = encoded(site.agent.machine.signing.sign(b"mooring-receipt-v1\n" + bytes(body)))
    loose = {"body": encoded(bytes(body)), "signature": signed}
    assert (await site.agent.finish(task, receipt=loose))["code"] == "receipt_invalid"  # not in its canonical form


async def test_a_chain_goes_on_and_no_receipt_is_replaced_by_another(site: NodeSite) -> None:
    for label in ("one", "two", "three"):
        await site.make("teardown.verify", {"close": True}, label=label)
    one, two, three = await site.agent.claim()
    first = site.agent.receipt(one)
    second = site.agent.receipt(two)
    early = await site.agent.finish(two, receipt=second)
    assert early["code"] == "receipt_gap"
    verdicts = await site.agent.report(site.agent.result(one, receipt=first), site.agent.result(two, receipt=second))
    assert [each["accepted"] for each in verdicts] == [True, True]
    forked = site.agent.receipt(three, advance=False, sequence=2, previous=site.agent.previous)
    assert (await site.agent.finish(three, receipt=forked))["code"] == "receipt_fork"
    assert (await site.agent.finish(three))["accepted"]
    chain = await site.services.database.fetch(
        PLATFORM, "SELECT sequence FROM receipt WHERE tenant_id = $1 ORDER BY sequence", site.tenant.id
    )
    assert [row[0] for row in chain] == [1, 2, 3]
    other = site.agent.receipt(one, advance=False)
    assert (await site.agent.finish(one, receipt=other))["code"] == "receipt_fork"


async def test_receipts_that_are_sent_side_by_side_stay_a_chain(site: NodeSite) -> None:
    for number in range(6):
        await site.make("teardown.verify", {"close": True}, label=f"owner-{number}")
    tasks = await site.agent.claim()
    report = [site.agent.result(task) for task in tasks]
    while True:
        verdicts = await asyncio.gather(*(site.agent.report(each) for each in report))
        if all(verdict["accepted"] for (verdict,) in verdicts):
            break
        assert {verdict["code"] for (verdict,) in verdicts} <= {None, "receipt_gap", "conflict"}
    assert await site.count("SELECT max(sequence) FROM receipt WHERE tenant_id = $1", site.tenant.id) == 6


async def test_a_receipt_after_its_task_was_given_up_is_added_to_the_record(site: NodeSite) -> None:
    made = await site.make("sandbox.destroy", lifetime=timedelta(seconds=30))
    task = await site.agent.claim_one()
    await site.later(timedelta(seconds=31))
    assert (await site.stands(made)).status == "expired"
    assert (await site.agent.finish(task))["accepted"]
    assert (await site.stands(made)).status == "expired"
    (seen,) = (await site.people.get(f"{site.path}/receipts")).json()["items"]
    assert (seen["late"], seen["clean"]) == (True, True)


async def test_a_machine_that_comes_back_after_a_write_off_adds_its_late_receipt(site: NodeSite) -> None:
    member = await site.project_rows.birth("member")
    short = {"label": "gone", "member_id": member, "lifetime": timedelta(seconds=30)}
    made = await site.make("teardown.verify", {"close": True}, **short)
    task = await site.agent.claim_one()
    database = site.services.database
    node = await nodes.find(database, site.agent.node_id)
    assert node is not None
    await database.fetchval(PLATFORM, "DELETE FROM slot WHERE node_id = $1", node.id)
    stated = WriteOff("the machine burnt down", "whatever was on its disks")
    await apply(database, PLATFORM, context(), write_off_node(context(), node, (), stated))
    await site.later(timedelta(seconds=31))
    assert (await site.stands(made)).status == "expired"
    written_off = {"kind": "write_off", "node_id": node.id, "reason": "the machine burnt down", "may_be_left": "disks"}
    row = site.project_rows.closing_record(member, **written_off)
    columns = ", ".join(row)
    places = ", ".join(f"${number}" for number in range(1, len(row) + 1))
    await database.fetchval(PLATFORM, f"INSERT INTO closing_record ({columns}) VALUES ({places})", *row.values())
    site.agent.machine.name += "-back"
    receipt = site.agent.receipt(task)
    enrolled = await site.agent.machine.enrol(site.world.client(), site.world.admin)
    again = await agent_of(site.agent.machine, site.world.client(), enrolled)
    site.more.append(again)
    assert again.node_id != node.id
    assert (await again.finish(task, receipt=receipt))["accepted"]
    (kept,) = await database.fetch(PLATFORM, "SELECT kind, receipt FROM closing_record WHERE member_id = $1", member)
    assert (kept["kind"], kept["receipt"]["clean"], kept["receipt"]["late"]) == ("write_off", True, True)


async def refusals(site: NodeSite) -> list[str]:
    """The reasons of what was refused in the name of the agent."""
    statement = "SELECT reason FROM audit WHERE outcome = 'refused' AND actor_id = $1 ORDER BY id"
    return [row[0] for row in await site.services.database.fetch(PLATFORM, statement, site.agent.node_id)]


async def test_refusals_of_one_node_are_bounded_in_the_audit_trail(site: NodeSite) -> None:
    report = {"kind": "refused", "task_id": None, "reason": "bad_signature", "detail": "somebody tries"}
    for _ in range(4):
        assert all(each["accepted"] for each in await site.agent.report(*[report] * 50))
    assert len(await refusals(site)) == BURST
