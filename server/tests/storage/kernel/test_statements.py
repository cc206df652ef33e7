"""Every statement of the program is understood by the real server.

Statements are constants of the storage modules, and the shapes that the unit of work makes out of decisions. Each is
prepared, which parses it, finds its tables, columns and types, and plans it; none is run.
"""

import importlib
import inspect
import pkgutil
import re
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from types import ModuleType
from typing import Any, Final, get_type_hints

import pytest

import mooring.commands
import mooring.core
import mooring.storage
from mooring.core.identity import (
    break_glass,
    membership,
    project,
    project_secret,
    service_account,
    source_network,
    tenant,
    token,
    user,
)
from mooring.core.identity.service_account import ServiceAccountSpec, ServiceAccountTrigger
from mooring.core.identity.token import FreshToken
from mooring.core.identity.user import OneTime, User, UserChange
from mooring.core.kernel.decision import Decision, DecisionContext, Insert
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.permissions import Authority, Place, Role, RoleBinding, Scope, authority_of
from mooring.core.kernel.secret import Sealed
from mooring.core.records import delivery, webhook
from mooring.core.records.delivery import Delivery, DeliveryOutcome
from mooring.core.records.webhook import NewWebhookKey, WebhookSpec
from mooring.storage.kernel import unit_of_work
from mooring.storage.kernel.database import PLATFORM, Database, PoolSettings
from mooring.storage.kernel.unit_of_work import Origin, StoredAnswer
from server.tests.support.lifecycle_rows import LATER, context
from server.tests.support.sample_decisions.allocations import DRIVEN_ALLOCATIONS
from server.tests.support.sample_decisions.apps import DRIVEN_APPS
from server.tests.support.sample_decisions.artifacts import DRIVEN_ARTIFACTS
from server.tests.support.sample_decisions.attachments import DRIVEN_ATTACHMENTS
from server.tests.support.sample_decisions.instances import DRIVEN_INSTANCES
from server.tests.support.sample_decisions.money import DRIVEN_MONEY
from server.tests.support.sample_decisions.nodes import DRIVEN_NODES
from server.tests.support.sample_decisions.runtime import DRIVEN_RUNTIME
from server.tests.support.sample_decisions.sign_in import DRIVEN_SIGN_IN
from server.tests.support.sample_decisions.tasks import DRIVEN_TASKS
from server.tests.support.sample_decisions.usage_sources import DRIVEN_USAGE_SOURCES
from server.tests.support.sample_decisions.visits import DRIVEN_VISITS

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

STATEMENT: Final = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\s")
NOW: Final = context()
TENANT, PROJECT, USER = (NOW.mint(each) for each in (Prefix.TENANT, Prefix.PROJECT, Prefix.USER))
PLACE: Final = Place(Scope.PROJECT, TENANT, PROJECT)
EVERYTHING: Final = frozenset().union(*mooring.core.kernel.permissions.ROLE_ACTIONS.values())
ANYBODY: Final[Authority] = authority_of(
    TENANT, [RoleBinding(Scope.TENANT, EVERYTHING), RoleBinding(Scope.PLATFORM, EVERYTHING)]
)
ONE_TIME: Final = OneTime(b"h" * 32, LATER)
FRESH: Final = FreshToken(NOW.mint(Prefix.TOKEN), b"h" * 32)
SEALED: Final = Sealed(NOW.mint(Prefix.SECRET), TENANT, "webhook_key", "k", b"w", b"c")
OUTCOME: Final = DeliveryOutcome(0.1, 500, "the receiver answered 500")


def modules(package: ModuleType) -> Iterator[ModuleType]:
    """The modules of a package and of the packages in it."""
    for each in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not each.ispkg:
            yield importlib.import_module(each.name)


def statements() -> dict[str, str]:
    """Every constant of the storage modules that is a statement, by its name; a table of them counts by its entries."""
    found = {}
    for module in modules(mooring.storage):
        for name, annotation in inspect.get_annotations(module).items():
            value = getattr(module, name, None)
            entries = (
                {name: value} if not isinstance(value, dict) else {f"{name}[{key!r}]": value[key] for key in value}
            )
            for entry, text in entries.items():
                if _is_final(annotation) and isinstance(text, str) and STATEMENT.match(text):
                    found[f"{module.__name__}.{entry}"] = text
    return found


