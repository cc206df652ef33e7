"""Joining: every state of a token, and a machine that was here before."""

from dataclasses import replace
from datetime import timedelta

import pytest

from mooring.core.fleet.enrolment import (
    TOKENS_OPEN_MAX,
    EnrolmentContext,
    check_labels,
    create_enrolment_token,
    enrol,
    proof_of,
    revoke_enrolment_token,
)
from mooring.core.identity.token import FreshToken
from mooring.core.kernel.decision import Insert, Update
from mooring.core.kernel.errors import Code, Refusal
from server.tests.support.decision_context import NOW, context
from server.tests.support.node_rows import NODE_ID, OTHER_NODE, a_node, a_token, as_node, joining
from tests.support.rows import every_row

FRESH = FreshToken("enr_9", b"h" * 32)


def test_a_token_lives_for_fifteen_minutes() -> None:
    decision = create_enrolment_token(context(), FRESH, "north", {"rack": "a"}, 0)
    assert decision.result.expires_at == NOW + timedelta(minutes=15)
    (insert,) = decision.writes
    assert isinstance(insert, Insert)
    assert insert.row["hash"] == b"h" * 32
    assert b"h" * 32 not in decision.events[0].data.values()


def test_there_are_not_more_open_tokens_than_the_bound() -> None:
    with pytest.raises(Refusal) as refused:
        create_enrolment_token(context(), FRESH, "north", {}, TOKENS_OPEN_MAX)
    assert refused.value.code is Code.LIMIT_REACHED


def test_a_token_is_revoked_once_and_not_after_somebody_joined() -> None:
    decision = revoke_enrolment_token(context(), a_token())
    assert decision.writes == (Update("enrolment_token", "enr_1", 2, {"revoked_at": NOW}),)
    assert revoke_enrolment_token(context(), decision.result).writes == ()
    with pytest.raises(Refusal) as refused:
        revoke_enrolment_token(context(), a_token(used_at=NOW, node_id=NODE_ID))
    assert refused.value.code is Code.CONFLICT


def test_a_machine_joins_where_the_token_says_and_the_tokens_labels_win() -> None:
    decision = enrol(as_node(), EnrolmentContext(a_token()), joining())
    node = decision.result
    assert (node.id, node.region, node.status, node.sweep_due) == (NODE_ID, "north", "enrolled", False)
    assert node.labels == {"rack": "a", "row": "7"}
    used, born = decision.writes
    assert used == Update("enrolment_token", "enr_1", 2, {"used_at": NOW, "node_id": NODE_ID})
    assert isinstance(born, Insert)
    assert born.born[0].name == "node"
    assert "status" not in born.row


@every_row(
    ("known", "said"),
    [
        (EnrolmentContext(None), "unknown"), (EnrolmentContext(a_token(revoked_at=NOW)), "revoked"),
        (EnrolmentContext(a_token(expires_at=NOW)), "expired"),
        (EnrolmentContext(a_token(used_at=NOW, node_id=OTHER_NODE)), "used"),
        (EnrolmentContext(a_token(used_at=NOW, node_id=NODE_ID), a_node(sealing_key=b"o" * 32)), "used"),
        (EnrolmentContext(a_token(used_at=NOW, node_id=NODE_ID), a_node(signing_key=b"o" * 32)), "used"),
        (EnrolmentContext(a_token(used_at=NOW, node_id=NODE_ID), a_node("retired")), "used"),
    ],
)  # fmt: skip
def test_a_token_that_is_not_good_is_refused(known: EnrolmentContext, said: str) -> None:
    with pytest.raises(Refusal, match=said) as refused:
        enrol(as_node(), known, joining())
    assert refused.value.code is Code.ENROLMENT_REFUSED


def test_a_node_that_joined_with_the_token_gets_the_same_answer_later() -> None:
    known = EnrolmentContext(a_token(used_at=NOW, node_id=NODE_ID, expires_at=NOW - timedelta(hours=1)), a_node())
    decision = enrol(as_node(), known, joining())
    assert (decision.result.id, decision.writes) == (NODE_ID, ())


@every_row(
    ("known", "requested"),
    [
        (EnrolmentContext(a_token(), previous=replace(a_node("retired"), id=OTHER_NODE)), joining()),
        (EnrolmentContext(a_token()), joining(previous_node_id=OTHER_NODE)),
    ],
)
def test_a_machine_that_was_a_node_before_is_swept_first(known: EnrolmentContext, requested: object) -> None:
    node = enrol(as_node(), known, requested).result  # type: ignore[arg-type]
    assert node.sweep_due is True
    assert node.previous_node_id == (None if known.previous is None else OTHER_NODE)


@every_row("labels", [{"UP": "x"}, {"a": "x" * 201}, {"a": "b\x00"}, {f"l{number}": "" for number in range(33)}])
def test_labels_are_few_and_short(labels: dict[str, str]) -> None:
    with pytest.raises(Refusal) as refused:
        check_labels(labels)
    assert refused.value.code is Code.VALIDATION_FAILED


def test_what_an_agent_signs_is_written_in_the_contract() -> None:
    assert proof_of(b"\x01" * 32, "signing", "sealing") == b"mooring-enrol-v1\n" + b"01" * 32 + b"\nsigning\nsealing"
