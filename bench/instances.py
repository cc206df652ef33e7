"""How soon an adapter has a new instance, and what a hundred times as many instances cost.

`python -m bench.instances`, and a part of `python -m bench`. One PostgreSQL and one server process on one machine. In
the first half instances are created at a steady pace, however long the responses take, each in an active allocation;
an adapter waits in a poll, and has an instance when the response that names it has arrived. Two limits are measured in
the same seconds: the responses to the same requests, and a poll that finds something at once.

In the second half two servers run in parallel, one with few instances stored and one with many, and take turns: a page
of the list, a poll of an adapter that finds nothing, and a pass of the worker that finds nothing to do.
"""

import argparse
import asyncio
import itertools
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import Any

import httpx
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from bench import fleet, instance_rows
from bench.bench_platform import BenchPlatform, running_platform
from bench.measure import Latency, latency_of, median
from mooring.commands.runtime.instance_reconcile import limits_of
from mooring.core.identity.platform_key import encoded
from mooring.gateways.clock import SystemClock
from mooring.settings import Settings
from mooring.storage.kernel.database import Database, PoolSettings
from mooring.storage.runtime import instance_reconcile
from mooring_sdk.credentials import ServiceAccountCredentials

CONNECTIONS = 8
LATENCY_GOAL_MS = 250.0
RATIO_MAX = 2.0
WAIT_SECONDS = 20.0
PAGE = 50


@dataclass(frozen=True)
class InstancesEffort:
    """How many, how fast, how long."""

    creates_per_second: int = 50
    seconds: float = 20.0
    few: int = 1_000
    many: int = 100_000
    looks: int = 200
    rounds: int = 3


QUICK = InstancesEffort(creates_per_second=10, seconds=0.5, few=20, many=60, looks=3, rounds=1)


@dataclass(frozen=True)
class InstancesLine:
    """One action with few and with many instances stored."""

    name: str
    few: Latency
    many: Latency
    ratio: float


@dataclass(frozen=True)
class InstancesResult:
    """What was measured."""

    creates: int
    creates_per_second: float
    claimed: Latency
    claimed_max_ms: float
    answered: Latency  # the requests' own answers
    found: Latency  # a poll that finds something at once
    ratio: float  # the median of the way beside the answer and the poll together
    few: int
    many: int
    lines: list[InstancesLine]


class BenchAdapter:
    """An adapter that only claims instances."""

    def __init__(self, client: httpx.AsyncClient, holder: str = "bench-adapter") -> None:
        self.client = client
        self.holder = holder
        self.arrived: dict[str, float] = {}
        self.held: dict[str, int] = {}
        self.cursor: str | None = None
        self.news = asyncio.Event()

    async def has(self, wanted: set[str]) -> None:
        """Wait until all of these were claimed."""
        while wanted - set(self.arrived):
            self.news.clear()
            await self.news.wait()

    async def poll(self, wait_seconds: float) -> list[str]:
        """Poll once; the claimed instances."""
        body: dict[str, Any] = {
            "holder": self.holder,
            "free": 100,
            "wait_seconds": wait_seconds,
            "held": [{"instance_id": each, "fence": fence} for each, fence in self.held.items()],
        }
        if self.cursor is not None:
            body["after"] = self.cursor
        answer = (await self.client.post("/api/v1/runtime/claims", json=body)).raise_for_status()
        now, said = time.perf_counter(), answer.json()
        self.cursor = said["cursor"]
        new = [each for each in said["claims"] if each["instance_id"] not in self.held]
        for each in new:
            self.arrived[each["instance_id"]] = now
            self.held[each["instance_id"]] = each["fence"]
        self.news.set()
        return [each["instance_id"] for each in new]

    async def listen(self) -> None:
        """Poll for ever."""
        while True:
            await self.poll(WAIT_SECONDS)


async def measure(effort: InstancesEffort) -> InstancesResult:
    """Measure both halves, each on its own platforms."""
    asked, answers, adapter, seconds, found = await _launches(effort)
    way = [(adapter.arrived[each] - asked[each]) * 1_000 for each in asked]
    claimed, answered, at_once = latency_of(way), latency_of(answers), latency_of(found)
    return InstancesResult(
        creates=len(asked),
        creates_per_second=len(asked) / seconds,
        claimed=claimed,
        claimed_max_ms=max(way),
        answered=answered,
        found=at_once,
        ratio=claimed.p50_ms / (answered.p50_ms + at_once.p50_ms),
        few=effort.few,
        many=effort.many,
        lines=await _stored(effort),
    )


