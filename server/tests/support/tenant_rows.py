"""Rows of a tenant in every table that has no route of its own to fill it."""

from datetime import timedelta
from typing import Any

from mooring.core.catalog.artifact_upload import UploadUse, keep_upload, read_upload
from mooring.core.catalog.promotion_lifecycle import PROMOTION, PromotionState
from mooring.core.kernel.decision import Insert
from mooring.core.kernel.ids import Prefix
from mooring.core.money.charge import GPU_SECOND, RatedLine, Source, TransactionKind, hour_of, postings_of
from mooring.core.money.ledger import BookedCharge, BookedHour, Booking, book
from mooring.core.money.payment import PaymentSpec, book_payment
from mooring.core.pricing.budget import BudgetSpec, Spent, Threshold, ThresholdAction, cross, set_budget
from mooring.core.pricing.meter import Billing
from mooring.core.pricing.prepaid import Balance, BalanceLevel, PrepaidSpec, cross_level, set_prepaid
from mooring.core.pricing.price import Item, PriceSpec, create_price
from mooring.core.pricing.quota import QuotaSpec, set_quota
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.kernel.unit_of_work import apply
from server.tests.support.lifecycle_rows import CLOCK, ProjectRows, context, prefix_of


async def instance_rows(project_rows: ProjectRows) -> None:
    """That an adapter was there, what an app used, and one more account that nothing names."""
    place: dict[str, object] = {"tenant_id": project_rows.tenant_id, "project_id": project_rows.project_id}
    now = CLOCK.now()
    seen = place | {"service_account_id": project_rows.account_id, "holder": "any", "seen_at": now}
    used = place | {
        "id": CLOCK.mint(Prefix.USAGE_RECORD),
        "instance_id": project_rows.instance_id,
        "record_id": "first",
        "unit": "any",
        "started_at": now,
        "ended_at": now,
        "quantity": 1,
        "attached_project_id": project_rows.project_id,
        "app_slug": "app",
        "correlation_id": "cor_test",
        "trace_id": "a" * 32,
        "created_at": now,
    }
    await project_rows.write(Insert("adapter_presence", seen), Insert("usage_record", used), acting=PLATFORM)
    await project_rows.birth("operation", member_ids=[await project_rows.birth("member")])
    await project_rows.birth("service_account")
    await source_rows(project_rows)


async def source_rows(project_rows: ProjectRows) -> str:
    """A batch of events with one that came too late, and a reading of a counter; returns the id of the late one."""
    now = CLOCK.now()
    place = {"tenant_id": project_rows.tenant_id, "project_id": project_rows.project_id}
    shared = place | {"correlation_id": "cor_test", "created_at": now}
    of_instance = shared | {"instance_id": project_rows.instance_id}
    batch_id, late_id = CLOCK.mint(Prefix.METER_BATCH), CLOCK.mint(Prefix.LATE_USAGE)
    counts = {"principal_id": "sa_test", "accepted": 1, "late": 1, "duplicates": 0}
    late = {
        "id": late_id,
        "batch_id": batch_id,
        "record_id": late_id,
        "event_source": "//test",
        "event_id": late_id,
        "unit": "tokens",
        "quantity": 1,
        "started_at": now,
        "ended_at": now,
    }
    reading = {
        "id": CLOCK.mint(Prefix.METER_READING),
        "series": late_id,
        "epoch": 0,
        "seq": 0,
        "value": 1,
        "at": now,
    }
    used = {
        "id": CLOCK.mint(Prefix.USAGE_RECORD),
        "record_id": f"{late_id}/used",
        "usage_source": "meter_event",
        "member_id": await project_rows.birth("member"),
        "app_slug": "app",
        "trace_id": "a" * 32,
    }
    following = {
        "id": CLOCK.mint(Prefix.METER_READING),
        "seq": 1,
        "value": 2,
        "previous_seq": 0,
        "previous_value": 1,
        "usage_record_id": late_id,
    }
    await project_rows.write(
        Insert("meter_batch", shared | {"id": batch_id} | counts),
        Insert("late_usage", of_instance | late),
        Insert("usage_record", of_instance | late | used),
        Insert("meter_reading", of_instance | reading),
        Insert("meter_reading", of_instance | reading | following),
        acting=PLATFORM,
    )
    return late_id


