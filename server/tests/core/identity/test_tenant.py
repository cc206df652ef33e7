"""Tenants, projects and users: state in, decision out."""

from dataclasses import replace
from datetime import timedelta

import pytest

from mooring.core.identity.project import Project, ProjectContents, create_project, delete_project, update_project
from mooring.core.identity.tenant import Tenant, create_tenant, update_tenant
from mooring.core.identity.user import (
    OneTime,
    User,
    UserChange,
    UserSpec,
    change_user,
    check_password_form,
    create_user,
    new_user,
    set_password,
)
from mooring.core.kernel.decision import Insert, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix, is_id
from server.tests.support.decision_context import NOW, OTHER_USER, PROJECT, TENANT, USER, context
from tests.support.rows import every_row

ONE_TIME = OneTime(b"\x01" * 32, NOW + timedelta(days=7))
TENANT_SEEN = Tenant(TENANT, "acme", "Acme", 3, NOW)
PROJECT_SEEN = Project(PROJECT, TENANT, "lab", "Lab", 5, NOW, None)
USER_SEEN = User(OTHER_USER, TENANT, "ada@example.org", "Ada", "$hash", None, None, None, 2, NOW)


def code_of(refused: pytest.ExceptionInfo[Refusal]) -> Code:
    return refused.value.code


# Tenants


def test_a_tenant_is_made_with_its_first_admin_who_can_sign_in_once() -> None:
    decision = create_tenant(context(), "acme", " Acme AG ", UserSpec("Ada@Example.org", "Ada"), ONE_TIME)

    tenant, user = decision.result.tenant, decision.result.first_admin
    assert (tenant.slug, tenant.display_name, tenant.revision) == ("acme", "Acme AG", 0)
    assert (user.tenant_id, user.email, user.password_hash) == (tenant.id, "ada@example.org", None)
    assert (user.one_time_hash, user.one_time_expires_at) == (ONE_TIME.hash, ONE_TIME.expires_at)
    membership = decision.writes[-1]
    assert [write.noun for write in decision.writes if isinstance(write, Insert)] == ["tenant", "user", "membership"]
    assert isinstance(membership, Insert)
    assert membership.row["role"] == "tenant_admin"
    assert (membership.row["user_id"], membership.row["tenant_id"], membership.row["project_id"]) == (
        user.id,
        tenant.id,
        None,
    )
    assert [event.type for event in decision.events] == [
        EventType.TENANT_CREATED,
        EventType.USER_CREATED,
        EventType.MEMBERSHIP_CREATED,
    ]
    assert {event.tenant_id for event in decision.events} == {tenant.id}
    (audit,) = decision.audits
    assert (audit.action, audit.subject_id, audit.tenant_id) == ("tenant.create", tenant.id, tenant.id)
    assert is_id(tenant.id, Prefix.TENANT)
    assert is_id(user.id, Prefix.USER)


@every_row(
    ("slug", "name", "admin", "path"),
    [
        ("Acme", "Acme", UserSpec("a@b", "A"), "slug"),
        ("acme", "", UserSpec("a@b", "A"), "display_name"),
        ("acme", "Acme", UserSpec("nobody", "A"), "first_admin.email"),
        ("acme", "Acme", UserSpec("a@b", "\n"), "first_admin.display_name"),
    ],
)
def test_a_tenant_with_a_bad_name_is_refused_and_the_value_named(
    slug: str, name: str, admin: UserSpec, path: str
) -> None:
    with pytest.raises(Refusal) as refused:
        create_tenant(context(), slug, name, admin, ONE_TIME)
    assert (code_of(refused), refused.value.details["path"]) == (Code.VALIDATION_FAILED, path)


def test_only_the_display_name_of_a_tenant_changes() -> None:
    decision = update_tenant(context(), TENANT_SEEN, "Acme 2", 3)

    assert decision.result == replace(TENANT_SEEN, display_name="Acme 2", revision=4)
    assert decision.writes == (Update("tenant", TENANT, 3, {"display_name": "Acme 2"}),)
    assert (decision.audits[0].before, decision.audits[0].after) == (
        {"display_name": "Acme"},
        {"display_name": "Acme 2"},
    )


def test_a_change_of_what_was_not_seen_is_refused() -> None:
    for change in (
        lambda seen: update_tenant(context(), TENANT_SEEN, "x", seen),
        lambda seen: update_project(context(), replace(PROJECT_SEEN, revision=3), "x", seen),
    ):
        with pytest.raises(Refusal) as refused:
            change(2)
        assert code_of(refused) is Code.REVISION_CONFLICT
        assert refused.value.details == {"revision": 3, "revision_seen": 2}
        assert change(None).result.revision == change(3).result.revision == 4


# Projects


def test_a_project_is_made_empty_in_its_tenant() -> None:
    decision = create_project(context(), TENANT, "lab", "Lab")

    project = decision.result
    assert is_id(project.id, Prefix.PROJECT)
    assert (project.tenant_id, project.deleted_at, project.created_at) == (TENANT, None, NOW)
    (event,), (audit,) = decision.events, decision.audits
    assert (event.tenant_id, event.project_id, audit.project_id) == (TENANT, project.id, project.id)


def test_an_empty_project_goes_and_leaves_a_tombstone() -> None:
    decision = delete_project(context(), PROJECT_SEEN, ProjectContents((("service_account", 0),)))

    assert decision.result.deleted_at == NOW
    assert decision.writes == (Update("project", PROJECT, 5, {"deleted_at": NOW}),)
    assert decision.events[0].type is EventType.PROJECT_DELETED


