"""Who may do what, where: the table, the decision, and an independent engine's opinion of it."""

import itertools
import json

import cedarpy
from hypothesis import given, settings
from hypothesis import strategies as st

from mooring.core.identity.caller import GrantedRole, bindings_of
from mooring.core.kernel.permissions import (
    ACTIONS,
    OPERATOR_CEILING,
    PUBLISH,
    PUBLISHER_KEYS,
    PUBLISHING,
    ROLE_ACTIONS,
    ROLE_SCOPE,
    SELF_ACTIONS,
    SERVICE_ACCOUNT_CEILING,
    AccessDecision,
    Authority,
    Place,
    Role,
    RoleBinding,
    Scope,
    authority_of,
    beyond_ceiling,
    is_app_action,
    on_an_account,
)
from server.tests.support.decision_context import OTHER_PROJECT, OTHER_TENANT, PROJECT, TENANT, authority
from tests.support.rows import every_row

FOREIGN_PROJECT = "prj_foreign"
PLACES = {
    "own things": Place(Scope.SELF),
    "platform": Place(Scope.PLATFORM),
    "own tenant": Place(Scope.TENANT, TENANT),
    "foreign tenant": Place(Scope.TENANT, OTHER_TENANT),
    "own tenant, platform too": Place(Scope.TENANT, TENANT, platform_too=True),
    "foreign tenant, platform too": Place(Scope.TENANT, OTHER_TENANT, platform_too=True),
    "own project": Place(Scope.PROJECT, TENANT, PROJECT),
    "own project, platform too": Place(Scope.PROJECT, TENANT, PROJECT, platform_too=True),
    "foreign project, platform too": Place(Scope.PROJECT, OTHER_TENANT, FOREIGN_PROJECT, platform_too=True),
    "other project": Place(Scope.PROJECT, TENANT, OTHER_PROJECT),
    "foreign project": Place(Scope.PROJECT, OTHER_TENANT, FOREIGN_PROJECT),
    "own project under a foreign tenant": Place(Scope.PROJECT, OTHER_TENANT, PROJECT),
}
CALLERS: dict[str, Authority] = {
    "nobody": Authority(),
    "user without a role": authority(),
    "platform_admin": authority(("platform_admin", None), tenant_id=None),
    "platform_operator": authority(("platform_operator", None), tenant_id=None),
    "tenant_admin": authority(("tenant_admin", None)),
    "project_admin": authority(("project_admin", PROJECT)),
    "project_member": authority(("project_member", PROJECT)),
    "project_viewer": authority(("project_viewer", PROJECT)),
    "two projects": authority(("project_viewer", PROJECT), ("project_admin", OTHER_PROJECT)),
    "service account": authority_of(TENANT, [RoleBinding(Scope.PROJECT, frozenset({"instance.read"}), PROJECT)]),
    "narrowed tenant_admin": authority(("tenant_admin", None), limit={"project.read", "tenant.read"}),
    "tenant reader by break-glass": authority_of(
        TENANT, [RoleBinding(Scope.TENANT, ROLE_ACTIONS[Role.PROJECT_VIEWER])]
    ),
}


# The table


def test_the_table_names_each_key_well() -> None:
    for key, action in ACTIONS.items():
        assert key == action.key
        assert key.replace(".", "").replace("_", "").isalpha()
        assert key == key.lower()
        assert 2 <= len(key.split(".")) <= 3
        assert action.meaning
        assert len(set(action.roles)) == len(action.roles)
        assert bool(action.roles) is not action.node_only  # somebody's, and a node's are nobody else's


def test_the_scheduler_family_is_whole() -> None:
    parts = (
        "catalog.read",
        "instance.read",
        "instance.create",
        "instance.update",
        "instance.delete",
        "queue.submit",
        "queue.read",
        "queue.cancel",
        "node.read",
        "node.operate",
    )
    assert {key for key in ACTIONS if key.startswith("scheduler.")} == {f"scheduler.{part}" for part in parts}