def _is_final(annotation: object) -> bool:
    return annotation is typing.Final or typing.get_origin(annotation) is typing.Final


def a_user() -> User:
    return User(USER, TENANT, "a@acme.example", "A", None, None, None, None, 0, NOW.now)


def a_project() -> project.Project:
    return project.create_project(NOW, TENANT, "train", "Train").result


def a_membership() -> membership.Membership:
    return membership.create_membership(NOW, ANYBODY, PLACE, USER, Role.PROJECT_VIEWER).result


def an_account() -> service_account.ServiceAccount:
    requested = ServiceAccountSpec("robot", "", ())
    return service_account.create_service_account(NOW, ANYBODY, PLACE, requested, 0).result


def a_key() -> service_account.ServiceAccountKey:
    return service_account.add_key(NOW, an_account(), 0, b"k" * 32, None, giver=ANYBODY).result


def a_token() -> token.Token:
    spec = token.PersonalTokenSpec("cli", timedelta(days=1))
    return token.personal_token(NOW, FRESH, spec, user_id=USER, tenant_id=TENANT, limit=None)


def a_secret_spec() -> project_secret.ProjectSecretSpec:
    return project_secret.ProjectSecretSpec(TENANT, PROJECT, "hub-token", "of the hub", SEALED)


def a_project_secret() -> project_secret.ProjectSecret:
    return project_secret.create_secret(NOW, a_secret_spec(), 0).result


def a_webhook() -> webhook.Webhook:
    requested = WebhookSpec("https://receiver.example/hook")
    return webhook.create_webhook(NOW, (TENANT, PROJECT), requested, NewWebhookKey("whsec_x", SEALED), 0).result.webhook


def a_delivery(status: str = "claimed") -> Delivery:
    event_id, webhook_id = NOW.mint(Prefix.EVENT), a_webhook().id
    return Delivery(
        f"{event_id}.{webhook_id}",
        event_id,
        webhook_id,
        TENANT,
        PROJECT,
        "identity.project.created",
        "cor_1",
        status,
        1,
        NOW.now,
        1,
        NOW.now,
        None,
        None,
        0,
        NOW.now,
        None,
    )


def _accounts_of_both_sorts(_: DecisionContext) -> Iterator[Decision[Any]]:
    for key in (None, b"k" * 32):
        yield service_account.create_service_account(NOW, ANYBODY, PLACE, ServiceAccountSpec("robot", "", (), key), 0)


def _every_move(_: DecisionContext) -> Iterator[Decision[Any]]:
    for status, triggers in (("active", ("disable", "delete")), ("disabled", ("enable", "delete"))):
        for trigger in triggers:
            account = replace(an_account(), status=status)
            yield service_account.move_service_account(NOW, account, ServiceAccountTrigger(trigger))


def _every_change_of_a_user(_: DecisionContext) -> Iterator[Decision[Any]]:
    yield user.change_user(NOW, a_user(), UserChange.DISABLE, None)
    yield user.change_user(NOW, replace(a_user(), disabled_at=NOW.now), UserChange.ENABLE, None)
    yield user.change_user(NOW, replace(a_user(), password_hash="h"), UserChange.RESET, ONE_TIME)


def _every_change_of_a_webhook(_: DecisionContext) -> Iterator[Decision[Any]]:
    for requested in (
        WebhookSpec(url="https://other.example/"),
        WebhookSpec(event_types=("identity.*",)),
        WebhookSpec(description="d"),
        WebhookSpec(enabled=False),
        WebhookSpec("https://other.example/", ("identity.*",), "d", False),
    ):
        yield webhook.update_webhook(NOW, a_webhook(), requested, None)


