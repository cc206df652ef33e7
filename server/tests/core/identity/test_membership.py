"""Memberships: nobody gives or takes more than they hold, and no place loses its last admin."""

import itertools

import pytest

from mooring.core.identity.membership import Membership, create_membership, delete_membership, place_of
from mooring.core.kernel.decision import Insert, Remove
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.permissions import ROLE_ACTIONS, ROLE_SCOPE, Authority, Place, Role, Scope
from server.tests.support.decision_context import (
    NOW,
    OTHER_PROJECT,
    OTHER_TENANT,
    OTHER_USER,
    PROJECT,
    TENANT,
    authority,
    context,
)
from tests.support.rows import every_row

PLATFORM = Place(Scope.PLATFORM)
AT_TENANT = Place(Scope.TENANT, TENANT)
AT_PROJECT = Place(Scope.PROJECT, TENANT, PROJECT)
PLACE_OF = {Scope.PLATFORM: PLATFORM, Scope.TENANT: AT_TENANT, Scope.PROJECT: AT_PROJECT}
HOLDERS = {
    Role.PLATFORM_ADMIN: authority(("platform_admin", None), tenant_id=None),
    Role.PLATFORM_OPERATOR: authority(("platform_operator", None), tenant_id=None),
    Role.TENANT_ADMIN: authority(("tenant_admin", None)),
    Role.PROJECT_ADMIN: authority(("project_admin", PROJECT)),
    Role.PROJECT_MEMBER: authority(("project_member", PROJECT)),
    Role.PROJECT_VIEWER: authority(("project_viewer", PROJECT)),
}


def membership(role: Role) -> Membership:
    place = PLACE_OF[ROLE_SCOPE[role]]
    return Membership("mbr_1", place.tenant_id, place.project_id, OTHER_USER, role.value, 0, NOW)


@every_row(("giver", "role"), list(itertools.product(Role, Role)))
def test_a_role_is_given_only_by_those_who_hold_all_of_it_there(giver: Role, role: Role) -> None:
    place = PLACE_OF[ROLE_SCOPE[role]]
    holds = ROLE_ACTIONS[role] <= HOLDERS[giver].at(place)

    if holds:
        decision = create_membership(context(), HOLDERS[giver], place, OTHER_USER, role)
        (write,) = decision.writes
        assert isinstance(write, Insert)
        assert (write.row["role"], write.row["user_id"]) == (role.value, OTHER_USER)
    else:
        with pytest.raises(Refusal) as refused:
            create_membership(context(), HOLDERS[giver], place, OTHER_USER, role)
        assert refused.value.code is Code.GRANT_EXCEEDS_CEILING
        assert set(refused.value.details["missing_actions"]) == ROLE_ACTIONS[role] - HOLDERS[giver].at(place)  # type: ignore[call-overload]


def test_admins_give_every_role_of_their_place() -> None:
    gives = {
        (giver, role)
        for giver, role in itertools.product(Role, Role)
        if ROLE_ACTIONS[role] <= HOLDERS[giver].at(PLACE_OF[ROLE_SCOPE[role]])
    }
    assert gives >= {
        (Role.PLATFORM_ADMIN, Role.PLATFORM_ADMIN),
        (Role.PLATFORM_ADMIN, Role.PLATFORM_OPERATOR),
        (Role.TENANT_ADMIN, Role.TENANT_ADMIN),
        (Role.TENANT_ADMIN, Role.PROJECT_ADMIN),
        (Role.PROJECT_ADMIN, Role.PROJECT_ADMIN),
        (Role.PROJECT_ADMIN, Role.PROJECT_VIEWER),
    }
    for giver, role in gives:
        assert (ROLE_SCOPE[giver] is Scope.PLATFORM) == (ROLE_SCOPE[role] is Scope.PLATFORM)


@every_row(
    ("giver", "place"),
    [
        (HOLDERS[Role.PROJECT_ADMIN], Place(Scope.PROJECT, TENANT, OTHER_PROJECT)),
        (HOLDERS[Role.TENANT_ADMIN], Place(Scope.PROJECT, OTHER_TENANT, OTHER_PROJECT)),
        (HOLDERS[Role.PLATFORM_ADMIN], AT_PROJECT),
        (authority(("tenant_admin", None), limit={"membership.create"}), AT_PROJECT),
        (Authority(), AT_PROJECT),
    ],
    ids=["other project", "other tenant", "platform", "narrowed token", "nobody"],
)
def test_what_is_held_elsewhere_or_not_by_this_token_is_not_given(giver: Authority, place: Place) -> None:
    with pytest.raises(Refusal) as refused:
        create_membership(context(), giver, place, OTHER_USER, Role.PROJECT_VIEWER)
    assert refused.value.code is Code.GRANT_EXCEEDS_CEILING


@every_row(("role", "scope"), list(itertools.product(Role, PLACE_OF)))
def test_a_role_is_given_only_in_its_own_kind_of_place(role: Role, scope: Scope) -> None:
    if ROLE_SCOPE[role] is scope:
        return
    with pytest.raises(Refusal) as refused:
        create_membership(context(), HOLDERS[Role.PLATFORM_ADMIN], PLACE_OF[scope], OTHER_USER, role)
    assert (refused.value.code, refused.value.details) == (Code.VALIDATION_FAILED, {"path": "role"})


def test_a_membership_is_an_event_and_an_audit_row_of_its_place() -> None:
    decision = create_membership(context(), HOLDERS[Role.TENANT_ADMIN], AT_PROJECT, OTHER_USER, Role.PROJECT_MEMBER)

    (event,), (audit,) = decision.events, decision.audits
    assert (event.type, event.tenant_id, event.project_id) == (EventType.MEMBERSHIP_CREATED, TENANT, PROJECT)
    assert event.data == audit.after == {"user_id": OTHER_USER, "role": "project_member"}
    assert decision.result.place == AT_PROJECT


def test_a_role_is_taken_by_those_who_could_give_it() -> None:
    decision = delete_membership(context(), HOLDERS[Role.PROJECT_ADMIN], membership(Role.PROJECT_ADMIN), 0)

    assert decision.writes == (Remove("membership", "mbr_1", 0),)
    assert decision.audits[0].before == {"user_id": OTHER_USER, "role": "project_admin"}
    with pytest.raises(Refusal) as refused:
        delete_membership(context(), HOLDERS[Role.PROJECT_MEMBER], membership(Role.PROJECT_ADMIN), 5)
    assert refused.value.code is Code.GRANT_EXCEEDS_CEILING


@every_row("role", [Role.PLATFORM_ADMIN, Role.TENANT_ADMIN])
def test_the_last_admin_of_the_platform_or_a_tenant_stays(role: Role) -> None:
    with pytest.raises(Refusal) as refused:
        delete_membership(context(), HOLDERS[role], membership(role), 0)
    assert (refused.value.code, refused.value.details) == (Code.LAST_ADMIN, {"role": role.value})
    assert delete_membership(context(), HOLDERS[role], membership(role), 1).writes


def test_ids_name_a_place() -> None:
    assert place_of(None, None) == PLATFORM
    assert place_of(TENANT, None) == AT_TENANT
    assert place_of(TENANT, PROJECT) == AT_PROJECT