async def _launches(effort: InstancesEffort) -> tuple[dict[str, float], list[float], BenchAdapter, float, list[float]]:
    """Create instances at a steady pace while an adapter polls; when each was requested, and its latency."""
    count = int(effort.creates_per_second * effort.seconds)
    async with running_platform(CONNECTIONS, tenants=1) as platform, AsyncExitStack() as stack:
        tenant = platform.tenants[0]
        joined = await fleet.join(platform.dsn, count + effort.looks, (tenant.id, tenant.projects[0]))
        people, operator, app = await callers(platform, stack)
        adapter = BenchAdapter(operator)
        asked: dict[str, float] = {}
        answers: list[float] = []

        async def launch(number: int) -> str:
            body = {
                "app": instance_rows.SLUG,
                "name": f"launched-{number}",
                "topology": {"worker": 1},
                "placement": {"allocations": [joined.members[number].allocation_id]},
                "service_account_id": app.service_account_id,
            }
            begun = time.perf_counter()
            path = f"/api/v1/projects/{tenant.projects[0]}/app-instances"
            answer = await people.post(path, json=body)
            if answer.status_code != 201:
                raise RuntimeError(f"a launch was refused: {answer.text}")
            instance_id = str(answer.json()["id"])
            asked[instance_id] = begun
            answers.append((time.perf_counter() - begun) * 1_000)
            return instance_id

        listening = asyncio.create_task(adapter.listen())
        begun, under_way = time.perf_counter(), []
        for number in range(count):
            await asyncio.sleep(max(0.0, begun + number / effort.creates_per_second - time.perf_counter()))
            under_way.append(asyncio.create_task(launch(number)))
        await asyncio.gather(*under_way)
        seconds = time.perf_counter() - begun
        async with asyncio.timeout(60):
            await adapter.has(set(asked))
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        counted, found, second = dict(asked), [], BenchAdapter(operator, "bench-adapter-2")
        for number in range(count, count + effort.looks):
            await launch(number)
            looked = time.perf_counter()
            if not await second.poll(0):
                raise RuntimeError("a poll found nothing although there was something")
            found.append((time.perf_counter() - looked) * 1_000)
        return counted, answers[:count], adapter, seconds, found


async def callers(
    platform: BenchPlatform, stack: AsyncExitStack
) -> tuple[httpx.AsyncClient, httpx.AsyncClient, instance_rows.Launchable]:
    """The client that launches, the client of the operator account, and the app."""
    tenant = platform.tenants[0]
    private = Ed25519PrivateKey.generate()
    public = encoded(private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))
    app = await instance_rows.make_launchable(platform, tenant, public)
    people = await stack.enter_async_context(httpx.AsyncClient(base_url=platform.url, timeout=60))
    people.headers["Authorization"] = f"Bearer {tenant.token}"
    operator = await stack.enter_async_context(httpx.AsyncClient(base_url=platform.url, timeout=60))
    operator.headers["Authorization"] = f"Bearer {await _token(people, operator, tenant.projects[0], app, private)}"
    return people, operator, app


async def _token(
    people: httpx.AsyncClient,
    operator: httpx.AsyncClient,
    project_id: str,
    app: instance_rows.Launchable,
    private: Ed25519PrivateKey,
) -> str:
    """A token of the operator account."""
    path = f"/api/v1/projects/{project_id}/service-accounts/{app.service_account_id}/keys"
    keys = (await people.get(path)).raise_for_status().json()["items"]
    key = ServiceAccountCredentials(app.service_account_id, keys[0]["id"], private)
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "assertion": key.assertion(str(operator.base_url).rstrip("/"), time.time()),
    }
    answer = (await operator.post("/api/v1/oauth/token", data=form)).raise_for_status()
    return str(answer.json()["access_token"])


async def _stored(effort: InstancesEffort) -> list[InstancesLine]:
    """The same actions with few and with many instances stored, in turns."""
    async with AsyncExitStack() as stack:
        sides = []
        for count in (effort.few, effort.many):
            platform = await stack.enter_async_context(running_platform(2, tenants=1))
            people, operator, app = await callers(platform, stack)
            await instance_rows.fill(platform, platform.tenants[0], app, count)
            sides.append(await _acts(platform, stack, people, operator))
        lines = []
        for name in sides[0]:
            pooled: tuple[list[float], list[float]] = ([], [])
            ratios = []
            for _ in range(effort.rounds):
                rounds = [await _timed(acts[name], effort.looks) for acts in sides]
                ratios.append(statistics.median(rounds[1]) / statistics.median(rounds[0]))
                for kept, one in zip(pooled, rounds, strict=True):
                    kept += one
            lines.append(InstancesLine(name, latency_of(pooled[0]), latency_of(pooled[1]), median(ratios)))
    return lines


