"""Deliveries: signatures, pauses, dead letters and replays."""

import base64
import hashlib
import hmac
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.core.kernel.decision import PrincipalKind, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.records.delivery import (
    REPLAY_BATCH,
    RETRY_MAX_SECONDS,
    Delivery,
    DeliveryMessage,
    DeliveryOutcome,
    is_delivery_id,
    mark_dead,
    message_headers,
    outcome_of,
    replay,
    replay_dead,
    retry_seconds,
    signature,
)
from server.tests.support.decision_context import NOW, PROJECT, TENANT, context, minter
from tests.support.rows import every_row

MINT = minter()
EVENT, WEBHOOK = MINT(Prefix.EVENT), MINT(Prefix.WEBHOOK)
CLAIMED = Delivery(
    id=f"{EVENT}.{WEBHOOK}",
    event_id=EVENT,
    webhook_id=WEBHOOK,
    tenant_id=TENANT,
    project_id=PROJECT,
    event_type="identity.project.created",
    correlation_id="cor_1",
    status="claimed",
    attempts=12,
    due_at=NOW,
    lease_token=7,
    leased_until=NOW,
    last_error=None,
    last_status=None,
    revision=9,
    created_at=NOW,
    finished_at=None,
)
DEAD = replace(CLAIMED, status="dead", leased_until=None, finished_at=NOW)


def test_a_signature_is_that_of_standard_webhooks() -> None:
    """The published example of the specification's libraries."""
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signed = signature([key], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_while_a_key_is_replaced_there_is_a_signature_for_each() -> None:
    headers = message_headers(DeliveryMessage("m", b"{}", "cor_1", "a" * 32), [b"new", b"old"], NOW, "b" * 16)
    timestamp = int(NOW.timestamp())
    expected = [
        "v1," + base64.b64encode(hmac.digest(key, f"m.{timestamp}.{{}}".encode(), hashlib.sha256)).decode()
        for key in (b"new", b"old")
    ]
    assert headers["webhook-signature"].split(" ") == expected
    assert headers["webhook-timestamp"] == str(timestamp)
    assert headers["traceparent"] == f"00-{'a' * 32}-{'b' * 16}-01"


def test_a_trace_id_of_another_form_is_left_out() -> None:
    assert "traceparent" not in message_headers(DeliveryMessage("m", b"", "cor_1", "x\r\ny"), [b"k"], NOW, "b" * 16)


@given(st.integers(1, 1000), st.floats(0, 1))
def test_pauses_grow_up_to_a_bound_and_spread_by_a_fifth(attempts: int, chance: float) -> None:
    middle = min(5.0 * 3.0 ** min(attempts - 1, 50), RETRY_MAX_SECONDS)
    assert 0.8 * middle <= retry_seconds(attempts, chance) <= 1.2 * middle + 1e-6


def test_a_receiver_may_ask_for_a_longer_pause_but_not_for_an_endless_one() -> None:
    assert retry_seconds(1, 0.5, 120) == 120
    assert retry_seconds(1, 0.5, 1) == 5
    assert retry_seconds(1, 0.5, 1e12) == RETRY_MAX_SECONDS


@every_row(("status", "good"), [(200, True), (204, True), (299, True), (199, False), (400, False), (500, False)])
def test_only_2xx_is_a_delivery(status: int, good: bool) -> None:
    assert (outcome_of(status, 0.1).error is None) is good


def test_a_redirect_fails_and_says_so() -> None:
    assert "redirects are not followed" in str(outcome_of(307, 0.1).error)


@every_row(("text", "seconds"), [("30", 30.0), ("", None), ("soon", None), ("-1", None), ("²", None)])
def test_retry_after_is_taken_as_seconds_or_not_at_all(text: str, seconds: float | None) -> None:
    assert outcome_of(503, 0.1, text).retry_after_seconds == seconds


@every_row("text", ["", ".", EVENT, WEBHOOK, f"{WEBHOOK}.{EVENT}", f"{EVENT}.{WEBHOOK}.x", f"{EVENT}.whk_1"])
def test_a_malformed_id_is_not_the_id_of_a_delivery(text: str) -> None:
    assert is_delivery_id(CLAIMED.id)
    assert not is_delivery_id(text)


def test_the_last_failure_makes_a_dead_letter_and_publishes_it() -> None:
    system = context("system", PrincipalKind.SYSTEM)
    decision = mark_dead(system, CLAIMED, DeliveryOutcome(0.2, 500, "the receiver answered 500"))
    (change,) = decision.writes
    assert isinstance(change, Update)
    assert (change.revision_expected, change.set["status"], change.set["finished_at"]) == (9, "dead", NOW)
    assert change.set["leased_until"] is None
    (event,) = decision.events
    assert (event.type, event.subject_id, event.project_id) == (EventType.DELIVERY_DEAD, CLAIMED.id, PROJECT)
    assert event.data["attempts"] == 12
    assert decision.audits[0].action == "outbox.dead"


def test_an_error_of_any_length_is_kept_bounded() -> None:
    assert len(str(mark_dead(context(), CLAIMED, DeliveryOutcome(0.1, None, "x" * 9999)).result.last_error)) == 500


def test_a_replay_starts_over_and_is_due_now() -> None:
    decision = replay(context(), DEAD, event_is_kept=True)
    after = decision.result
    assert (after.status, after.attempts, after.due_at, after.finished_at) == ("queued", 0, NOW, None)
    assert decision.events[0].type is EventType.DELIVERY_REPLAYED
    assert decision.audits[0].before == {"status": "dead", "attempts": 12}


def test_what_is_being_sent_or_has_lost_its_event_is_not_replayed() -> None:
    with pytest.raises(Refusal) as refused:
        replay(context(), CLAIMED, event_is_kept=True)
    assert refused.value.code is Code.ILLEGAL_TRANSITION
    with pytest.raises(Refusal) as refused:
        replay(context(), DEAD, event_is_kept=False)
    assert refused.value.code is Code.NOT_FOUND


def test_dead_letters_are_replayed_a_batch_at_a_time() -> None:
    dead = [replace(DEAD, id=f"{number}") for number in range(REPLAY_BATCH + 1)]
    decision = replay_dead(context(), (TENANT, PROJECT), dead)
    assert (decision.result.count, decision.result.more) == (REPLAY_BATCH, True)
    assert (len(decision.writes), len(decision.events), len(decision.audits)) == (REPLAY_BATCH, REPLAY_BATCH, 1)
    rest = replay_dead(context(), (TENANT, PROJECT), dead[REPLAY_BATCH:])
    assert (rest.result.count, rest.result.more) == (1, False)
    assert replay_dead(context(), (TENANT, PROJECT), []).writes == ()