@every_row(
    ("wider", "narrower"),
    [
        (Role.PLATFORM_ADMIN, Role.PLATFORM_OPERATOR),
        (Role.TENANT_ADMIN, Role.PROJECT_ADMIN),
        (Role.PROJECT_ADMIN, Role.PROJECT_MEMBER),
        (Role.PROJECT_MEMBER, Role.PROJECT_VIEWER),
    ],
)
def test_the_roles_of_one_kind_of_place_nest(wider: Role, narrower: Role) -> None:
    """An admin can give every role below his own: that needs each to be a part of his."""
    assert ROLE_ACTIONS[narrower] < ROLE_ACTIONS[wider]


def test_a_viewer_only_looks() -> None:
    changes = {key for key in ROLE_ACTIONS[Role.PROJECT_VIEWER] if not key.endswith(".read")}

    assert changes == {"token.create", "token.revoke", "self.update"}


def test_a_service_account_never_gets_what_only_a_person_may_do() -> None:
    human_only = {key for key, action in ACTIONS.items() if action.human_only}

    assert not SERVICE_ACCOUNT_CEILING & human_only
    assert ROLE_ACTIONS[Role.PROJECT_ADMIN] - human_only == OPERATOR_CEILING
    assert OPERATOR_CEILING == SERVICE_ACCOUNT_CEILING - PUBLISHER_KEYS
    assert ROLE_ACTIONS[Role.TENANT_ADMIN] >= PUBLISHER_KEYS
    assert not ROLE_ACTIONS[Role.PROJECT_ADMIN] & PUBLISHER_KEYS
    assert {"membership.create", "service_account.create", "entitlement.update", "teardown.write_off"} <= human_only


def test_a_publisher_has_its_catalog_keys_in_the_tenants_catalog_and_nothing_in_other_projects() -> None:
    keys = frozenset({"artifact.create", "app_version.promote", "instance.create"})
    plain = authority_of(TENANT, [RoleBinding(Scope.PROJECT, keys, PROJECT)])
    publisher = authority_of(TENANT, [RoleBinding(Scope.PROJECT, keys | {PUBLISH}, PROJECT)])
    here = Place(Scope.TENANT, TENANT)
    assert plain.at(here) == frozenset()
    assert publisher.at(here) == {PUBLISH, "artifact.create", "app_version.promote"}
    assert publisher.access("artifact.create", Place(Scope.TENANT, OTHER_TENANT)) is AccessDecision.HIDDEN
    assert publisher.access("artifact.create", Place(Scope.PROJECT, TENANT, OTHER_PROJECT)) is AccessDecision.HIDDEN


def test_every_role_belongs_to_one_kind_of_place() -> None:
    assert set(ROLE_SCOPE) == set(Role) == set(ROLE_ACTIONS)
    for role, scope in ROLE_SCOPE.items():
        assert role.value.startswith(scope.value)
        (binding,) = [each for each in bindings_of([GrantedRole(role.value, None)]) if each.scope is not Scope.SELF]
        assert binding.scope is (Scope.TENANT if scope is Scope.PROJECT else scope)


# The decision


