"""Attacks by a viewer who sends manifests that are expensive to check: nobody else may wait for them."""

import asyncio
import json
from typing import Final

import httpx
import pytest

from mooring.gateways.work_threads import WAITING_PER_TENANT_MAX
from server.tests.conftest import World
from server.tests.support.hostile_manifests import HOSTILE, many_values_of_many_choices
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

LINT: Final = "/api/v1/manifests/lint"
JSON: Final = {"Content-Type": "application/json"}


class LoopWatch:
    """Turns with the event loop and notes the longest time between two turns."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun = self._turned = self._loop.time()
        self._ended = False
        self.longest = self.took = 0.0
        self._loop.call_soon(self._turn)

    def end(self) -> None:
        self._ended = True
        self._note()
        self.took = self._turned - self._begun

    def _turn(self) -> None:
        if not self._ended:
            self._note()
            self._loop.call_soon(self._turn)

    def _note(self) -> None:
        now = self._loop.time()
        self.longest, self._turned = max(self.longest, now - self._turned), now


async def a_viewer(world: World, slug: str) -> httpx.AsyncClient:
    tenant = await world.tenant(slug)
    project_id = await world.project(tenant, "main")
    return world.client(await world.member(tenant, project_id, "project_viewer", "viewer"))


async def test_a_viewers_costly_lint_does_not_stop_the_event_loop(world: World) -> None:
    """The loop's longest stall is compared to the time that the lint takes in the same run, on any machine."""
    viewer = await a_viewer(world, "acme")
    bystander = world.client((await world.tenant("other")).token)
    bodies = {name: json.dumps({"manifest": make()}).encode() for name, make in HOSTILE.items()}
    assert all(len(body) < 262_144 for body in bodies.values())
    for name, body in bodies.items():
        await bystander.get("/api/v1/whoami")
        watch = LoopWatch()
        answer = await viewer.post(LINT, content=body, headers=JSON)
        watch.end()
        assert answer.status_code == 200, answer.text
        stood = f"{name}: the loop stood still for {watch.longest:.3f} of {watch.took:.3f} s"
        assert watch.longest < max(watch.took / 2, 0.05), stood


async def test_others_are_answered_while_one_tenant_floods_the_threads(world: World) -> None:
    flooding, other = await a_viewer(world, "acme"), await a_viewer(world, "other")
    body = json.dumps({"manifest": many_values_of_many_choices()}).encode()
    ended: list[str] = []

    async def lint(client: httpx.AsyncClient, name: str) -> httpx.Response:
        answer = await client.post(LINT, content=body, headers=JSON)
        ended.append(name if answer.status_code == 200 else "refused")
        return answer

    flood = [asyncio.create_task(lint(flooding, "flood")) for _ in range(2 * WAITING_PER_TENANT_MAX)]
    await until(lambda: "refused" in ended)  # the flood has filled what one tenant may let wait
    answers = [await lint(other, "other"), await lint(other, "other")]
    assert [each.status_code for each in answers] == [200, 200]
    refused = [each for each in await asyncio.gather(*flood) if each.status_code != 200]
    assert {each.json()["code"] for each in refused} == {"rate_limited"}
    assert all(int(each.headers["retry-after"]) >= 1 for each in refused)
    after = ended[len(ended) - ended[::-1].index("other") :]
    assert after.count("flood") >= 2, f"the other tenant waited for the flood: {ended}"


async def test_a_body_of_lists_alone_is_refused_before_it_is_decoded(world: World) -> None:
    """A list of two characters takes 60 bytes of memory, and the collector looks at it."""
    viewer = await a_viewer(world, "acme")
    for body in (b'{"manifest": [' + b"[]," * 200_000 + b"0]}", b'{"manifest": [' + b"{}," * 200_000 + b"0]}"):
        answer = await viewer.post(LINT, content=body, headers=JSON)
        assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