def _some_replays(_: DecisionContext) -> Iterator[Decision[Any]]:
    for count in (1, 2, delivery.REPLAY_BATCH + 1):
        yield delivery.replay_dead(NOW, (TENANT, PROJECT), [a_delivery("dead") for _ in range(count)])


Driver = Callable[[DecisionContext], Decision[Any] | Iterator[Decision[Any]]]
DRIVEN: Final[dict[str, Driver]] = {
    **DRIVEN_ALLOCATIONS,
    **DRIVEN_APPS,
    **DRIVEN_ARTIFACTS,
    **DRIVEN_ATTACHMENTS,
    **DRIVEN_INSTANCES,
    **DRIVEN_MONEY,
    **DRIVEN_SIGN_IN,
    **DRIVEN_USAGE_SOURCES,
    **DRIVEN_NODES,
    **DRIVEN_RUNTIME,
    **DRIVEN_TASKS,
    **DRIVEN_VISITS,
    "break_glass.open_break_glass": lambda now: break_glass.open_break_glass(
        now, TENANT, Role.TENANT_ADMIN, "the tenant asked for help", FRESH
    ),
    "delivery.mark_dead": lambda now: delivery.mark_dead(now, a_delivery(), OUTCOME),
    "delivery.replay": lambda now: delivery.replay(now, a_delivery("dead"), event_is_kept=True),
    "delivery.replay_dead": _some_replays,
    "delivery.tested": lambda now: delivery.tested(now, a_webhook(), OUTCOME),
    "membership.create_membership": lambda now: membership.create_membership(
        now, ANYBODY, PLACE, USER, Role.PROJECT_VIEWER
    ),
    "membership.delete_membership": lambda now: membership.delete_membership(now, ANYBODY, a_membership(), 1),
    "project.create_project": lambda now: project.create_project(now, TENANT, "train", "Train"),
    "project.update_project": lambda now: project.update_project(now, a_project(), "Other", None),
    "project.delete_project": lambda now: project.delete_project(now, a_project(), project.ProjectContents(())),
    "service_account.create_service_account": _accounts_of_both_sorts,
    "service_account.update_service_account": lambda now: service_account.update_service_account(
        now, ANYBODY, an_account(), ServiceAccountSpec("robot", "other", ()), None
    ),
    "service_account.move_service_account": _every_move,
    "service_account.add_key": lambda now: service_account.add_key(
        now, an_account(), 0, b"k" * 32, None, giver=ANYBODY
    ),
    "service_account.revoke_key": lambda now: service_account.revoke_key(now, an_account(), a_key()),
    "source_network.limit_sources": lambda now: source_network.limit_sources(
        now,
        tenant.Tenant(TENANT, "acme", "Acme", 0, now.now),
        ("192.0.2.0/24",),
        None,
        caller_address="192.0.2.1",
        forced=False,
    ),
    "tenant.create_tenant": lambda now: tenant.create_tenant(
        now, "acme", "Acme", user.UserSpec("a@acme.example", "A"), ONE_TIME
    ),
    "tenant.update_tenant": lambda now: tenant.update_tenant(
        now, tenant.Tenant(TENANT, "acme", "Acme", 0, now.now), "Other", None
    ),
    "token.issue": lambda now: token.issue(a_token(), FRESH, action="token.create"),
    "token.revoke_token": lambda now: token.revoke_token(now, a_token()),
    "user.create_user": lambda now: user.create_user(now, TENANT, user.UserSpec("b@acme.example", "B"), ONE_TIME),
    "user.change_user": _every_change_of_a_user,
    "user.end_other_sessions": lambda now: user.end_other_sessions(now, a_user()),
    "user.set_password": lambda now: user.set_password(now, a_user(), "$argon2id$…"),
    "webhook.create_webhook": lambda now: webhook.create_webhook(
        now, (TENANT, None), WebhookSpec("https://receiver.example/"), NewWebhookKey("whsec_x", SEALED), 0
    ),
    "webhook.update_webhook": _every_change_of_a_webhook,
    "webhook.rotate_key": lambda now: webhook.rotate_key(now, a_webhook(), NewWebhookKey("whsec_y", SEALED), SEALED),
    "project_secret.create_secret": lambda now: project_secret.create_secret(now, a_secret_spec(), 0),
    "project_secret.rotate_secret": lambda now: project_secret.rotate_secret(now, a_project_secret(), SEALED),
    "project_secret.delete_secret": lambda now: project_secret.delete_secret(
        now, a_project_secret(), project_secret.SecretUsers(), force=False
    ),
    "webhook.delete_webhook": lambda now: webhook.delete_webhook(now, a_webhook()),
}
"""How each function that decides is driven once, or once for each shape of what it decides."""