@every_row(
    ("caller", "action", "place", "access"),
    [
        ("tenant_admin", "project.create", "own tenant", AccessDecision.ALLOWED),
        ("tenant_admin", "project.create", "foreign tenant", AccessDecision.HIDDEN),
        ("tenant_admin", "instance.create", "other project", AccessDecision.ALLOWED),
        ("tenant_admin", "instance.create", "foreign project", AccessDecision.HIDDEN),
        ("tenant_admin", "node.read", "platform", AccessDecision.DENIED),
        ("project_admin", "membership.create", "own project", AccessDecision.ALLOWED),
        ("project_admin", "membership.create", "other project", AccessDecision.HIDDEN),
        ("project_admin", "tenant.read", "own tenant", AccessDecision.ALLOWED),
        ("project_admin", "user.read", "own tenant", AccessDecision.DENIED),
        ("project_admin", "tenant.read", "foreign tenant", AccessDecision.HIDDEN),
        ("project_viewer", "instance.create", "own project", AccessDecision.DENIED),
        ("project_viewer", "instance.read", "own project under a foreign tenant", AccessDecision.HIDDEN),
        ("platform_admin", "tenant.create", "platform", AccessDecision.ALLOWED),
        ("platform_admin", "tenant.update", "foreign tenant, platform too", AccessDecision.ALLOWED),
        ("platform_admin", "tenant.update", "foreign tenant", AccessDecision.HIDDEN),
        ("platform_admin", "instance.read", "own project", AccessDecision.HIDDEN),
        ("platform_admin", "entitlement.update", "foreign project, platform too", AccessDecision.ALLOWED),
        ("platform_admin", "entitlement.update", "own project", AccessDecision.HIDDEN),
        ("platform_operator", "entitlement.update", "own project, platform too", AccessDecision.DENIED),
        ("tenant_admin", "entitlement.update", "own project, platform too", AccessDecision.ALLOWED),
        ("tenant_admin", "entitlement.update", "foreign project, platform too", AccessDecision.HIDDEN),
        ("project_admin", "entitlement.update", "own project, platform too", AccessDecision.DENIED),
        ("service account", "entitlement.update", "own project, platform too", AccessDecision.DENIED),
        ("platform_operator", "tenant.update", "own tenant, platform too", AccessDecision.DENIED),
        ("platform_operator", "tenant.create", "platform", AccessDecision.DENIED),
        ("service account", "instance.read", "own project", AccessDecision.ALLOWED),
        ("service account", "instance.read", "other project", AccessDecision.HIDDEN),
        ("service account", "member.read", "own project", AccessDecision.DENIED),
        ("service account", "token.create", "own things", AccessDecision.DENIED),
        ("service account", "token.revoke", "own things", AccessDecision.ALLOWED),
        ("user without a role", "token.create", "own things", AccessDecision.ALLOWED),
        ("user without a role", "tenant.read", "own tenant", AccessDecision.DENIED),
        ("narrowed tenant_admin", "project.read", "own project", AccessDecision.ALLOWED),
        ("narrowed tenant_admin", "project.create", "own tenant", AccessDecision.DENIED),
        ("narrowed tenant_admin", "token.create", "own things", AccessDecision.DENIED),
        ("narrowed tenant_admin", "self.read", "own things", AccessDecision.ALLOWED),
        ("nobody", "self.read", "own things", AccessDecision.DENIED),
    ],
)
def test_the_decision(caller: str, action: str, place: str, access: AccessDecision) -> None:
    assert CALLERS[caller].access(action, PLACES[place]) is access


def test_a_place_without_its_project_allows_nothing() -> None:
    assert CALLERS["tenant_admin"].at(Place(Scope.PROJECT, TENANT)) == frozenset()
    assert CALLERS["platform_admin"].at(Place(Scope.PUBLIC)) == frozenset()


def test_a_route_below_a_project_does_not_say_whose_it_is_and_the_database_does() -> None:
    """A tenant's role counts there as in any project of the tenant's; the row is looked up as that tenant."""
    unknown = Place(Scope.PROJECT, None, FOREIGN_PROJECT)

    assert CALLERS["tenant_admin"].access("instance.read", unknown) is AccessDecision.ALLOWED
    assert CALLERS["project_admin"].access("instance.read", unknown) is AccessDecision.HIDDEN


# Properties

keys = st.sets(st.sampled_from(sorted(ACTIONS)))
bindings = st.lists(
    st.builds(
        RoleBinding,
        st.sampled_from([Scope.SELF, Scope.PLATFORM, Scope.TENANT]),
        st.frozensets(st.sampled_from(sorted(ACTIONS)), max_size=10),
    )
    | st.builds(
        RoleBinding,
        st.just(Scope.PROJECT),
        st.frozensets(st.sampled_from(sorted(ACTIONS)), max_size=10),
        st.sampled_from([PROJECT, OTHER_PROJECT]),
    ),
    max_size=5,
)