async def _acts(
    platform: BenchPlatform, stack: AsyncExitStack, people: httpx.AsyncClient, operator: httpx.AsyncClient
) -> dict[str, Callable[[], Awaitable[object]]]:
    """The actions on one side."""
    path = f"/api/v1/projects/{platform.tenants[0].projects[0]}/app-instances?limit={PAGE}"
    cursors = itertools.cycle(await _cursors(people, path))
    adapter = BenchAdapter(operator)
    database = Database(PoolSettings(platform.dsn, 2))
    await database.open()
    stack.push_async_callback(database.close)
    clock, limits = SystemClock(), limits_of(Settings())

    async def page() -> None:
        (await people.get(f"{path}{next(cursors)}")).raise_for_status()

    async def look() -> None:
        now = clock.now()
        ids = await instance_reconcile.due(database, now, limits, "", 100)
        await instance_reconcile.snapshot(database, now, ids)
        await instance_reconcile.next_moment(database, now, limits)

    return {"a page of the list": page, "a poll that finds nothing": lambda: adapter.poll(0), "a worker's look": look}


async def _cursors(client: httpx.AsyncClient, path: str) -> list[str]:
    """Where some pages begin: the first ones, one after another."""
    found, cursor = [""], ""
    for _ in range(20):
        said = (await client.get(f"{path}{cursor}")).raise_for_status().json()
        if said.get("next_cursor") is None:
            break
        cursor = f"&cursor={said['next_cursor']}"
        found.append(cursor)
    return found


async def _timed(act: Callable[[], Awaitable[object]], count: int) -> list[float]:
    """How long an act takes, in milliseconds, one after the other; the first ones are not counted."""
    times = []
    for number in range(count + count // 10):
        begun = time.perf_counter()
        await act()
        if number >= count // 10:
            times.append((time.perf_counter() - begun) * 1_000)
    return times


def lines_of(found: InstancesResult) -> Iterator[str]:
    """The report, line by line."""
    yield (
        f"{found.creates:,} launches, {found.creates_per_second:.0f}/s: from the request to the adapter that has it"
        f"   p50 {found.claimed.p50_ms:.1f} ms, p99 {found.claimed.p99_ms:.1f} ms, max {found.claimed_max_ms:.1f} ms"
        f"   goal p99 {LATENCY_GOAL_MS:.0f} ms"
    )
    yield (
        f"  limits of the same run: the request's own answer p50 {found.answered.p50_ms:.1f} ms, "
        f"p99 {found.answered.p99_ms:.1f} ms; a poll that finds something p50 {found.found.p50_ms:.1f} ms; "
        f"the way takes {found.ratio:.2f} times both"
    )
    yield f"{found.many:,} instances stored beside {found.few:,}:"
    yield from _stored_lines(found.lines)


def _stored_lines(lines: Sequence[InstancesLine]) -> Iterator[str]:
    for line in lines:
        yield (
            f"  {line.name:<28} p50 {line.few.p50_ms:6.2f} ms and {line.many.p50_ms:6.2f} ms, "
            f"p99 {line.few.p99_ms:6.2f} ms and {line.many.p99_ms:6.2f} ms   ratio {line.ratio:.2f}   goal {RATIO_MAX}"
        )


def reached(found: InstancesResult) -> bool:
    """Whether the goals were reached."""
    return found.claimed.p99_ms < LATENCY_GOAL_MS and all(line.ratio <= RATIO_MAX for line in found.lines)


def main(arguments: list[str] | None = None) -> int:
    """Measure instances alone; the exit code says whether the goals were reached."""
    parser = argparse.ArgumentParser(prog="python -m bench.instances", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds: shows that it runs, not how fast it is")
    parser.add_argument("--stored-only", action="store_true", help="only what a hundred times as many instances cost")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args(arguments)
    if options.stored_only:
        lines = asyncio.run(_stored(QUICK if options.quick else InstancesEffort()))
        sys.stdout.write("\n".join(_stored_lines(lines)) + "\n")
        return 0 if options.quick or all(line.ratio <= RATIO_MAX for line in lines) else 1
    found = asyncio.run(measure(QUICK if options.quick else InstancesEffort()))
    if options.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(asdict(found))).decode() + "\n")
    else:
        sys.stdout.write("\n".join(lines_of(found)) + "\n")
    return 0 if options.quick or reached(found) else 1


if __name__ == "__main__":
    sys.exit(main())
