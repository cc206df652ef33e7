"""The replay of an instance through the public API: what the log of transitions says of any moment."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from server.tests.api.catalog.test_apps import AppPublisher
from server.tests.api.catalog.test_apps import publisher as bare_publisher
from server.tests.conftest import World
from server.tests.support.launching import Launching, make_launching

__all__ = ["bare_publisher"]
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("shared_platform"), pytest.mark.real_part("postgresql")]


@pytest.fixture
async def launching(world: World, bare_publisher: AppPublisher) -> Launching:
    return await make_launching(world, bare_publisher)


async def transitions_of(launching: Launching, instance_id: str) -> list[dict[str, Any]]:
    """Every transition, by small pages."""
    found: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        page = await launching.get(f"{instance_id}/transitions?limit=2" + (f"&cursor={cursor}" if cursor else ""))
        found += page["items"]
        cursor = page["next_cursor"]
    return found


async def test_the_replay_of_every_moment_is_the_sum_of_the_transitions_up_to_it(launching: Launching) -> None:
    made = await launching.running()
    transitions = await transitions_of(launching, made["id"])
    assert {each["noun"] for each in transitions} == {"instance", "member", "operation"}
    assert [each["at"] for each in transitions] == sorted(each["at"] for each in transitions)
    moments = sorted({each["at"] for each in transitions})
    for number, at in enumerate(moments):
        replay = (await launching.client.get(f"{launching.path}/{made['id']}/replay", params={"at": at})).json()
        states = {each["subject_id"]: each["target"] for each in transitions if each["at"] <= at}
        shown = [replay["instance"], *replay["members"], *replay["operations"]]
        assert {each["id"]: each["status"] for each in shown} == states
        before, after = (moments[number - 1] if number else None), (moments[number + 1 :] or [None])[0]
        assert (replay["changed_at"], replay["previous_at"], replay["next_at"]) == (at, before, after)
    now = await launching.get(f"{made['id']}/replay")
    assert now["instance"]["status"] == made["status"] == "running"
    assert [each["status"] for each in now["members"]] == ["ready"]


async def test_a_moment_before_the_creation_is_refused_and_says_when_that_was(launching: Launching) -> None:
    made = await launching.launch()
    before = datetime.fromisoformat(made["created_at"]) - timedelta(seconds=1)
    refused = await launching.client.get(f"{launching.path}/{made['id']}/replay", params={"at": before.isoformat()})
    assert (refused.status_code, refused.json()["code"]) == (422, "validation_failed")
    assert "not before the instance's creation" in refused.json()["detail"]
