"""Rows of every noun that has a lifecycle, put legally into any state of it, through the one write path.

The tests of the database's own refusals begin here: a row that stands in the state they need, by transitions that the
lifecycle has, with the columns and the closing records that its states require.
"""

import hashlib
import itertools
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final

import asyncpg

from mooring.core.catalog.app import AppCard, create_app
from mooring.core.catalog.semver import read_version
from mooring.core.identity.project import create_project
from mooring.core.identity.tenant import create_tenant
from mooring.core.identity.user import OneTime, UserSpec
from mooring.core.kernel.decision import (
    Actor,
    AuditRecord,
    Decision,
    DecisionContext,
    Insert,
    PrincipalKind,
    StateChange,
    Write,
)
from mooring.core.kernel.errors import Refusal
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.lifecycle import AnyLifecycle, Transition, Who
from mooring.core.lifecycles import LIFECYCLES
from mooring.gateways.clock import SystemClock
from mooring.storage.kernel.database import PLATFORM, Acting, Database
from mooring.storage.kernel.unit_of_work import STATUS_COLUMNS, apply

NOUNS_OF: Final = {"promotion": ("artifact", "app_version"), "trust": ("artifact",)}
"""Which nouns go through a machine, where they are not called by its name."""

HOMES: Final[tuple[tuple[str, AnyLifecycle], ...]] = tuple(
    (noun, machine) for machine in LIFECYCLES for noun in NOUNS_OF.get(machine.name, (machine.name,))
)
"""Every noun with every machine that it goes through."""

CLOCK: Final = SystemClock()
MANIFEST_DIGEST: Final = f"sha256:{'f' * 64}"
_NUMBERS: Final = itertools.count(1)
LATER: Final = datetime(2100, 1, 1, tzinfo=UTC)


def machines_of(noun: str) -> tuple[AnyLifecycle, ...]:
    """The machines that a noun goes through: two, in the case of the artifact."""
    return tuple(machine for each, machine in HOMES if each == noun)


def columns_of(machine: AnyLifecycle) -> tuple[str, str]:
    """Where a machine keeps its status and its generation."""
    return STATUS_COLUMNS.get(machine.name, ("status", "generation"))


def context() -> DecisionContext:
    """The platform acts, now."""
    actor = Actor(PrincipalKind.SYSTEM, "system")
    return DecisionContext(actor, CLOCK.now(), CLOCK.mint(Prefix.CORRELATION), "a" * 32, CLOCK.mint)


@dataclass(frozen=True)
class LifecycleSubject:
    """A row that goes through a machine, and where it stands."""

    noun: str
    machine: AnyLifecycle
    id: str
    state: StrEnum
    generation: int = 0


