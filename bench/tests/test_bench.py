"""The bench runs and prints all it promises; how fast anything is, no test asserts."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench import agents, fairness, hot_row, load, members, meters, pgbench
from bench.bench_platform import BenchTenant
from bench.measure import BenchResult, latency_of
from bench.report import lines_of

ROOT = Path(__file__).resolve().parents[2]
TENANT = BenchTenant("ten_1", "usr_1", "tok_1", "a token", ("prj_1", "prj_2"))


@pytest.mark.real_part("postgresql")
def test_a_quick_run_measures_everything_and_reports_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--json"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result = msgspec.convert(json.loads(done.stdout), BenchResult)
    for name in ("read", "read_with_token", "mutation"):
        compared = getattr(result, name)
        assert compared.api.per_second > 0
        assert compared.pgbench.per_second > 0
        assert compared.ratio > 0
        for side in (compared.api, compared.pgbench):
            assert 0 < side.latency.p50_ms <= side.latency.p99_ms
    assert result.memory.resident_bytes > 0
    assert result.catalog is not None
    assert result.catalog.few_versions < result.catalog.many_versions
    assert len(result.catalog.lines) == 16
    for line in result.catalog.lines:
        assert 0 < line.few.p50_ms <= line.few.p99_ms
        assert 0 < line.many.p50_ms <= line.many.p99_ms
        assert line.ratio > 0
    waited = msgspec.convert(json.loads(done.stdout)["agents"], agents.AgentsResult)
    assert waited.tasks == int(agents.QUICK.seconds * agents.QUICK.tasks_per_second)
    assert 0 < waited.latency.p50_ms <= waited.latency.p99_ms <= waited.latency_max_ms
    assert waited.refused == 0
    grown = msgspec.convert(json.loads(done.stdout)["members"], members.MembersResult)
    assert (grown.members, grown.tasks) == (members.QUICK.members, members.QUICK.members * members.TASKS_PER_MEMBER)
    assert 0 < grown.nodes < grown.total
    assert 0 < grown.overhead <= grown.overhead_max
    assert grown.alone > 0
    shared = msgspec.convert(json.loads(done.stdout)["fairness"], fairness.FairnessResult)
    assert shared.running == 64
    assert shared.ratio_p99 > 0
    hot = msgspec.convert(json.loads(done.stdout)["hot_row"], hot_row.HotResult)
    assert (hot.row.writers, hot.reports.members) == (hot_row.QUICK.writers, hot_row.QUICK.members)
    assert min(hot.row.per_second, hot.row.locked_per_second, hot.row.blind_per_second, hot.row.ratio) > 0
    assert min(hot.reports.at_once, hot.reports.one_by_one) > 0
    assert hot.row.conflicts == hot.reports.conflicts == 0
    report = "\n".join(
        [
            *lines_of(result),
            *hot_row.lines_of(hot),
            *agents.lines_of(waited),
            *members.lines_of(grown),
            *fairness.lines_of(shared),
        ]
    )
    for promised in (
        "ratio",
        "p50, p99",
        "CPU time",
        "second lock",
        "Event streams",
        "Memory of the server",
        "a read go",
        "Catalog: p50, p99 ms",
        "project's, a page far behind",
        "simulated agents",
        "queues 80 programs",
        "for each idle agent",
        "intent to agent",
        "members added at once on simulated nodes",
        "tasks alone",
        "writers change one row",
        "pgbench on the same row",
        "members report at once, twice",
    ):
        assert promised in report


def test_pgbench_gets_the_servers_own_statements_with_every_argument_filled_in() -> None:
    script = pgbench.mutation_script(TENANT, b'{"answer": 1}')
    for part in ('UPDATE "project"', 'INSERT INTO "event"', 'INSERT INTO "audit"', 'INSERT INTO "idempotency"'):
        assert part in script.text
    assert "stale_write()" in script.text
    assert "$" not in script.text
    assert script.text.count(r"\gset seen_") == len(TENANT.projects)
    named = {word.strip(",;()") for word in script.text.replace(":", " :").split() if word.startswith(":")}
    known = {f":{name}" for name in script.constants} | {":client_id", ":begun", ":next"}
    fresh = {line.split()[1] for line in script.text.splitlines() if line.startswith(r"\set")}
    assert {name for name in named if not name.startswith(":seen_")} <= known | {f":{name}" for name in fresh}


def test_every_client_of_pgbench_writes_to_a_project_of_its_own() -> None:
    script = pgbench.read_script(TENANT)
    assert script.constants == {"p0": "prj_1", "p1": "prj_2"}
    assert r"\if :client_id = 0" in script.text
    assert r"\elif :client_id = 1" in script.text


def test_on_a_hot_row_every_client_of_pgbench_writes_to_the_same_project() -> None:
    locked, blind = (
        script(TENANT, b"{}") for script in (pgbench.locked_mutation_script, pgbench.blind_mutation_script)
    )
    assert "FOR UPDATE" in locked.text
    assert locked.text.endswith("COMMIT;")
    assert '"revision" = "revision" + 1' in blind.text
    for script in (locked, blind):
        assert ":client_id = " not in script.text
        assert 'INSERT INTO "idempotency"' in script.text


async def _answering(answer: bytes) -> Any:
    """A server that answers everything with these bytes, in two pieces."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(answer[:20])
                await writer.drain()
                writer.write(answer[20:])
        except (asyncio.IncompleteReadError, ConnectionError):  # the client is gone, perhaps amid a response
            writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


async def _loaded(answer: bytes, **how: bool) -> load.LoadSamples:
    server = await _answering(answer)
    port = server.sockets[0].getsockname()[1]
    target = {"method": "GET", "path": "/x", "token": "t"}
    async with server:
        return await asyncio.to_thread(load.run, load.LoadPlan("127.0.0.1", port, 0.05, [[target], [target]], **how))


@pytest.mark.anyio
async def test_the_load_counts_whole_answers() -> None:
    seen = await _loaded(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
    assert seen.requests == len(seen.latencies_ms) >= 2
    assert seen.last_body == "hello"


@pytest.mark.anyio
async def test_the_load_counts_conflicts_where_they_are_measured_and_sends_each_request_once() -> None:
    conflict = b"HTTP/1.1 409 Conflict\r\ncontent-length: 0\r\n\r\n"
    seen = await _loaded(conflict, counts_conflicts=True, once=True)
    assert (seen.requests, seen.conflicts) == (2, 2)
    with pytest.raises(load.LoadFailed, match="409"):
        await _loaded(conflict)


@pytest.mark.anyio
async def test_an_answer_that_is_an_error_ends_the_measurement() -> None:
    with pytest.raises(load.LoadFailed, match="503"):
        await _loaded(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")


def test_every_mutation_has_an_idempotency_key_of_its_own() -> None:
    make = load.request_maker({"method": "PATCH", "path": "/x", "token": "t", "body": '{"name": "{key}"}'}, "host")
    keys = {make().split(b"Idempotency-Key: ")[1].split(b"\r\n")[0] for _ in range(100)}
    assert len(keys) == 100


def test_the_percentiles_are_of_what_was_measured() -> None:
    seen = latency_of([float(number) for number in range(100, 0, -1)])
    assert (seen.p50_ms, seen.p99_ms) == (51.0, 100.0)


def test_what_a_process_used_is_read_from_the_kernel() -> None:
    own = os.getpid()
    alone = meters.cpu_seconds(own)  # before the family's, since it grows
    assert 0 < alone <= meters.family_cpu_seconds(own)
    memory = meters.memory(own)
    assert 0 < memory.resident_bytes <= memory.peak_bytes
