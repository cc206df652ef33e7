"""The conformance suite's simulated platform and the real server answer the same to generated histories.

The simulated platform is a second implementation of the rules. What an adapter's author learns from it is only true if
the two agree: here each history of requests is sent to both, and every answer is compared by its status, its code and
what the contract promises of its body. A failing history is named by its seed and printed.
"""

import json
from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from mooring.core.kernel.ids import Prefix
from mooring_adapter.conformance import fake_api, platform_rules, report_rules, task_rules
from mooring_adapter.conformance.fake_api import FakeApi
from server.tests.conftest import World
from server.tests.support.adapter_site import open_adapter_site
from server.tests.support.postgres import SOAK
from tests.parity.answers import PlatformAnswer, comparable, differences
from tests.parity.histories import VERBS, AdapterRequest, HistoryWriter
from tests.parity.platforms import RealSide, SimulatedSide, unknown_id
from tools.soak import seed

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]

FIRST, HISTORIES = (seed() * 20_000, 20_000) if SOAK else (0, 1_000)
REQUESTS = 14
PARTS = 4
RUNNING_SHARE = 0.6
"""How many histories begin with a deployment that succeeds: most operations need an instance that runs."""
UNKNOWN = {
    "@nobody-instance": unknown_id(Prefix.INSTANCE),
    "@nobody-member": unknown_id(Prefix.MEMBER),
    "@nobody-operation": unknown_id(Prefix.OPERATION),
}


class PlayedHistory:
    """One history on both platforms: the names that it gave to ids, and what was said."""

    def __init__(self, number: int, real: RealSide) -> None:
        self.number, self.chance = number, Random(number)
        self.real, self.simulated = real, SimulatedSide()
        self.ids: tuple[dict[str, str], dict[str, str]] = ({**UNKNOWN}, {**UNKNOWN})  # by name: simulated, real
        self.names: tuple[dict[str, str], dict[str, str]] = ({}, {})  # by id
        self.lines: list[str] = []
        self.outcomes: Counter[str] = Counter()

    def name(self, name: str, simulated: str, real: str) -> None:
        for side, identity in enumerate((simulated, real)):
            self.ids[side][name], self.names[side][identity] = identity, name

    async def begin(self) -> None:
        workers = self.chance.choice((0, 1, 2))
        ours = self.simulated.launch(workers)
        member_ids, operation_id = await self.real.launch(workers)
        foreign = self.simulated.foreign
        assert foreign is not None
        assert self.real.instance is not None
        self.name("@instance", ours.id, self.real.instance.id)
        self.name("@foreign", foreign.id, self.real.foreign.id)
        self.name("@foreign-member", next(iter(foreign.members)), self.real.foreign_member)
        for number, (one, other) in enumerate(zip(ours.members, member_ids, strict=True)):
            self.name(f"@member-{number}", one, other)
        self.name("@operation-0", next(iter(ours.operations)), operation_id)
        self.writer = HistoryWriter(self.chance, ours, self.number, self.names[0])

    async def play(self) -> list[str]:
        """Send everything to both; returns the first differences."""
        await self.begin()
        prelude = self.writer.deployment() if self.chance.random() < RUNNING_SHARE else []
        for planned in (*prelude, *(None for _ in range(REQUESTS))):
            request = planned or self.writer.next()
            if found := await self.step(request):
                return found
        if found := await self._compare_reads():
            return found
        await self.real.retire()
        return []

    async def step(self, request: AdapterRequest) -> list[str]:
        if request.verb:
            return await self._ask_as_person(request)
        path, body = self._resolved(request.path), self._resolved(request.body)
        one = self.simulated.ask(request.method, path[0], body[0], request.query)
        other = await self.real.ask(request.method, path[1], body[1], request.query)
        self._name_tasks(one, other)
        self.lines.append(f"{request.method} {request.path} {json.dumps(request.body or request.query)}")
        answers = comparable(one, self.names[0]), comparable(other, self.names[1])
        if request.path == "/claims" and one.status == 200 and other.status == 200:
            for each in answers:
                each["body"].pop("changed")  # by the events of each platform; an extra one makes an adapter read
        self.lines.append(f"    simulated {one.status} {one.code or ''}, real {other.status} {other.code or ''}")
        self.outcomes[f"{request.path.rpartition('/')[2]} {other.code or other.status}"] += 1
        return differences(*answers)

    async def _compare_reads(self) -> list[str]:
        """Claim the instance if nobody holds it, and compare everything that its holder reads."""
        ours = self.writer.instance
        claim = AdapterRequest("/claims", {"holder": "last", "free": 1, "held": []})
        if ours.claim.holder is None and (found := await self.step(claim)):
            return found
        query = {"fence": str(ours.claim.fence)}
        return await self.step(AdapterRequest("/instances/@instance", method="GET", query=query))

    async def _ask_as_person(self, request: AdapterRequest) -> list[str]:
        """The real server decides whether a person may; the simulated one then does it."""
        given = self._resolved(request.body)
        made = await self.real.person(request.verb, given[1])
        self.lines.append(f"person {request.verb} {json.dumps(request.body)}: {'accepted' if made else 'refused'}")
        self.outcomes[f"person {request.verb} {'accepted' if made else 'refused'}"] += 1
        if made is None:
            return []
        ours = self.writer.instance
        before = set(ours.members)
        if request.verb == "stop" and any(each.kind == "decommission" for each in ours.open_operations):
            return []  # a repeated stop
        operation = self.simulated.person(request.verb, given[0])
        if operation is not None:
            self.name(f"@operation-{len(ours.operations) - 1}", operation.id, made["id"])
        for identity in set(ours.members) - before:
            self.name(f"@member-{len(ours.members) - 1}", identity, made["member_ids"][0])
        return []

    def _name_tasks(self, one: PlatformAnswer, other: PlatformAnswer) -> None:
        if one.status != 200 or other.status != 200:
            return
        pairs = [(one.body, other.body)] if str(one.body.get("id", "")).startswith("tsk_") else []
        if not pairs and "refusal" in str(one.body.get("tasks")):
            pairs = [
                (mine["task"], theirs["task"])
                for mine, theirs in zip(one.body["tasks"], other.body["tasks"], strict=False)
                if mine["task"] and theirs["task"]
            ]
        for mine, theirs in pairs:
            if mine["id"] not in self.names[0]:
                self.name(f"@task-{len(self.names[0])}", mine["id"], theirs["id"])

    def _resolved(self, value: Any) -> tuple[Any, Any]:
        return tuple(self._with_ids(value, ids) for ids in self.ids)

    def _with_ids(self, value: Any, ids: dict[str, str]) -> Any:
        if isinstance(value, dict):
            return {key: self._with_ids(each, ids) for key, each in value.items()}
        if isinstance(value, list):
            return [self._with_ids(each, ids) for each in value]
        if isinstance(value, str) and "@" in value:
            return "/".join(ids.get(part, part) for part in value.split("/"))
        return value