@dataclass(frozen=True)
class ProjectRows:
    """A tenant with a project, and what rows of a project refer to."""

    database: Database
    tenant_id: str
    project_id: str
    node_id: str = ""
    allocation_id: str = ""
    instance_id: str = ""
    app_id: str = ""
    artifact_id: str = ""
    version_id: str = ""
    account_id: str = ""

    @property
    def acting(self) -> Acting:
        return Acting(self.tenant_id)

    async def write(self, *writes: Write, acting: Acting | None = None) -> None:
        """Apply these writes, as a decision of anybody's is applied."""
        decision = Decision(result=None, writes=writes, audits=(AuditRecord("test", "test", None, self.tenant_id),))
        await apply(self.database, acting or self.acting, context(), decision)

    async def birth(self, noun: str, **columns: object) -> str:
        """A new row of the noun, in the first state of each of its machines."""
        if noun == "artifact_check" and "artifact_id" not in columns:
            columns["artifact_id"] = await self.birth("artifact")
        if noun == "attachment" and "instance_id" not in columns:
            columns |= await self.shared_instance()
        row = self.row(noun) | columns
        await self.write(Insert(noun, row, machines_of(noun)), acting=self.home(noun))
        return str(row["id"])

    async def app(self, slug: str = "sample-app", category: str = "tool", name: str = "An app") -> str:
        """A new app of the tenant."""
        app = create_app(context(), self.tenant_id, f"{slug}-{next(_NUMBERS)}", category, AppCard(name))
        await apply(self.database, self.acting, context(), app)
        return app.result.id

    async def shared_instance(self, **columns: object) -> dict[str, object]:
        """An instance of a neighbouring project that the tenant's projects attach to, and an operation of it."""
        project = create_project(context(), self.tenant_id, f"next-{next(_NUMBERS)}", "Next door")
        await apply(self.database, self.acting, context(), project)
        owner, machine = replace(self, project_id=project.result.id), machines_of("instance")[0]
        made = await owner.birth("instance", **{"control_plane_scope": "tenant", **columns})
        running = LifecycleSubject("instance", machine, made, machine.initial)
        for edge in path(machine, machine.states("running")):
            running = await owner.move(running, edge)
        operation = await owner.birth("operation", instance_id=running.id)
        return {"instance_id": running.id, "owning_project_id": owner.project_id, "operation_id": operation}

    def home(self, noun: str) -> Acting:
        """For whom rows of the noun are written: nodes are the platform's, and it alone writes statements."""
        return PLATFORM if noun in ("node", "statement") else self.acting

    def row(self, noun: str) -> dict[str, object]:
        """What a new row of the noun has, beside status and generation."""
        row: dict[str, object] = {"id": CLOCK.mint(prefix_of(noun)), "created_at": CLOCK.now()}
        if noun == "node":
            row |= node_columns(str(row["id"]))
        else:
            row["tenant_id"] = self.tenant_id
        if noun == "artifact":
            row |= artifact_columns(f"sha256:{hashlib.sha256(str(row['id']).encode()).hexdigest()}")
        if noun == "artifact_check":
            row |= check_columns() | {"artifact_id": self.artifact_id}
        if noun == "app_version":
            row |= version_columns(self.app_id, f"1.0.{next(_NUMBERS)}")
        if noun == "statement":
            row |= statement_columns()
        if noun not in ("node", "artifact", "app_version", "statement"):
            row["project_id"] = self.project_id
        if noun == "instance":
            row |= instance_columns(str(row["id"]), self.app_id, self.version_id, self.account_id)
        if noun == "member":
            row |= {"instance_id": self.instance_id} | member_columns(self.version_id)
        if noun == "operation":
            row |= {"instance_id": self.instance_id} | operation_columns()
        if noun == "attachment":
            row |= attachment_columns()
        if noun == "allocation":
            row |= allocation_columns(str(row["id"]))
        if noun == "task":
            row |= task_columns(self.allocation_id, self.node_id, str(row["id"]))
        if noun == "service_account":
            row |= {"name": str(row["id"]).replace("_", "-")[:40], "actions": []}
        return row

    async def subject(self, noun: str, machine: AnyLifecycle, state: StrEnum) -> LifecycleSubject:
        """A row that came to this state by transitions that the lifecycle has."""
        subject = LifecycleSubject(noun, machine, await self.birth(noun), machine.initial)
        for edge in path(machine, state):
            subject = await self.move(subject, edge)
        return subject

    async def move(self, subject: LifecycleSubject, edge: Transition[Any, Any], **columns: object) -> LifecycleSubject:
        """Take the edge, with all that its target requires."""
        owner = None if subject.noun == "node" else self.tenant_id
        move = StateChange(
            subject.noun,
            subject.id,
            subject.machine,
            edge,
            subject.generation,
            owner,
            set=self.required(subject.machine, edge.target, subject.noun) | columns,
        )
        closing = [Insert("closing_record", self.receipt(subject.id))] if self._closes(subject, edge) else []
        await self.write(*closing, move, acting=self.home(subject.noun))
        return replace(subject, state=edge.target, generation=subject.generation + 1)

    def required(self, machine: AnyLifecycle, state: StrEnum, noun: str) -> dict[str, object]:
        """A value for each column that the machine requires in the state, or the noun besides."""
        columns = {column: self._value(column) for column in machine.requires.get(state, ())}
        if noun == "allocation" and "teardown_proof" in columns:
            columns["teardown_proof"] = "nothing_started"
        if noun == "app_version":
            columns["canary_percentage"] = Decimal(10) if state == "canary" else None
            if state in ("staged", "canary", "active", "deprecated"):
                columns["staged_digest"] = MANIFEST_DIGEST
        if noun == "statement" and state == "closed":
            columns |= {"digest": MANIFEST_DIGEST, "lines_digest": MANIFEST_DIGEST}
            columns |= {"line_count": 0, "amount": 0, "shadow_amount": 0}
        if machine.name == "task" and state not in ("queued", "cancelled", "expired"):
            columns |= {"first_claimed_at": CLOCK.now(), "fence": 1}
        return columns

    def receipt(self, member_id: str) -> dict[str, object]:
        """The closing record of a member whose node looked and found nothing."""
        return self.closing_record(member_id, kind="receipt", receipt={"found": []})

    def closing_record(self, member_id: str, **columns: object) -> dict[str, object]:
        """A closing record of a member of this project."""
        row: dict[str, object] = {
            "id": CLOCK.mint(Prefix.CLOSING_RECORD),
            "tenant_id": self.tenant_id,
            "project_id": self.project_id,
            "member_id": member_id,
            "created_at": CLOCK.now(),
        }
        return row | columns

    def _value(self, column: str) -> object:
        if column.endswith("_at"):
            return CLOCK.now()
        known = {"node_id": self.node_id, "allocation_id": self.allocation_id, "teardown_proof": "receipts"}
        return known.get(column, "for a reason")

    def _closes(self, subject: LifecycleSubject, edge: Transition[Any, Any]) -> bool:
        ends = subject.machine.needs_closing_records
        return subject.noun == "member" and edge.target in ends and subject.state not in ends


