"""Usage from Prometheus counters: what the manifest names, by member and by life of its process."""

from datetime import UTC, datetime, timedelta
from typing import Any

from mooring_adapter.instance_view import Instance, InstanceView, Member, Task
from mooring_adapter.metering import due_looks, readings_of, samples_of

NOW = datetime(2026, 11, 18, 12, 0, 30, tzinfo=UTC)
MEMBER = Member(id="mem_1", component_key="main", status="ready")
MANIFEST: dict[str, Any] = {
    "metering": [
        {
            "port": "http",
            "counters": [
                {"metric": "app_tokens_total", "unit": "token_out", "labels": {"kind": "out"}},
                {"metric": "app_requests_total", "unit": "request"},
            ],
        }
    ]
}
SAMPLES = [
    "process_start_time_seconds 1.7634e+09",
    'app_tokens_total{kind="out",model="a\\"b"} 40',
    'app_tokens_total{kind="out",model="c"} 2.5 1763400000000',
    'app_tokens_total{kind="in"} 1000',
    "app_requests_total 7",
    "app_requests_total NaN",
]


def look(age_seconds: int, status: str = "succeeded", samples: list[str] | None = None) -> Task:
    at = NOW - timedelta(seconds=age_seconds)
    step = f"meter/mem_1/0/{int(at.timestamp() // 60)}"
    result = {"samples": SAMPLES if samples is None else samples}
    return Task(id=step, step=step, member_id="mem_1", status=status, result=result, created_at=at)


def view(*tasks: Task) -> InstanceView:
    return InstanceView(instance=Instance(id="ins_1"), manifest=MANIFEST, members=[MEMBER], tasks=list(tasks), now=NOW)


def test_a_look_is_due_once_in_a_period_and_one_at_a_time() -> None:
    (due,) = due_looks(view(look(60)), MEMBER, {"http": 18080})
    assert (due.type, due.arguments) == (
        "probe.http",
        {
            "port": 18080,
            "path": "/metrics",
            "metrics": ["app_requests_total", "app_tokens_total", "process_start_time_seconds"],
        },
    )
    table: list[tuple[tuple[Task, ...], dict[str, int]]] = [
        ((look(5),), {"http": 18080}),  # this period's
        ((look(60, "claimed"),), {"http": 18080}),  # one is under way
        ((look(60),), {}),  # the member has no such port
    ]
    for tasks, ports in table:
        assert list(due_looks(view(*tasks), MEMBER, ports)) == [], tasks


def test_the_newest_look_becomes_one_reading_for_each_counter_from_the_start_of_the_process() -> None:
    newest = look(10)
    found = list(readings_of(view(look(70, samples=["app_requests_total 1"]), newest, look(5, "failed")), MEMBER))
    seq = round((NOW - timedelta(seconds=10)).timestamp() * 1_000)
    assert [(each.series, each.epoch, each.seq, each.value, each.unit) for each in found] == [
        ("mem_1/token_out/0.0", 1_763_400_000_000, 0, 0, "token_out"),
        ("mem_1/token_out/0.0", 1_763_400_000_000, seq, 42.5, "token_out"),
        ("mem_1/request/0.1", 1_763_400_000_000, 0, 0, "request"),
        ("mem_1/request/0.1", 1_763_400_000_000, seq, 7, "request"),
    ]
    assert {(each.member_id, each.component) for each in found} == {("mem_1", "main")}


def test_without_the_start_of_the_process_nothing_is_read() -> None:
    assert list(readings_of(view(look(10, samples=["app_requests_total 7"])), MEMBER)) == []


def test_labels_are_read_with_their_escapes() -> None:
    (sample, *_) = samples_of([r'm{a="x\\y\"z\n",b=""} 1'])
    assert sample.labels == {"a": 'x\\y"z\n', "b": ""}
