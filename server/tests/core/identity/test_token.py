"""Tokens, callers and break-glass: what a token stands for, and never more."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooring.core.identity.break_glass import ROLES, open_break_glass
from mooring.core.identity.caller import ANONYMOUS, Caller, GrantedRole, TokenFacts, caller_of
from mooring.core.identity.token import (
    ACTIONS_MAX,
    BREAK_GLASS_LIFETIME,
    PERSONAL_LIFETIME_MAX,
    SERVICE_ACCOUNT_LIFETIME,
    SESSION_LIFETIME,
    TOKEN_PREFIX,
    FreshToken,
    PersonalTokenSpec,
    Token,
    TokenKind,
    check_actions,
    issue,
    personal_token,
    revoke_token,
    service_account_token,
    session_token,
)
from mooring.core.kernel.decision import Insert, PrincipalKind, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.permissions import (
    ACTIONS,
    ROLE_ACTIONS,
    SELF_ACTIONS,
    SERVICE_ACCOUNT_CEILING,
    AccessDecision,
    Place,
    Role,
    Scope,
)
from server.tests.support.decision_context import (
    ACCOUNT,
    NOW,
    OTHER_PROJECT,
    OTHER_TENANT,
    PROJECT,
    TENANT,
    USER,
    context,
)
from tests.support.rows import every_row

FRESH = FreshToken("tok_1", b"\x09" * 32)
DAY = timedelta(days=1)
HERE = Place(Scope.PROJECT, TENANT, PROJECT)
OF_A_USER = TokenFacts(
    token_id="tok_1",
    kind="session",
    tenant_id=TENANT,
    user_id=USER,
    service_account_id=None,
    break_glass_id=None,
    break_glass_role=None,
    token_actions=None,
    expires_at=NOW + DAY,
    user_disabled=False,
    account_status=None,
    account_project_id=None,
    account_actions=None,
    key_counts=False,
    roles=(GrantedRole("project_admin", PROJECT),),
)
OF_AN_ACCOUNT = replace(
    OF_A_USER,
    kind="service_account",
    user_id=None,
    service_account_id=ACCOUNT,
    account_status="active",
    account_project_id=PROJECT,
    account_actions=["instance.read"],
    key_counts=True,
    roles=(),
)
OF_AN_ENTRY = replace(
    OF_A_USER,
    kind="break_glass",
    break_glass_id="bgl_1",
    break_glass_role="project_viewer",
    roles=(GrantedRole("platform_admin", None),),
)


def caller(facts: TokenFacts) -> Caller:
    found = caller_of(facts, NOW)
    assert found is not None
    return found


def personal(actions: list[str] | None, lifetime: timedelta = DAY, limit: frozenset[str] | None = None) -> Token:
    spec = PersonalTokenSpec("laptop", lifetime, actions)
    return personal_token(context(), FRESH, spec, user_id=USER, tenant_id=TENANT, limit=limit)


# Tokens


def test_each_kind_of_token_lives_as_long_as_it_should() -> None:
    session = session_token(context(), FRESH, USER, TENANT)
    account = service_account_token(context(), FRESH, TENANT, ACCOUNT, "key_1")

    assert (session.kind, session.expires_at) == ("session", NOW + SESSION_LIFETIME)
    assert (account.kind, account.expires_at) == ("service_account", NOW + SERVICE_ACCOUNT_LIFETIME)
    assert (account.service_account_id, account.key_id, account.user_id) == (ACCOUNT, "key_1", None)
    assert personal(None).expires_at == NOW + DAY
    assert SERVICE_ACCOUNT_LIFETIME < BREAK_GLASS_LIFETIME < SESSION_LIFETIME < PERSONAL_LIFETIME_MAX


def test_every_kind_is_recognized_by_its_beginning() -> None:
    assert set(TOKEN_PREFIX) == set(TokenKind)
    assert len(set(TOKEN_PREFIX.values())) == len(TokenKind)
    assert all(prefix.startswith("mrg") and prefix.endswith("_") for prefix in TOKEN_PREFIX.values())


@every_row("lifetime", [timedelta(0), timedelta(seconds=59), PERSONAL_LIFETIME_MAX + timedelta(seconds=1)])
def test_a_personal_token_is_bounded_in_time(lifetime: timedelta) -> None:
    with pytest.raises(Refusal) as refused:
        personal(None, lifetime)
    assert refused.value.details == {"path": "expires_in_seconds"}


def test_a_personal_token_may_be_narrower_than_its_maker() -> None:
    assert personal(None).actions is None
    assert personal(["project.read", "instance.read", "project.read"]).actions == ["instance.read", "project.read"]
    assert personal([]).actions == []


def test_a_narrow_token_makes_no_wider_one() -> None:
    limit = frozenset({"token.create", "instance.read"})

    assert personal(None, limit=limit).actions == ["instance.read", "token.create"]
    assert personal(["instance.read"], limit=limit).actions == ["instance.read"]
    with pytest.raises(Refusal) as refused:
        personal(["instance.read", "project.delete"], limit=limit)
    assert refused.value.code is Code.GRANT_EXCEEDS_CEILING
    assert refused.value.details == {"missing_actions": ["project.delete"]}


@settings(max_examples=40)
@given(st.sets(st.sampled_from(sorted(ACTIONS))), st.none() | st.sets(st.sampled_from(sorted(ACTIONS))))
def test_no_chain_of_tokens_widens(limit: set[str], wanted: set[str] | None) -> None:
    try:
        made = personal(None if wanted is None else sorted(wanted), limit=frozenset(limit))
    except Refusal:
        assert wanted is not None
        assert not wanted <= limit
    else:
        assert made.actions is not None
        assert set(made.actions) <= limit


def test_only_known_keys_and_those_of_apps_are_taken_and_not_too_many() -> None:
    assert check_actions(["instance.read", "app.trainer.start"]) == {"instance.read", "app.trainer.start"}
    with pytest.raises(Refusal) as refused:
        check_actions(["b.unknown", "a.unknown", "instance.read"])
    assert refused.value.details == {"path": "actions", "unknown_actions": ["a.unknown", "b.unknown"]}
    with pytest.raises(Refusal) as refused:
        check_actions(f"app.trainer.a{number}" for number in range(ACTIONS_MAX + 1))
    assert refused.value.details == {"path": "actions"}


def test_issuing_writes_the_hash_and_publishes_it_nowhere() -> None:
    decision = issue(personal(["instance.read"]), FRESH, action="token.create", project_id=PROJECT)

    (write,) = decision.writes
    assert isinstance(write, Insert)
    assert write.row["hash"] == FRESH.hash
    assert set(write.row) == (set(Token.__slots__) - {"last_used_at"}) | {"hash"}
    (event,), (audit,) = decision.events, decision.audits
    assert event.data == audit.after == {"kind": "personal", "holder_id": USER, "expires_at": (NOW + DAY).isoformat()}
    assert (event.type, event.project_id, audit.action) == (EventType.TOKEN_ISSUED, PROJECT, "token.create")


def test_revoking_twice_is_not_an_error_and_has_no_second_effect() -> None:
    first = revoke_token(context(), personal(None))
    assert first.writes == (Update("token", "tok_1", 0, {"revoked_at": NOW}),)
    assert first.events[0].type is EventType.TOKEN_REVOKED

    second = revoke_token(context(), first.result)
    assert (second.result, second.writes, second.events, second.audits) == (first.result, (), (), ())


# Callers


def test_a_users_token_has_the_users_current_roles() -> None:
    found = caller(OF_A_USER)

    assert (found.actor.kind, found.actor.id, found.actor.token_id) == (PrincipalKind.USER, USER, "tok_1")
    assert (found.tenant_id, found.roles, found.token_kind) == (TENANT, (("project_admin", PROJECT),), "session")
    assert found.authority.at(HERE) == ROLE_ACTIONS[Role.PROJECT_ADMIN]
    demoted = caller(replace(OF_A_USER, roles=(GrantedRole("project_viewer", PROJECT),)))
    assert demoted.authority.at(HERE) == ROLE_ACTIONS[Role.PROJECT_VIEWER]


def test_a_user_without_a_role_still_has_their_own_account() -> None:
    found = caller(replace(OF_A_USER, roles=()))

    assert found.authority.at(Place(Scope.SELF)) == SELF_ACTIONS | {"token.create", "self.update"}
    assert found.authority.access("project.read", HERE) is AccessDecision.HIDDEN


@every_row(
    "facts",
    [
        replace(OF_A_USER, expires_at=NOW),
        replace(OF_A_USER, user_disabled=True),
        replace(OF_A_USER, user_id=None),
        replace(OF_AN_ACCOUNT, expires_at=NOW - DAY),
        replace(OF_AN_ACCOUNT, account_status="disabled"),
        replace(OF_AN_ACCOUNT, account_status="deleted"),
        replace(OF_AN_ACCOUNT, account_project_id=None),
        replace(OF_AN_ACCOUNT, key_counts=False),
        replace(OF_AN_ENTRY, user_disabled=True),
        replace(OF_AN_ENTRY, roles=()),
        replace(OF_AN_ENTRY, roles=(GrantedRole("platform_operator", None),)),
    ],
    ids=[
        "expired",
        "user disabled",
        "nobody's",
        "account's expired",
        "account disabled",
        "account deleted",
        "account without a project",
        "key revoked",
        "entry of a disabled user",
        "entry of somebody who is not an admin any more",
        "entry of one who is an operator now",
    ],
)
def test_an_invalid_token_identifies_nobody(facts: TokenFacts) -> None:
    assert caller_of(facts, NOW) is None


def test_a_service_account_has_its_list_in_its_project_and_nothing_else() -> None:
    found = caller(OF_AN_ACCOUNT)

    assert (found.actor.kind, found.actor.id) == (PrincipalKind.SERVICE_ACCOUNT, ACCOUNT)
    assert found.authority.at(HERE) == {"instance.read"}
    assert found.authority.at(Place(Scope.SELF)) == SELF_ACTIONS
    for elsewhere in (
        Place(Scope.PLATFORM),
        Place(Scope.TENANT, TENANT),
        Place(Scope.PROJECT, TENANT, OTHER_PROJECT),
        Place(Scope.PROJECT, OTHER_TENANT, PROJECT),
    ):
        assert found.authority.at(elsewhere) == frozenset()


@settings(max_examples=40)
@given(st.sets(st.sampled_from(sorted(ACTIONS))))
def test_whatever_its_row_says_an_account_stays_below_its_ceiling(listed: set[str]) -> None:
    found = caller(replace(OF_AN_ACCOUNT, account_actions=sorted(listed)))

    assert found.authority.at(HERE) == listed & SERVICE_ACCOUNT_CEILING


@settings(max_examples=40)
@given(st.sets(st.sampled_from(sorted(ACTIONS))), st.sampled_from([OF_A_USER, OF_AN_ACCOUNT, OF_AN_ENTRY]))
def test_a_narrowed_token_holds_what_both_say(limit: set[str], facts: TokenFacts) -> None:
    whole, narrowed = caller(facts).authority, caller(replace(facts, token_actions=sorted(limit))).authority

    assert narrowed.at(HERE) == whole.at(HERE) & limit
    assert narrowed.limit == frozenset(limit)
    assert whole.limit is None


def test_anonymous_has_no_rights() -> None:
    assert ANONYMOUS.actor.kind is PrincipalKind.ANONYMOUS
    for place in (Place(Scope.SELF), Place(Scope.PLATFORM), Place(Scope.TENANT, TENANT), HERE):
        assert ANONYMOUS.authority.at(place) == frozenset()


# Break-glass


def test_an_entry_counts_in_its_tenant_and_no_longer_on_the_platform() -> None:
    found = caller(OF_AN_ENTRY)

    assert (found.tenant_id, found.actor.break_glass_id) == (TENANT, "bgl_1")
    assert found.authority.access("instance.read", HERE) is AccessDecision.ALLOWED
    assert found.authority.access("instance.create", HERE) is AccessDecision.DENIED
    assert found.authority.access("tenant.create", Place(Scope.PLATFORM)) is AccessDecision.DENIED
    assert found.authority.access("tenant.read", Place(Scope.TENANT, OTHER_TENANT)) is AccessDecision.HIDDEN
    assert found.authority.access("token.create", Place(Scope.SELF)) is AccessDecision.DENIED


@every_row("role", ROLES)
def test_the_tenant_sees_an_entry_with_its_reason(role: Role) -> None:
    decision = open_break_glass(context(), TENANT, role, "ticket 4711: instance hangs", FRESH)

    entry, token = decision.result.entry, decision.result.token
    assert (entry.tenant_id, entry.user_id, entry.role) == (TENANT, USER, role.value)
    assert entry.expires_at == token.expires_at == NOW + BREAK_GLASS_LIFETIME
    assert (token.kind, token.tenant_id, token.break_glass_id) == ("break_glass", TENANT, entry.id)
    assert [write.noun for write in decision.writes if isinstance(write, Insert)] == ["break_glass", "token"]
    (event,), (audit,) = decision.events, decision.audits
    assert (event.type, event.tenant_id) == (EventType.BREAK_GLASS_OPENED, TENANT)
    assert event.data["reason"] == audit.reason == "ticket 4711: instance hangs"
    assert audit.tenant_id == TENANT


@every_row("role", [role for role in Role if role not in ROLES])
def test_an_entry_is_either_read_only_or_full(role: Role) -> None:
    with pytest.raises(Refusal) as refused:
        open_break_glass(context(), TENANT, role, "ticket 4711: instance hangs", FRESH)
    assert refused.value.details == {"path": "role"}


@every_row("reason", ["", "because", " " * 30])
def test_an_entry_without_a_reason_is_refused(reason: str) -> None:
    with pytest.raises(Refusal) as refused:
        open_break_glass(context(), TENANT, Role.PROJECT_VIEWER, reason, FRESH)
    assert refused.value.details == {"path": "reason"}