async def make_project_rows(database: Database, slug: str = "acme") -> ProjectRows:
    """A tenant with a project, a node, an allocation and an instance."""
    beginning = context()
    made = create_tenant(beginning, slug, slug, UserSpec(f"a@{slug}.example", "A"), OneTime(b"h" * 32, LATER))
    await apply(database, PLATFORM, beginning, made)
    tenant_id = made.result.tenant.id
    project = create_project(beginning, tenant_id, "train", "Train")
    await apply(database, Acting(tenant_id), beginning, project)
    bare = ProjectRows(database, tenant_id, project.result.id)
    known = replace(
        bare,
        node_id=await bare.birth("node"),
        allocation_id=await bare.birth("allocation"),
        app_id=await bare.app(),
        artifact_id=await bare.birth("artifact"),
        account_id=await bare.birth("service_account"),
    )
    known = replace(known, version_id=await known.birth("app_version"))
    return replace(known, instance_id=await known.birth("instance"))


def instance_columns(instance_id: str, app_id: str, version_id: str, account_id: str) -> dict[str, object]:
    """What an instance is that wants no member."""
    pin = {"version_id": version_id, "version": "1.0.0", "manifest_digest": MANIFEST_DIGEST, "artifacts": {}}
    return {
        "name": f"i{instance_id.replace('_', '-')[-30:].lower()}",
        "app_id": app_id,
        "app_slug": "app",
        "app_category": "tool",
        "version_id": version_id,
        "version": "1.0.0",
        "pin": pin,
        "config": {},
        "topology": {},
        "placement": {},
        "operating_mode": "tenant_dedicated",
        "control_plane_scope": "project",
        "runtime_backend": "container",
        "service_account_id": account_id,
        "requested_by": "system",
        "correlation_id": "cor_test",
        "trace_id": "a" * 32,
    }


def member_columns(version_id: str) -> dict[str, object]:
    """What a member is, in a place of its own."""
    ordinal = next(_NUMBERS)
    return {
        "component_key": "main",
        "ordinal": ordinal,
        "name": f"main-{ordinal}",
        "version_id": version_id,
        "version": "1.0.0",
        "correlation_id": "cor_test",
        "trace_id": "a" * 32,
    }


def operation_columns() -> dict[str, object]:
    """What an action on the whole instance is: any number of them are open at a time."""
    return {
        "kind": "action",
        "request": {},
        "deadline_at": LATER,
        "requested_by": "system",
        "correlation_id": "cor_test",
        "trace_id": "a" * 32,
    }


def attachment_columns() -> dict[str, object]:
    """What an attachment is, beside whose and to what."""
    return {
        "instance_name": "shared",
        "app_slug": "app",
        "account_name": "p-train",
        "requested_by": "system",
        "correlation_id": "cor_test",
        "trace_id": "a" * 32,
    }