async def first_difference(real: RealSide, numbers: Iterable[int], outcomes: Counter[str]) -> str:
    """The first history that differs, for a person; empty if none does."""
    for number in numbers:
        history = PlayedHistory(number, real)
        if found := await history.play():
            said = "\n".join([*found, "after", *history.lines])
            return f"history {number} differs:\n{said}"
        outcomes.update(history.outcomes)
    return ""


@pytest.mark.parametrize("part", range(PARTS))
async def test_both_platforms_answer_the_same_to_generated_histories(world: World, part: int) -> None:
    outcomes: Counter[str] = Counter()
    async with open_adapter_site(world, f"parity-{part}") as site:
        real = await RealSide.opened(site)
        assert await first_difference(real, range(FIRST + part, FIRST + HISTORIES, PARTS), outcomes) == ""
    # A generator that only makes refused requests would compare little.
    for wanted in ("reports 200", "finish 200", "tasks 200", "tasks:batch 200", "secrets 200", "usage 200"):
        assert outcomes[wanted] > HISTORIES / PARTS / 20, f"{wanted}: {outcomes}"
    for wanted in ("lease_lost", "conflict", "illegal_transition", "validation_failed", "not_found", "name_taken"):
        assert any(key.endswith(wanted) for key in outcomes), f"{wanted}: {outcomes}"
    for verb in set(VERBS):
        assert outcomes[f"person {verb} accepted"], f"{verb}: {outcomes}"


BROKEN: dict[str, tuple[Any, str, Any]] = {
    "a member is ready without joining": (
        report_rules,
        "REPORTED",
        {**report_rules.REPORTED, "ready": frozenset({"requested", "joining", "degraded"})},
    ),
    "an operation succeeds before it begins": (
        platform_rules,
        "ENDS",
        {**platform_rules.ENDS, "succeeded": frozenset({"accepted", "running", "cancelling"})},
    ),
    "a command runs without an operation": (task_rules, "LOOKING", task_rules.LOOKING | {"process.run"}),
    "a stale fence is accepted": (FakeApi, "_fenced", lambda api, instance, fence: None),
    "unknown fields are accepted": (fake_api, "check_body", lambda route, body: None),
}


async def test_a_rule_that_is_broken_on_either_side_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_adapter_site(world, "parity-broken") as site:
        real = await RealSide.opened(site)
        for what, (owner, name, value) in BROKEN.items():
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, value)
                try:
                    found = await first_difference(real, range(HISTORIES), Counter())
                except (KeyError, TypeError, AttributeError) as error:  # the rules behind a check that is gone
                    found = repr(error)
                assert found, what
                await real.retire()