def decide_functions() -> set[str]:
    """Every function of the core that returns a decision and that some command applies."""
    found = set()
    for module in modules(mooring.commands):
        for _, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__.startswith(mooring.core.__name__ + "."):
                returned = get_type_hints(function).get("return")
                if returned is Decision or typing.get_origin(returned) is Decision:
                    found.add(f"{function.__module__.rpartition('.')[2]}.{function.__name__}")
    return found


def decided(name: str) -> list[Decision[Any]]:
    """What the function decides."""
    result = DRIVEN[name](context())
    return [result] if isinstance(result, Decision) else list(result)


@pytest.fixture(scope="module")
async def database(shared_database_url: str) -> AsyncIterator[Database]:
    opened = Database(PoolSettings(shared_database_url, 2))
    await opened.open()
    yield opened
    await opened.close()


async def test_every_statement_of_the_storage_prepares(database: Database) -> None:
    found = statements()
    assert len(found) > 40
    async with database.connection(PLATFORM) as connection:
        for name, text in found.items():
            prepared = await connection.prepare(text)
            asked = {int(number) for number in re.findall(r"\$(\d+)", text)}
            assert len(prepared.get_parameters()) == len(asked), f"{name} skips a number"


def test_no_two_statements_are_the_same() -> None:
    by_text: dict[str, list[str]] = {}
    for name, text in statements().items():
        if "[" not in name:  # a table names statements, which may have a name of their own
            by_text.setdefault(" ".join(text.split()), []).append(name)
    assert [names for names in by_text.values() if len(names) > 1] == []


def test_every_statement_is_a_constant_that_says_so() -> None:
    for module in modules(mooring.storage):
        declared = inspect.get_annotations(module)
        for name, value in vars(module).items():
            if isinstance(value, str) and STATEMENT.match(value) and not name.startswith("__"):
                assert declared.get(name) is typing.Final, f"{module.__name__}.{name} is not Final"


def test_every_function_that_decides_is_driven_here() -> None:
    assert set(DRIVEN) == decide_functions()


@pytest.mark.parametrize("name", sorted(DRIVEN))
async def test_every_shape_of_a_decision_prepares(database: Database, name: str) -> None:
    """With and without the record of its answer, and with the secret in which a telling answer is sealed."""
    sealed = Insert("secret", SEALED.row(NOW.now, LATER))
    plain = StoredAnswer(USER, "POST /", "key", TENANT, b"f" * 32, 201, b"{}")
    async with database.connection(PLATFORM) as connection:
        for decision in decided(name):
            assert bool(decision.audits) != decision.traceless, "only what merely reads leaves no audit row"
            for answer, writes in ((None, ()), (plain, ()), (replace(plain, secret_id=SEALED.id), (sealed,))):
                whole = replace(decision, writes=(*decision.writes, *writes))
                rows = tuple(unit_of_work._rows(context(), whole, Origin("POST /", "127.0.0.1"), answer))
                text = unit_of_work._statement(tuple(shape for shape, _ in rows))
                prepared = await connection.prepare(text)
                arguments = [argument for _, arguments in rows for argument in arguments]
                assert len(prepared.get_parameters()) == len(arguments)


def test_statements_of_one_shape_have_one_text() -> None:
    for name in DRIVEN:
        texts = []
        for _ in range(2):
            rows = unit_of_work._rows(context(), decided(name)[0], Origin(), None)
            texts.append(unit_of_work._statement(tuple(shape for shape, _ in rows)))
        assert texts[0] == texts[1]