def statement_columns() -> dict[str, object]:
    """What a statement is, in a currency of its own, so that none stands before it."""
    number = next(_NUMBERS)
    letters = "".join(chr(ord("A") + number // 26**place % 26) for place in (2, 1, 0))
    return {"currency": letters, "period": LATER.date(), "correlation_id": "cor_test"}


def version_columns(app_id: str, number: str) -> dict[str, object]:
    """What a version is that needs no artifact."""
    return {
        "app_id": app_id,
        "app_slug": "app",
        "version": number,
        "version_order": read_version(number).order,
        "manifest": {},
        "manifest_digest": MANIFEST_DIGEST,
        "digests": [],
    }


def artifact_columns(digest: str) -> dict[str, object]:
    """What a tenant's artifact is, beside whose."""
    return {
        "visibility": "tenant",
        "kind": "oci",
        "source_type": "oci",
        "location": "oci://registry.example/team/app",
        "digest": digest,
        "algorithm": "sha256",
        "size_bytes": 1,
        "labels": {},
        "media_type": "application/vnd.oci.image.manifest.v1+json",
    }


def node_columns(node_id: str) -> dict[str, object]:
    """What a node is whose agent has not reported yet; its name and its key are its own."""
    return {
        "name": node_id.replace("_", "-"),
        "host": "simulated",
        "region": "local",
        "signing_key": hashlib.sha256(node_id.encode()).digest(),
        "sealing_key": b"s" * 32,
    }


def allocation_columns(allocation_id: str) -> dict[str, object]:
    """What an allocation is that takes no slot, so that any number of them stand on one node."""
    return {
        "name": allocation_id.replace("_", "-"),
        "shape": "gpu_slice",
        "sku_slug": "any",
        "gpu_model": "any",
        "gpu_count": 0,
        "regions": ["local"],
        "price_minor_per_gpu_hour": 0,
        "currency": "EUR",
        "price_revision": 1,
        "deadline_at": LATER,
        "correlation_id": "cor_test",
        "trace_id": "a" * 32,
    }


def task_columns(allocation_id: str, node_id: str, step: str) -> dict[str, object]:
    """What a task of the platform's own is, under a name of its own."""
    return {
        "allocation_id": allocation_id,
        "node_id": node_id,
        "owner": allocation_id,
        "step": step,
        "type": "process.run",
        "arguments": {"argv": ["true"]},
        "maker": "system",
        "correlation_id": "cor_test",
        "trace_id": "a" * 32,
        "expires_at": LATER,
    }


def check_columns(name: str = "smoke") -> dict[str, object]:
    """What a check has that nobody begins: it is due in a far future."""
    return {
        "name": name,
        "subject": f"sha256:{'0' * 64}",
        "due_at": LATER,
        "trace_id": "a" * 32,
        "correlation_id": CLOCK.mint(Prefix.CORRELATION),
        "actor_kind": "system",
        "actor_id": "system",
    }


def prefix_of(noun: str) -> Prefix:
    """The prefix of a noun's ids."""
    return Prefix[noun.upper()]


def path(machine: AnyLifecycle, state: StrEnum) -> list[Transition[Any, Any]]:
    """The shortest way from the first state to this one."""
    ways: dict[StrEnum, list[Transition[Any, Any]]] = {machine.initial: []}
    todo = [machine.initial]
    while todo:
        here = todo.pop(0)
        for edge in machine.edges:
            if edge.source is here and edge.target not in ways:
                ways[edge.target] = [*ways[here], edge]
                todo.append(edge.target)
    return ways[state]


def every_cell(machine: AnyLifecycle) -> Iterator[Transition[Any, Any]]:
    """Every (state, trigger, target), whether the machine has such an edge or not."""
    for source in machine.states:
        for trigger in machine.triggers:
            for target in machine.states:
                yield Transition(source, trigger, target, Who.SYSTEM, "tried")


async def refused_by(attempt: Awaitable[object]) -> str:
    """The name of the constraint by which the database refuses the attempt; empty when it does not."""
    try:
        await attempt
    except asyncpg.PostgresError as error:
        return _constraint(error)
    except Refusal as refusal:
        return _constraint(refusal.__cause__)
    return ""


def _constraint(error: BaseException | None) -> str:
    return str(getattr(error, "constraint_name", None) or f"no constraint, but {error!r}")