def test_a_project_that_holds_something_stays_and_says_what() -> None:
    contents = ProjectContents((("webhook", 1), ("membership", 0), ("service_account", 3)))
    with pytest.raises(Refusal) as refused:
        delete_project(context(), PROJECT_SEEN, contents)

    assert code_of(refused) is Code.NOT_EMPTY
    assert refused.value.detail == "the project still holds 3 service_account, 1 webhook"
    assert refused.value.details == {"held": {"webhook": 1, "service_account": 3}}


# Users


def test_a_user_begins_with_a_one_time_code_and_no_role() -> None:
    decision = create_user(context(), None, UserSpec("root@example.org", "Root"), ONE_TIME)

    (write,) = decision.writes
    assert isinstance(write, Insert)
    assert (write.noun, write.row["tenant_id"], write.row["password_hash"]) == ("user", None, None)
    assert set(write.row) == set(User.__slots__)
    assert decision.audits[0].after == {"email": "root@example.org"}


def test_the_path_of_a_bad_value_is_that_of_the_request() -> None:
    with pytest.raises(Refusal) as refused:
        new_user(context(), TENANT, UserSpec("x", "X"), ONE_TIME)
    assert refused.value.details == {"path": "email"}


@every_row(
    ("before", "change", "written"),
    [
        (USER_SEEN, UserChange.DISABLE, {"disabled_at": NOW}),
        (replace(USER_SEEN, disabled_at=NOW), UserChange.ENABLE, {"disabled_at": None}),
        (
            USER_SEEN,
            UserChange.RESET,
            {
                "password_hash": None,
                "one_time_hash": ONE_TIME.hash,
                "one_time_expires_at": ONE_TIME.expires_at,
                "tokens_from": NOW,
            },
        ),
    ],
)
def test_an_admin_changes_a_user(before: User, change: UserChange, written: dict[str, object]) -> None:
    decision = change_user(context(USER), before, change, ONE_TIME)

    assert decision.writes == (Update("user", OTHER_USER, 2, written),)
    assert decision.result == replace(before, revision=3, **written)  # type: ignore[arg-type]
    assert decision.events[0].data == {"change": change.value}
    assert decision.audits[0].action == "user.update"


@every_row(
    ("before", "change"),
    [(USER_SEEN, UserChange.ENABLE), (replace(USER_SEEN, disabled_at=NOW - timedelta(1)), UserChange.DISABLE)],
)
def test_an_unchanged_value_is_not_written_again(before: User, change: UserChange) -> None:
    decision = change_user(context(USER), before, change, None)

    assert (decision.result, decision.writes, decision.events, decision.audits) == (before, (), (), ())


def test_nobody_disables_themselves_and_everybody_may_reset_themselves() -> None:
    for change in (UserChange.DISABLE, UserChange.ENABLE):
        with pytest.raises(Refusal) as refused:
            change_user(context(OTHER_USER), USER_SEEN, change, None)
        assert code_of(refused) is Code.LAST_ADMIN
    assert change_user(context(OTHER_USER), USER_SEEN, UserChange.RESET, ONE_TIME).result.password_hash is None


def test_a_reset_without_a_code_is_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="one-time code"):
        change_user(context(), USER_SEEN, UserChange.RESET, None)


def test_a_new_password_uses_the_one_time_code_up() -> None:
    fresh = replace(USER_SEEN, password_hash=None, one_time_hash=ONE_TIME.hash, one_time_expires_at=NOW)
    decision = set_password(context(OTHER_USER), fresh, "$new")

    written = {"password_hash": "$new", "one_time_hash": None, "one_time_expires_at": None, "tokens_from": NOW}
    assert decision.writes == (Update("user", OTHER_USER, 2, written),)
    assert decision.audits[0].action == "self.update"


def test_the_token_by_which_a_password_is_changed_goes_on_to_count() -> None:
    own = context(OTHER_USER)
    acting = replace(own, actor=replace(own.actor, token_id="tok_1"))

    after = set_password(acting, USER_SEEN, "$new").result

    assert (after.tokens_from, after.tokens_except) == (NOW, "tok_1")


def test_no_decision_about_a_user_contains_a_hash_or_a_code() -> None:
    decisions = (
        create_user(context(), TENANT, UserSpec("a@b", "A"), ONE_TIME),
        change_user(context(), USER_SEEN, UserChange.RESET, ONE_TIME),
        set_password(context(), USER_SEEN, "$new"),
    )
    for decision in decisions:
        published = repr([(event.data) for event in decision.events] + [(a.before, a.after) for a in decision.audits])
        assert "hash" not in published
        assert "$" not in published
        assert "\\x01" not in published


@every_row("length", [12, 200])
def test_a_password_of_these_lengths_is_taken(length: int) -> None:
    assert check_password_form("x" * length, "vera@acme.example") == "x" * length


@every_row("email", ["VERA@acme.example", "vera@acme.example"])
def test_a_password_with_the_local_part_of_the_address_is_refused(email: str) -> None:
    with pytest.raises(Refusal, match="e-mail address"):
        check_password_form("long enough, vera.", email)
    assert check_password_form("long enough, al.", "al@acme.example")


@every_row("length", [0, 11, 201])
def test_a_password_of_these_lengths_is_refused_without_being_repeated(length: int) -> None:
    with pytest.raises(Refusal) as refused:
        check_password_form("§" * length, "vera@acme.example")
    assert refused.value.details == {"path": "new_password"}
    assert "§" not in str(refused.value)
