"""The platform's workload adapter: which key an operator account gets, and when nobody could operate an app."""

from dataclasses import replace

from mooring.core.catalog.workload_adapter import WorkloadAdapter, operating_key, set_workload_key, why_not_operated
from mooring.core.kernel.decision import Insert, Update
from server.tests.support.catalog_rows import app
from server.tests.support.decision_context import NOW, context
from tests.support.rows import every_row

OWN, FIRST, SECOND = b"o" * 32, b"1" * 32, b"2" * 32
WORKLOAD = WorkloadAdapter("wla_1", FIRST, 0, NOW)
WORKING = ("runtime.claim", "runtime.report")


@every_row(
    ("adapter_key", "kind", "workload", "expected"),
    [
        (OWN, "launchable", WORKLOAD, OWN),
        (OWN, None, None, OWN),
        (None, "launchable", WORKLOAD, FIRST),
        (None, "oci", WORKLOAD, FIRST),
        (None, "controller", WORKLOAD, None),
        (None, None, WORKLOAD, None),
        (None, "launchable", None, None),
        (None, "launchable", replace(WORKLOAD, public_key=None), None),
    ],
)
def test_an_account_gets_the_apps_own_key_or_that_of_the_workload_adapter(
    adapter_key: bytes | None, kind: str | None, workload: WorkloadAdapter | None, expected: bytes | None
) -> None:
    assert operating_key(replace(app(), adapter_key=adapter_key), kind, workload) == expected


@every_row(
    ("kind", "actions", "has_key", "said"),
    [
        ("launchable", WORKING, True, None),
        ("controller", (), False, None),
        ("launchable", WORKING, False, "has no adapter key"),
        ("oci", WORKING[:1], True, "lacks runtime.report"),
        ("oci", (), True, "lacks runtime.claim and runtime.report"),
    ],
)
def test_an_image_that_no_adapter_could_operate_is_refused(
    kind: str, actions: tuple[str, ...], has_key: bool, said: str | None
) -> None:
    refusal = why_not_operated("web-tool", kind, actions, has_key=has_key)
    assert (refusal is None) == (said is None)
    assert refusal is None or refusal.detail.endswith(said or "")


def test_a_new_key_remembers_the_former_ones() -> None:
    made = set_workload_key(context(), None, FIRST)
    assert isinstance(made.writes[0], Insert)
    changed = set_workload_key(context(), made.result, SECOND)
    assert isinstance(changed.writes[0], Update)
    assert (changed.result.public_key, changed.result.keys_before) == (SECOND, [FIRST])
    assert set_workload_key(context(), changed.result, SECOND).writes == ()
    back = set_workload_key(context(), changed.result, FIRST)
    assert back.result.keys_before == [SECOND]
