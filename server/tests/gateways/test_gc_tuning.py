"""Garbage is found, and what lives for a while is not looked through again and again."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from mooring.gateways import gc_tuning
from mooring.gateways.gc_tuning import GarbageTuner, collecting


class Knot:
    """Something that only the collector can take away."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def test_what_is_set_aside_is_not_looked_through_by_a_usual_collection() -> None:
    gc.disable()
    keeper = GarbageTuner()
    knot = Knot()
    seen = weakref.ref(knot)
    keeper.tick()
    del knot
    gc.collect()
    assert seen() is not None
    keeper.collect()
    assert seen() is None


def test_everything_is_looked_through_when_twice_as_much_was_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc_tuning, "TICKS_PER_COUNT", 1)
    gc.disable()
    keeper = GarbageTuner(margin=1_000)
    keeper.collect()
    assert not keeper.tick()
    held = [[number] for number in range(gc.get_freeze_count() + 2_000)]
    assert keeper.tick()
    assert len(held) > 0
    assert not keeper.tick()


@pytest.mark.anyio
async def test_afterwards_the_usual_collection_sees_everything() -> None:
    async with collecting():
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0
