"""Batches of events: whatever is sent again, and in whatever order, the same rows are stored."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.core.kernel.decision import Decision, InsertMany
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.money import meter_event
from mooring.core.money.meter_event import BatchResult, MeterEvent, accept_events
from server.tests.support.lifecycle_rows import context
from server.tests.support.usage_source_rows import batch, event

NOW = context()
IDS = [f"e{number}" for number in range(12)]


class Store:
    """What batches have stored, by the keys of the events."""

    def __init__(self) -> None:
        self.events: dict[str, MeterEvent] = {}
        self.rows: dict[str, tuple[str, object]] = {}  # key → table and quantity
        self.accepted = 0

    def send(self, events: list[MeterEvent]) -> Decision[BatchResult]:
        decided = accept_events(NOW, batch(NOW, self.events), events)
        sent = {meter_event.event_key(batch(NOW).project_id, each.source, each.id): each for each in events}
        for write in decided.writes:
            if isinstance(write, InsertMany):
                for key, quantity in column_pairs(write):
                    assert key not in self.rows, "an event is stored twice"
                    self.rows[key], self.events[key] = (write.noun, quantity), sent[key]
        self.accepted += decided.result.accepted + decided.result.late
        return decided


def column_pairs(write: InsertMany) -> list[tuple[str, object]]:
    """The key and the quantity of each row; what all rows share is written once."""
    count = len(write.columns["id"])
    columns: list[Any] = [write.columns.get(name) or [write.same[name]] * count for name in ("record_id", "quantity")]
    return list(zip(*columns, strict=True))


@given(
    batches=st.lists(st.lists(st.sampled_from(IDS), min_size=1, max_size=8), min_size=1, max_size=6),
    seed=st.integers(0, 2**32),
)
def test_all_batches_sent_twice_and_shuffled_store_the_same_rows(batches: list[list[str]], seed: int) -> None:
    made = [
        [event(NOW, id, int(id[1:]) + 1, days_ago=40 if int(id[1:]) % 3 == 0 else 0) for id in ids] for ids in batches
    ]
    once, again = Store(), Store()
    for each in made:
        once.send(each)
    order = [random.Random(seed).sample(each, len(each)) for each in made * 2]
    random.Random(seed).shuffle(order)
    for each in order:
        again.send(each)
    assert again.rows == once.rows
    assert again.accepted == once.accepted == len(once.rows), "keys = events = what batches accepted"


def test_an_id_with_other_content_refuses_the_batch_also_inside_of_it() -> None:
    with pytest.raises(Refusal) as caught:
        accept_events(NOW, batch(NOW), [event(NOW, "a"), event(NOW, "b"), event(NOW, "a", 2)])
    assert (caught.value.code, caught.value.details["events"][0]["index"]) == (Code.CONFLICT, 2)  # type: ignore[index]


def test_the_queue_of_late_usage_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter_event, "LATE_OPEN_MAX", 1)
    assert accept_events(NOW, batch(NOW), [event(NOW, "a", days_ago=40)]).result.late == 1
    with pytest.raises(Refusal) as caught:
        accept_events(NOW, batch(NOW), [event(NOW, id, days_ago=40) for id in ("a", "b")])
    assert caught.value.code is Code.LIMIT_REACHED


def test_a_unit_that_the_platform_counts_has_no_second_source() -> None:
    loaded = batch(NOW)
    collected = {id: replace(each, collected=frozenset({"tokens"})) for id, each in loaded.instances.items()}
    with pytest.raises(Refusal, match="events/0/data/unit: a unit that is not read from the app's counters"):
        accept_events(NOW, replace(loaded, instances=collected), [event(NOW, "a")])
    proxied = {id: replace(each, proxied=frozenset({"tokens"})) for id, each in loaded.instances.items()}
    with pytest.raises(Refusal, match="events/0/data/unit: a unit that the platform's proxy does not count already"):
        accept_events(NOW, replace(loaded, instances=proxied), [event(NOW, "a")])
