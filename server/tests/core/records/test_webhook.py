"""Webhooks: state in, decision out."""

from dataclasses import replace

import pytest

from mooring.core.kernel.decision import Insert, Remove, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.secret import Sealed
from mooring.core.records.webhook import (
    KEY_OVERLAP,
    WEBHOOKS_MAX,
    NewWebhookKey,
    Webhook,
    WebhookSpec,
    check_event_types,
    create_webhook,
    delete_webhook,
    rotate_key,
    update_webhook,
)
from server.tests.support.decision_context import NOW, PROJECT, TENANT, context
from tests.support.rows import every_row

URL = "https://receiver.example/hooks/s3cret-path"
NEW = NewWebhookKey("whsec_new", Sealed("sec_new", TENANT, "webhook_key", "mk_1", b"w", b"c"))
OLD = Sealed("sec_old_copy", TENANT, "webhook_key", "mk_1", b"w", b"c")
SEEN = Webhook("whk_1", TENANT, PROJECT, URL, "mine", ["identity.*"], True, "sec_old", None, 4, NOW)


def test_a_new_webhook_is_enabled_and_its_key_is_shown_once_and_kept_sealed() -> None:
    requested = WebhookSpec("HTTPS://Receiver.example:443/hooks", ("identity.*", "identity.*"), " mine ")
    decision = create_webhook(context(), (TENANT, PROJECT), requested, NEW, 0)
    webhook = decision.result.webhook
    assert (webhook.url, webhook.event_types, webhook.description, webhook.enabled) == (
        "https://receiver.example/hooks",
        ["identity.*"],
        "mine",
        True,
    )
    assert decision.result.key == "whsec_new"
    assert [write.noun for write in decision.writes if isinstance(write, Insert)] == ["secret", "webhook"]
    assert decision.events[0].type is EventType.WEBHOOK_CREATED
    assert (decision.events[0].tenant_id, decision.events[0].project_id) == (TENANT, PROJECT)


def test_neither_the_key_nor_the_path_of_the_address_goes_into_events_or_the_trail() -> None:
    made = create_webhook(context(), (TENANT, None), WebhookSpec(URL), NEW, 0)
    moved = update_webhook(context(), SEEN, WebhookSpec(url="https://other.example/t0ken"), None)
    keyed = rotate_key(context(), SEEN, NEW, OLD)
    for decision in (made, moved, keyed, delete_webhook(context(), SEEN)):
        said = repr((decision.events, decision.audits))
        assert "s3cret" not in said
        assert "t0ken" not in said
        assert "whsec_" not in said


def test_a_place_has_a_bounded_number_of_webhooks() -> None:
    with pytest.raises(Refusal) as refused:
        create_webhook(context(), (TENANT, None), WebhookSpec(URL), NEW, WEBHOOKS_MAX)
    assert refused.value.code is Code.LIMIT_REACHED


def test_a_change_sets_only_what_is_new_and_says_what_it_was() -> None:
    decision = update_webhook(context(), SEEN, WebhookSpec(url=URL, enabled=False, description="mine"), 4)
    assert decision.writes == (Update("webhook", "whk_1", 4, {"enabled": False}),)
    assert decision.events[0].data["change"] == "paused"
    resumed = update_webhook(context(), replace(SEEN, enabled=False), WebhookSpec(enabled=True), None)
    assert resumed.events[0].data["change"] == "resumed"
    other = update_webhook(context(), SEEN, WebhookSpec(event_types=()), None)
    assert (other.events[0].data["change"], other.result.event_types) == ("changed", [])


def test_saying_what_is_there_already_writes_nothing() -> None:
    decision = update_webhook(context(), SEEN, WebhookSpec(URL, ("identity.*",), "mine", True), None)
    assert (decision.result, decision.writes, decision.events, decision.audits) == (SEEN, (), (), ())


def test_a_change_of_what_is_no_longer_there_is_refused() -> None:
    with pytest.raises(Refusal) as refused:
        update_webhook(context(), SEEN, WebhookSpec(enabled=False), 3)
    assert refused.value.code is Code.REVISION_CONFLICT


def test_a_new_key_leaves_the_old_one_beside_it_for_a_day() -> None:
    decision = rotate_key(context(), SEEN, NEW, OLD)
    assert decision.writes[0] == Update(
        "webhook", "whk_1", 4, {"secret_id": "sec_new", "previous_secret_id": "sec_old_copy"}
    )
    rows = {str(write.row["id"]): write.row["expires_at"] for write in decision.writes if isinstance(write, Insert)}
    assert rows == {"sec_new": None, "sec_old_copy": NOW + KEY_OVERLAP}
    assert decision.events[0].data == {"change": "re-keyed"}


def test_a_webhook_goes_by_the_revision_that_was_seen() -> None:
    assert delete_webhook(context(), SEEN).writes == (Remove("webhook", "whk_1", 4),)


@every_row("text", ["identity.*", "identity.project.*", "identity.project.created", "contract.*"])
def test_whole_types_and_families_are_taken(text: str) -> None:
    assert check_event_types([text]) == [text]


@every_row(
    "text", ["*", "identity", "identity.", "ident*", "identity.pro*", "no.such.type", "no.*", "contract.delivery.dead"]
)
def test_what_nothing_would_ever_be_delivered_for_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as refused:
        check_event_types([text])
    assert refused.value.code is Code.VALIDATION_FAILED
