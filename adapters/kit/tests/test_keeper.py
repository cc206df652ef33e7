"""The keeper of an instance: what it makes of answers that come late."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

import msgspec
import pytest

from adapters.kit.tests.worlds import NOW, member, operation, world
from mooring_adapter import Adapter, Finish, Operation, Plan, World
from mooring_adapter.keeper import CALM_SECONDS, OLD_VIEWS_MAX, Keeper
from mooring_adapter.platform import Held, Platform


class Told:
    """A platform that answers with these views, one after the other, and notes what it is told."""

    def __init__(self, *seconds: float) -> None:
        self.views = [self._view(each) for each in seconds]
        self.finished = 0

    def _view(self, seconds: float) -> Mapping[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(world(member("a", "ready"), under=operation("restart")))
        return plain | {"now": (NOW + timedelta(seconds=seconds)).isoformat()}

    async def read(self, held: Held) -> Mapping[str, Any]:
        return self.views.pop(0)

    async def finish(self, held: Held, operation: Operation, told: Mapping[str, Any]) -> None:
        self.finished += 1


def plan(world: World, operation: Operation) -> Plan:
    return Plan((Finish(),))


def kept(platform: Told) -> Keeper:
    return Keeper(Adapter(app_slug="app", plan=plan), cast(Platform, platform), Held("instance", 1))


@pytest.mark.anyio
async def test_a_view_that_was_overtaken_is_read_again_soon_and_nothing_is_done_by_it() -> None:
    platform = Told(10, 5, 20)
    keeper = kept(platform)
    await keeper._round()
    assert platform.finished == 1
    assert 0 < await keeper._round() < CALM_SECONDS / 10
    assert platform.finished == 1
    await keeper._round()
    assert platform.finished == 2


@pytest.mark.anyio
async def test_a_platform_whose_clock_was_set_back_is_believed_after_a_few_looks() -> None:
    platform = Told(1_000, *range(OLD_VIEWS_MAX + 2))
    keeper = kept(platform)
    for _ in range(OLD_VIEWS_MAX + 3):
        await asyncio.wait_for(keeper._round(), 10)
    assert platform.finished == 3