@settings(max_examples=40)
@given(bindings, keys)
def test_no_limit_of_a_token_ever_widens(held: list[RoleBinding], limit: set[str]) -> None:
    whole, narrowed = authority_of(TENANT, held), authority_of(TENANT, held, frozenset(limit))

    for place in PLACES.values():
        assert narrowed.at(place) <= whole.at(place)
        assert narrowed.at(place) <= limit | {"self.read"}
    assert (whole.limit, narrowed.limit) == (None, frozenset(limit))


@settings(max_examples=40)
@given(bindings)
def test_what_counts_somewhere_was_given_for_there(held: list[RoleBinding]) -> None:
    whole = authority_of(TENANT, held)
    tenant_keys = {key for each in held if each.scope is Scope.TENANT for key in each.actions}
    project_keys = {
        key for each in held if each.scope is Scope.PROJECT and each.project_id == PROJECT for key in each.actions
    }
    platform_keys = {key for each in held if each.scope is Scope.PLATFORM for key in each.actions}

    assert whole.at(PLACES["own project"]) == tenant_keys | project_keys
    published = {
        key
        for each in held
        if each.scope is Scope.PROJECT and PUBLISH in whole.projects[str(each.project_id)]
        for key in whole.projects[str(each.project_id)] & PUBLISHING
    }
    assert whole.at(PLACES["own tenant"]) - {"tenant.read"} == (tenant_keys | published) - {"tenant.read"}
    assert whole.at(PLACES["platform"]) == whole.at(PLACES["foreign tenant, platform too"]) == platform_keys
    assert whole.at(PLACES["foreign project, platform too"]) == platform_keys
    for foreign in ("foreign tenant", "foreign project", "own project under a foreign tenant"):
        assert whole.at(PLACES[foreign]) == frozenset()
    assert whole.at(PLACES["own things"]) >= SELF_ACTIONS


@settings(max_examples=40)
@given(keys, keys)
def test_beyond_the_ceiling_is_what_is_wanted_and_not_held(wanted: set[str], held: set[str]) -> None:
    beyond = beyond_ceiling(wanted, frozenset(held))

    assert set(beyond) == wanted - held
    assert list(beyond) == sorted(beyond)
    assert (beyond == ()) == (wanted <= held)


@settings(max_examples=40)
@given(st.sets(st.sampled_from(sorted(ACTIONS)) | st.text(max_size=30)))
def test_a_list_counts_for_a_service_account_up_to_its_ceiling_only(listed: set[str]) -> None:
    counted = on_an_account(listed)

    assert counted <= listed
    assert all(key in SERVICE_ACCOUNT_CEILING or is_app_action(key) for key in counted)
    assert listed & SERVICE_ACCOUNT_CEILING <= counted


@every_row("key", ["app.trainer.start", "app.my-app-2.queue.submit", "app.abc.a.b.c", "app.abc.x-1_y"])
def test_a_key_of_an_app_names_the_app_and_its_action(key: str) -> None:
    assert is_app_action(key)


@every_row(
    "key",
    [
        "",
        "app",
        "app.",
        "app.create",
        "app.ab.start",
        "app.Trainer.start",
        "app.trainer.",
        "app.trainer.start\n",
        "app.trainer.start now",
        "app.trainer.a.b.c.d",
        "app.trainer." + "x" * 41,
        "instance.create",
        "xapp.trainer.start",
    ],
)
def test_a_malformed_key_is_not_an_app_action(key: str) -> None:
    assert not is_app_action(key)


# A second opinion. The table and the rules are written down once more for Cedar, an engine that knows nothing
# of ours: roles are groups below the place they count in, projects are below their tenant.