async def money_rows(project_rows: ProjectRows) -> None:
    """A contract's price, and one charged hour."""
    now, place = CLOCK.now(), (project_rows.tenant_id, project_rows.project_id)
    spec = PriceSpec(place[0], Item.SKU, "sku_1", "EUR", 200, reason="a contract of two years")
    made = create_price(context(), spec)
    await apply(project_rows.database, PLATFORM, context(), made)
    await project_rows.database.fetch(
        PLATFORM,
        """INSERT INTO usage_record SELECT (jsonb_populate_record(u, $2)).* FROM usage_record u
            WHERE u.tenant_id = $1 AND u.usage_source = 'app_runtime' LIMIT 1""",
        place[0],
        {"id": CLOCK.mint(Prefix.USAGE_RECORD), "record_id": "priced", "price_id": made.result.id},
    )
    hour = hour_of(now) + timedelta(days=1)  # no worker closes it while the test runs
    ids = (Source.ALLOCATION.value, project_rows.allocation_id, made.result.id, "EUR", GPU_SECOND)
    line = RatedLine(*place, *ids, Billing.CHARGED.value, hour, now, 10**6, 55)
    due = Booking(place[0], postings_of([line]), ())
    await apply(project_rows.database, PLATFORM, context(), book(context(), hour, BookedHour((), {}), due))
    last = "SELECT max(id) FROM ledger_transaction WHERE kind = 'charge'"
    found = await project_rows.database.fetchval(PLATFORM, last)
    booked = BookedHour([line], {due.postings[0].key: BookedCharge(str(found), 0)})
    await apply(project_rows.database, PLATFORM, context(), book(context(), hour, booked, due))


async def limit_rows(project_rows: ProjectRows) -> None:
    """Limits of the project, what was crossed of them, what was paid, and what is reserved."""
    now, tenant_id, project_id = context(), project_rows.tenant_id, project_rows.project_id
    place: dict[str, Any] = {"tenant_id": tenant_id, "project_id": project_id, "revision_seen": None}
    quota = set_quota(now, None, QuotaSpec(gpus_max=900, reason="a limit for tests"), **place)
    steps = [Threshold(50, ThresholdAction.NOTIFY)]
    budget = set_budget(now, None, None, BudgetSpec("EUR", 10**9, steps, "a limit for tests"), **place)
    crossed = cross(now, budget.result, steps[0], Spent(10**15))
    paid = book_payment(now, tenant_id, PaymentSpec(TransactionKind.PAYMENT, "EUR", 10**9, "first", "paid by wire"))
    spec = PrepaidSpec("EUR", 5, "a tenant that pays in advance")
    prepaid = set_prepaid(now, None, Balance(1), spec, tenant_id=tenant_id, revision_seen=None)
    low = cross_level(now, prepaid.result, BalanceLevel.LOW, Balance(1))
    for each in (quota, budget, crossed, paid, prepaid, low):
        await apply(project_rows.database, PLATFORM, now, each)
    held = {
        "allocation_id": project_rows.allocation_id,
        "tenant_id": tenant_id,
        "project_id": project_id,
        "currency": "EUR",
        "amount_minor": 5,
        "available_minor": 9,
        "created_at": CLOCK.now(),
    }
    await project_rows.write(Insert("hold", held), acting=PLATFORM)


