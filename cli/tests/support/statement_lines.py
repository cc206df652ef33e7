"""A closed statement with lines of every kind, as the API shows them."""

from typing import Any

from cli.tests.support.fake_platform import TENANT, CannedResponse, FakeCliPlatform, RecordedRequest

STATEMENT = "stm_01m7prhzvrccpht8d2fs2ampr3"
HOSTILE = '=cmd|"</td><script>alert(1)</script>\\\n; 2026-10-01 open Assets:Mine'
EMPTY = dict.fromkeys(
    (
        "sku_id", "sku_slug", "gpu_model", "gpu_count", "region", "allocation_id", "allocation_name", "app_slug",
        "instance_id", "instance_name", "member_id", "component_key", "attached_project_id",
    )
)  # fmt: skip


def line(number: int, **changed: Any) -> dict[str, Any]:
    """An hour of two GPUs at 2.50 EUR, bound to a member of an app."""
    values: dict[str, Any] = EMPTY | {
        "id": f"rtu_{number:04}",
        "project_id": "prj_01vision",
        "project_slug": "vision",
        "project_name": HOSTILE,
        "source": "allocation",
        "source_id": "alc_1",
        "transaction_id": f"ltx_{number:04}",
        "correction": False,
        "correlation_id": "cor_1",
        "hour": "2026-10-05T10:00:00Z",
        "started_at": "2026-10-05T10:00:00Z",
        "ended_at": "2026-10-05T10:00:07.250000Z",
        "unit": "gpu_second",
        "billing": "charged",
        "quantity_micro": 14 * 10**6,
        "amount_micro": 972_222,
        "shadow_micro": 0,
        "currency": "EUR",
        "price_id": "skp_1",
        "price_minor": 250,
        "price_per": 3600,
        "price_is_flat": True,
        "list_minor": 250,
        "list_per": 3600,
        "sku_id": "sku_1",
        "sku_slug": "slice",
        "gpu_model": "h100",
        "gpu_count": 2,
        "region": "local",
        "allocation_id": "alc_1",
        "allocation_name": "box",
        "app_slug": "my-app",
        "instance_id": "ins_1",
        "instance_name": "mine",
        "member_id": "mem_1",
        "component_key": "main",
    }
    return values | changed


TOKENS: dict[str, Any] = EMPTY | {
    "source": "usage",
    "source_id": "use_1",
    "unit": "token_in",
    "app_slug": "my-app",
    "instance_id": "ins_1",
    "instance_name": "mine",
    "started_at": "2026-10-05T10:59:59.500000Z",
    "ended_at": "2026-10-05T10:59:59.500000Z",
    "quantity_micro": 2_500_000 * 10**6,
    "price_id": "prc_1",
    "price_minor": 30,
    "price_per": 1_000_000,
    "list_minor": 30,
    "list_per": 1_000_000,
}
LINES = (
    line(1),
    line(2, price_minor=200, price_id="prc_2", amount_micro=777_777),  # a contract below the list
    line(3, **TOKENS, amount_micro=75 * 10**6),
    line(4, **TOKENS | {"price_is_flat": False}, amount_micro=11),  # a price with tiers
    line(5, **TOKENS, billing="covered", transaction_id=None, amount_micro=0, shadow_micro=75 * 10**6),
    line(6, **TOKENS | dict.fromkeys(("price_id", "price_minor", "price_per", "list_minor", "list_per"))
         | {"price_is_flat": None, "currency": None, "unit": "job_hour", "attached_project_id": "prj_2"},
         billing="covered", transaction_id=None, amount_micro=0),
    line(7, correction=True, hour="2026-09-30T23:00:00Z", started_at="2026-09-30T23:00:00Z",
         ended_at="2026-09-30T23:00:07Z", quantity_micro=-14 * 10**6, amount_micro=-972_222, project_id="prj_2"),
)  # fmt: skip
TOTAL = sum(each["amount_micro"] for each in LINES)


def statement(**changed: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "id": STATEMENT,
        "tenant_id": TENANT,
        "month": "2026-10",
        "currency": "EUR",
        "status": "closed",
        "preview": False,
        "started_at": "2026-10-01T00:00:00Z",
        "ended_at": "2026-11-01T00:00:00Z",
        "amount_micro": TOTAL,
        "shadow_micro": 75 * 10**6,
        "line_count": len(LINES),
        "digest": "sha256:" + "a" * 64,
        "lines_digest": "sha256:" + "b" * 64,
        "previous_digest": None,
        "closing_at": "2026-11-02T00:00:00Z",
        "closed_at": "2026-11-02T00:00:01Z",
        "created_at": "2026-10-05T11:02:00Z",
        "etag": "2.0",
        "allowed_actions": [],
    }
    return values | changed


def group(**changed: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "key": "prj_01vision",
        "name": HOSTILE,
        "unit": "gpu_second",
        "billing": "charged",
        "currency": "EUR",
        "line_count": 3,
        "quantity_micro": 14_500_000,
        "amount_micro": TOTAL,
        "shadow_micro": 0,
    }
    return values | changed


def serve(platform: FakeCliPlatform, **changed: Any) -> None:
    """Answer as a platform with this one statement; lines come in pages of two."""
    path = f"/api/v1/tenants/{TENANT}/statements"
    platform.on("GET", path, CannedResponse(body={"items": [statement(**changed)], "next_cursor": None}))
    platform.on("GET", f"{path}/{STATEMENT}", CannedResponse(body=statement(**changed)))

    def lines(asked: RecordedRequest) -> CannedResponse:
        start = int(asked.query.get("cursor") or 0)
        following = str(start + 2) if start + 2 < len(LINES) else None
        return CannedResponse(body={"items": LINES[start : start + 2], "next_cursor": following})

    covered = group(billing="covered", unit="token_in", amount_micro=0, shadow_micro=75 * 10**6)
    platform.on("GET", f"{path}/{STATEMENT}/lines", lines)
    platform.on(
        "GET",
        f"{path}/{STATEMENT}/breakdown",
        CannedResponse(body={"items": [group(), covered], "next_cursor": None}),
    )