def cedar_policies() -> cedarpy.PolicySet:
    listed = {role: "[" + ", ".join(f'Action::"{key}"' for key in sorted(ROLE_ACTIONS[role])) + "]" for role in Role}
    rules = [
        'permit(principal, action in [Action::"self.read", Action::"token.read", Action::"token.revoke"], '
        'resource == Own::"things") when { principal has known };',
        'permit(principal is User, action in [Action::"token.create", Action::"self.update"], '
        'resource == Own::"things") when { principal has known };',
        'permit(principal == ServiceAccount::"service account", action == Action::"instance.read", '
        f'resource == Project::"{PROJECT}");',
        # Members of a project read the name of its tenant.
        'permit(principal, action == Action::"tenant.read", resource is Tenant) '
        "when { principal has home && principal.home == resource && principal.works };",
    ]
    for role in Role:
        if ROLE_SCOPE[role] is Scope.PLATFORM:
            elsewhere = "context.platform_too && principal.home != resource.tenant"
            where = f'resource == Platform::"it" || ({elsewhere})'
        elif ROLE_SCOPE[role] is Scope.TENANT:
            where = "(resource is Tenant || resource is Project) && principal.home == resource.tenant"
        else:
            where = "resource is Project && principal.projects.contains(resource) && principal.home == resource.tenant"
        rules.append(f'permit(principal in Role::"{role}", action in {listed[role]}, resource) when {{ {where} }};')
    return cedarpy.PolicySet.from_str("\n".join(rules))


def entity(
    kind: str, name: str, attributes: dict[str, object], parents: tuple[tuple[str, str], ...] = ()
) -> dict[str, object]:
    return {
        "uid": {"type": kind, "id": name},
        "attrs": attributes,
        "parents": [{"type": each, "id": parent} for each, parent in parents],
    }


def reference(kind: str, name: str) -> dict[str, object]:
    return {"__entity": {"type": kind, "id": name}}


def cedar_entities() -> list[dict[str, object]]:
    entities = [entity("Own", "things", {}), entity("Platform", "it", {})]
    for tenant in (TENANT, OTHER_TENANT, "the platform itself"):
        entities.append(entity("Tenant", tenant, {"tenant": reference("Tenant", tenant)}))
    for tenant, project in ((TENANT, PROJECT), (TENANT, OTHER_PROJECT), (OTHER_TENANT, FOREIGN_PROJECT)):
        entities.append(entity("Project", project, {"tenant": reference("Tenant", tenant)}))
    robot = {"known": True, "home": reference("Tenant", TENANT), "works": False}
    entities.append(entity("ServiceAccount", "service account", robot))
    for role in Role:
        entities.append(entity("Role", role, {}))
        home = "the platform itself" if ROLE_SCOPE[role] is Scope.PLATFORM else TENANT
        in_project = ROLE_SCOPE[role] is Scope.PROJECT
        attributes = {
            "known": True,
            "home": reference("Tenant", home),
            "works": in_project,
            "projects": [reference("Project", PROJECT)] if in_project else [],
        }
        entities.append(entity("User", role, attributes, (("Role", role),)))
    return entities


def cedar_resource(place: Place) -> str:
    return {
        Scope.SELF: 'Own::"things"',
        Scope.PLATFORM: 'Platform::"it"',
        Scope.TENANT: f'Tenant::"{place.tenant_id}"',
        Scope.PROJECT: f'Project::"{place.project_id}"',
    }[place.scope]


def test_an_independent_engine_decides_every_cell_in_the_same_way() -> None:
    places = [place for name, place in PLACES.items() if name != "own project under a foreign tenant"]
    callers = [*(f'User::"{role}"' for role in Role), 'ServiceAccount::"service account"']
    cells = list(itertools.product(callers, places, sorted(ACTIONS)))
    requests = [
        {
            "principal": caller,
            "action": f'Action::"{key}"',
            "resource": cedar_resource(place),
            "context": {"platform_too": place.platform_too},
        }
        for caller, place, key in cells
    ]
    entities = cedarpy.Entities.from_json_str(json.dumps(cedar_entities()))
    answers = cedarpy.is_authorized_batch(requests, cedar_policies(), entities)

    differing = []
    for (caller, place, key), answer in zip(cells, answers, strict=True):
        assert not answer.diagnostics.errors, answer.diagnostics.errors
        ours = CALLERS[caller.split('"')[1]].access(key, place) is AccessDecision.ALLOWED
        if ours is not answer.allowed:
            differing.append((caller, place, key, ours))
    assert differing == []
    assert len(cells) == 7 * 11 * len(ACTIONS)
    assert 0 < sum(answer.allowed for answer in answers) < len(cells)
