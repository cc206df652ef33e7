"""Service accounts: one project, a bounded list, keys that rotate."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooring.core.identity.service_account import (
    ACCOUNTS_MAX,
    KEYS_MAX,
    SERVICE_ACCOUNT,
    ServiceAccount,
    ServiceAccountKey,
    ServiceAccountSpec,
    ServiceAccountTrigger,
    add_key,
    create_service_account,
    move_service_account,
    revoke_key,
    update_service_account,
)
from mooring.core.identity.token import ACTIONS_MAX
from mooring.core.kernel.decision import Insert, PrincipalKind, StateChange, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.permissions import ACTIONS, SERVICE_ACCOUNT_CEILING, Authority, Place, Scope, is_app_action
from server.tests.support.decision_context import ACCOUNT, NOW, OTHER_PROJECT, PROJECT, TENANT, USER, authority, context
from tests.support.rows import every_row

HERE = Place(Scope.PROJECT, TENANT, PROJECT)
ADMIN = authority(("project_admin", PROJECT))
MEMBER = authority(("project_member", PROJECT))
PUBLIC_KEY = b"\x07" * 32
SEEN = ServiceAccount(ACCOUNT, TENANT, PROJECT, "robot", "", ["instance.read", "member.read"], "active", 4, 2, NOW)
KEY = ServiceAccountKey("key_1", TENANT, ACCOUNT, "ed25519", PUBLIC_KEY, 1, NOW, None, None)


def requested(*actions: str, name: str = "robot", key: bytes | None = None) -> ServiceAccountSpec:
    return ServiceAccountSpec(name, "does things", actions, key)


def code_of(refused: pytest.ExceptionInfo[Refusal]) -> Code:
    return refused.value.code


def test_an_account_is_made_active_with_its_list_sorted_and_its_first_key() -> None:
    asked = requested("member.read", "instance.read", "member.read", key=PUBLIC_KEY)
    decision = create_service_account(context(), ADMIN, HERE, asked, 0)

    account, key = decision.writes
    assert isinstance(account, Insert)
    assert isinstance(key, Insert)
    assert account.born == (SERVICE_ACCOUNT,)
    assert (account.row["actions"], account.row["status"]) == (["instance.read", "member.read"], "active")
    assert (key.row["public_key"], key.row["algorithm"]) == (PUBLIC_KEY, "ed25519")
    assert key.row["service_account_id"] == decision.result.id
    assert [event.type for event in decision.events] == [
        EventType.SERVICE_ACCOUNT_CREATED,
        EventType.SERVICE_ACCOUNT_KEY_ADDED,
    ]
    assert {(event.tenant_id, event.project_id) for event in decision.events} == {(TENANT, PROJECT)}


@settings(max_examples=40)
@given(st.sets(st.sampled_from(sorted(ACTIONS))), st.sampled_from(["tenant_admin", "project_admin", "project_member"]))
def test_a_list_never_exceeds_the_ceiling_nor_its_giver(wanted: set[str], role: str) -> None:
    giver = authority((role, None if role == "tenant_admin" else PROJECT))
    allowed = SERVICE_ACCOUNT_CEILING & giver.at(HERE)
    try:
        given = set(create_service_account(context(), giver, HERE, requested(*wanted), 0).result.actions)
    except Refusal as refusal:
        assert refusal.details["missing_actions"] == sorted(wanted - allowed)  # noqa: PT017  either way is right
        assert wanted - allowed
    else:
        assert given == wanted <= allowed


@every_row(
    ("giver", "actions"),
    [
        (ADMIN, ("membership.create",)),  # only people
        (ADMIN, ("project.create",)),  # a tenant's business
        (MEMBER, ("audit.read",)),  # not held
        (authority(("project_admin", OTHER_PROJECT)), ("instance.read",)),  # held elsewhere
        (authority(("tenant_admin", None), limit={"service_account.create"}), ("instance.read",)),
        (authority(("project_viewer", PROJECT)), ("app.trainer.start",)),  # may not launch apps
        (Authority(), ("instance.read",)),
    ],
)
def test_what_a_giver_cannot_give_is_refused(giver: Authority, actions: tuple[str, ...]) -> None:
    with pytest.raises(Refusal) as refused:
        create_service_account(context(), giver, HERE, requested(*actions), 0)
    assert code_of(refused) is Code.GRANT_EXCEEDS_CEILING
    assert refused.value.details == {"missing_actions": list(actions)}


def test_a_user_who_may_launch_an_app_may_let_an_account_use_it() -> None:
    decision = create_service_account(context(), MEMBER, HERE, requested("app.trainer.queue.submit"), 0)
    assert decision.result.actions == ["app.trainer.queue.submit"]


@every_row("key", ["instance.fly", "app.", "app.x", "app.trainer.<b>", "app.trainer.a\n", "*", ""])
def test_a_malformed_key_is_refused(key: str) -> None:
    assert not is_app_action(key)
    with pytest.raises(Refusal) as refused:
        create_service_account(context(), ADMIN, HERE, requested(key), 0)
    assert code_of(refused) is Code.VALIDATION_FAILED
    assert refused.value.details == {"path": "actions", "unknown_actions": [key]}


def test_a_list_is_bounded_however_it_grows() -> None:
    many = [f"app.trainer.a{number}" for number in range(ACTIONS_MAX + 1)]
    full = replace(SEEN, actions=many[:ACTIONS_MAX])

    assert len(create_service_account(context(), ADMIN, HERE, requested(*many[:-1]), 0).result.actions) == ACTIONS_MAX
    with pytest.raises(Refusal) as refused:
        create_service_account(context(), ADMIN, HERE, requested(*many), 0)
    assert refused.value.details == {"path": "actions"}
    with pytest.raises(Refusal) as refused:
        update_service_account(context(), ADMIN, full, requested(*many), None)
    assert refused.value.details == {"path": "actions"}


def test_a_project_has_room_for_so_many_accounts() -> None:
    assert create_service_account(context(), ADMIN, HERE, requested(), ACCOUNTS_MAX - 1).result.actions == []
    with pytest.raises(Refusal) as refused:
        create_service_account(context(), ADMIN, HERE, requested(), ACCOUNTS_MAX)
    assert (code_of(refused), refused.value.details) == (Code.LIMIT_REACHED, {"limit": ACCOUNTS_MAX})


@every_row("length", [0, 31, 33, 64])
def test_a_key_of_the_wrong_size_is_refused(length: int) -> None:
    with pytest.raises(Refusal) as refused:
        create_service_account(context(), ADMIN, HERE, requested(key=b"\x01" * length), 0)
    assert refused.value.details == {"path": "public_key"}


def test_a_change_may_keep_rights_that_its_author_lacks_but_add_only_their_own() -> None:
    seen = replace(SEEN, actions=["audit.read", "instance.read"])
    decision = update_service_account(context(), MEMBER, seen, requested("audit.read", "member.read"), 2)

    assert decision.result.actions == ["audit.read", "member.read"]
    changed = {"actions": ["audit.read", "member.read"], "description": "does things"}
    assert decision.writes == (Update("service_account", ACCOUNT, 2, changed, generation_expected=4),)
    with pytest.raises(Refusal) as refused:
        update_service_account(context(), MEMBER, seen, requested("audit.read", "webhook.read"), 2)
    assert refused.value.details == {"missing_actions": ["webhook.read"]}


def test_a_deleted_account_is_gone() -> None:
    gone = replace(SEEN, status="deleted")
    for attempt in (
        lambda: update_service_account(context(), ADMIN, gone, requested(), None),
        lambda: add_key(context(), gone, 0, PUBLIC_KEY, None, giver=ADMIN),
    ):
        with pytest.raises(Refusal) as refused:
            attempt()
        assert code_of(refused) is Code.NOT_FOUND


@every_row(
    ("status", "trigger", "after", "event"),
    [
        ("active", ServiceAccountTrigger.DISABLE, "disabled", EventType.SERVICE_ACCOUNT_DISABLED),
        ("disabled", ServiceAccountTrigger.ENABLE, "active", EventType.SERVICE_ACCOUNT_ENABLED),
        ("active", ServiceAccountTrigger.DELETE, "deleted", EventType.SERVICE_ACCOUNT_DELETED),
        ("disabled", ServiceAccountTrigger.DELETE, "deleted", EventType.SERVICE_ACCOUNT_DELETED),
    ],
)
def test_an_account_moves_and_the_trail_says_so(
    status: str, trigger: ServiceAccountTrigger, after: str, event: EventType
) -> None:
    disabled_at = NOW - timedelta(1) if status == "disabled" else None
    decision = move_service_account(context(), replace(SEEN, status=status, disabled_at=disabled_at), trigger)

    (move,) = decision.writes
    assert isinstance(move, StateChange)
    assert (move.edge.source, move.edge.target, move.generation_expected) == (status, after, 4)
    assert (decision.result.status, decision.result.generation, decision.result.revision) == (after, 5, 2)
    assert decision.events[0].type is event
    assert decision.audits[0].action == f"service_account.{trigger}"
    assert (decision.result.disabled_at is None) == (after == "active" or (after, status) == ("deleted", "active"))
    assert (decision.result.deleted_at is None) == (after != "deleted")


@every_row(
    ("status", "trigger"),
    [
        ("active", ServiceAccountTrigger.ENABLE),
        ("disabled", ServiceAccountTrigger.DISABLE),
        ("deleted", ServiceAccountTrigger.ENABLE),
        ("deleted", ServiceAccountTrigger.DELETE),
    ],
)
def test_a_move_that_is_not_in_the_table_is_refused(status: str, trigger: ServiceAccountTrigger) -> None:
    with pytest.raises(Refusal) as refused:
        move_service_account(context(), replace(SEEN, status=status), trigger)
    assert code_of(refused) is Code.ILLEGAL_TRANSITION


def test_a_key_is_added_beside_the_old_one_and_the_old_one_revoked() -> None:
    added = add_key(context(), SEEN, 1, PUBLIC_KEY, NOW + timedelta(days=30), giver=ADMIN)
    assert (added.result.service_account_id, added.result.revoked_at) == (ACCOUNT, None)
    assert added.result.expires_at == NOW + timedelta(days=30)

    revoked = revoke_key(context(), SEEN, KEY)
    assert revoked.writes == (Update("service_account_key", "key_1", 1, {"revoked_at": NOW}),)
    assert revoked.events[0].type is EventType.SERVICE_ACCOUNT_KEY_REVOKED
    again = revoke_key(context(), SEEN, revoked.result)
    assert (again.writes, again.events, again.audits) == ((), (), ())


def test_a_user_who_adds_a_key_to_an_account_holds_all_that_it_may_do() -> None:
    """The holder of a key acts as the account: adding one would be a way around every ceiling."""
    wide = replace(SEEN, actions=["audit.read", "instance.read", "service_account.key.create"])
    robot = authority(("project_admin", PROJECT), limit={"service_account.key.create", "instance.read"})

    assert add_key(context(), wide, 0, PUBLIC_KEY, None, giver=ADMIN).writes
    with pytest.raises(Refusal) as refused:
        add_key(context("sa_other", PrincipalKind.SERVICE_ACCOUNT), wide, 0, PUBLIC_KEY, None, giver=robot)
    assert code_of(refused) is Code.GRANT_EXCEEDS_CEILING
    assert refused.value.details == {"missing_actions": ["audit.read"]}


def test_an_account_rotates_its_own_key() -> None:
    own = authority(("project_viewer", PROJECT), limit={"service_account.key.create"})
    decision = add_key(context(ACCOUNT, PrincipalKind.SERVICE_ACCOUNT), SEEN, 1, PUBLIC_KEY, None, giver=own)
    assert decision.result.service_account_id == ACCOUNT


def test_an_account_has_room_for_so_many_keys_and_none_that_is_over() -> None:
    with pytest.raises(Refusal) as refused:
        add_key(context(), SEEN, KEYS_MAX, PUBLIC_KEY, None, giver=ADMIN)
    assert (code_of(refused), refused.value.details) == (Code.LIMIT_REACHED, {"limit": KEYS_MAX})
    with pytest.raises(Refusal) as refused:
        add_key(context(), SEEN, 0, PUBLIC_KEY, NOW, giver=ADMIN)
    assert refused.value.details == {"path": "expires_at"}


def test_the_actor_is_a_matter_of_the_context_and_not_of_the_row() -> None:
    decision = create_service_account(context(USER), ADMIN, HERE, requested("instance.read"), 0)
    (write,) = decision.writes
    assert isinstance(write, Insert)
    assert USER not in {str(value) for value in write.row.values()}