async def artifact_rows(project_rows: ProjectRows) -> None:
    """A row of all that stands around an artifact, and one more artifact that nothing names."""
    digest, now = "sha256:" + "0" * 64, CLOCK.now()
    artifact_id = await project_rows.birth(
        "artifact", digest=digest, visibility="project", project_id=project_rows.project_id
    )
    place: dict[str, object] = {"tenant_id": project_rows.tenant_id}
    of_artifact = place | {"artifact_id": artifact_id}
    rows: dict[str, dict[str, object]] = {
        "artifact_evidence": of_artifact | {"kind": "presence", "digest": digest, "observed_at": now},
        "artifact_source": place | {"name": "any", "pattern": "https://any.example/*", "created_at": now},
        "signer_key": place
        | {"name": "any", "algorithm": "ed25519", "public_key": "k", "fingerprint": "f", "created_at": now},
        "artifact_hold": place
        | {
            "project_id": project_rows.project_id,
            "digest": digest,
            "holder_noun": "instance",
            "holder_id": project_rows.instance_id,
            "created_at": now,
        },
    }
    for noun, row in rows.items():
        await project_rows.write(Insert(noun, {"id": CLOCK.mint(prefix_of(noun)), **row}))
    upload = read_upload(project_rows.tenant_id, project_rows.project_id, b"content", None)
    await project_rows.write(keep_upload(context(), upload, UploadUse(0, 0, 0, 0)))
    await project_rows.birth("artifact")


async def allocation_rows(project_rows: ProjectRows) -> None:
    """A group with an allocation that waits for a task, a network on a node, and one more group that nothing names."""
    place: dict[str, object] = {
        "tenant_id": project_rows.tenant_id,
        "project_id": project_rows.project_id,
        "created_at": CLOCK.now(),
    }
    group = place | {"id": CLOCK.mint(Prefix.ALLOCATION_GROUP), "name": "group", "same_node": False}
    await project_rows.write(Insert("allocation_group", group))
    await project_rows.birth("allocation", group_id=group["id"], task_id=await project_rows.birth("task"))
    network = {"id": CLOCK.mint(Prefix.PROJECT_NETWORK), "node_id": project_rows.node_id, "subnet": "10.64.0.0/24"}
    await project_rows.write(Insert("project_network", place | network), acting=PLATFORM)
    await project_rows.write(Insert("allocation_group", group | {"id": CLOCK.mint(Prefix.ALLOCATION_GROUP)}))


async def app_rows(project_rows: ProjectRows) -> None:
    """A row of all that stands around an app, and one more app and version that nothing names."""
    now, place = CLOCK.now(), {"tenant_id": project_rows.tenant_id}
    successor = await project_rows.birth("app_version")
    await project_rows.subject(
        "app_version", PROMOTION, PromotionState.CANARY
    )  # so that the app is on the catalog's shelf
    version_id = await project_rows.birth("app_version", digests=["sha256:" + "1" * 64], superseded_by=successor)
    dated: dict[str, object] = {"created_at": now, "updated_at": now}
    rows: dict[str, dict[str, object]] = {
        "app_version_check": {
            "version_id": version_id,
            "name": "lint",
            "subject": "",
            "passed": True,
            "detail": "",
            "created_at": now,
        },
        "policy": {"project_id": project_rows.project_id, "rules": {}, **dated},
        "entitlement": {
            "project_id": project_rows.project_id,
            "app_id": project_rows.app_id,
            "app_slug": "app",
            "enabled": True,
            "rules": {},
            "agreed_actions": [],
            **dated,
        },
    }
    for noun, row in rows.items():
        await project_rows.write(Insert(noun, {"id": CLOCK.mint(prefix_of(noun)), **place, **row}))
    unused = await project_rows.app("spare", "unused", "Other words")  # not on the shelf: words are unique in an app
    await project_rows.birth("app_version", app_id=unused)


async def measured_minute(rows: ProjectRows) -> None:
    """What a GPU of the allocation did in one minute."""
    statement = """
    INSERT INTO slot_metric (node_id, slot_index, minute, allocation_id, tenant_id, samples, utilisation_sum,
      utilisation_count, power_sum, power_count, simulated)
    VALUES ($1, 0, date_trunc('minute', now(), 'UTC'), $2, $3, 1, 50, 1, 0, 0, true)"""
    await rows.database.fetch(PLATFORM, statement, rows.node_id, rows.allocation_id, rows.tenant_id)
