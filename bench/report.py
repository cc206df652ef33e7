"""The result for people: a few tables, every number of them measured in this run."""

from collections.abc import Iterator

from bench.measure import BenchResult, CatalogResult, Comparison

GOALS = {"read": 0.30, "mutation": 0.40}
LOCK_COST_MAX = 0.20
CATALOG_RATIO_MAX = 2.0
MIB = 1024 * 1024


def lines_of(result: BenchResult) -> Iterator[str]:
    """The report, line by line."""
    yield f"One API process, {result.connections} connections on each side, one PostgreSQL, rounds taking turns."
    yield ""
    rates = f"{'API/s':>9}{'pgbench/s':>11}{'ratio':>7}{'goal':>6}"
    yield f"{'':34}{rates}   {'API p50, p99 ms':>17}{'pgbench p50, p99':>19}"
    yield _row("read", result.read, f"{GOALS['read']:.2f}")
    yield _row("read, limit with token look-up", result.read_with_token, "")
    yield _row("audited, idempotent mutation", result.mutation, f"{GOALS['mutation']:.2f}")
    yield ""
    used = f"{'server':>9}{'PostgreSQL':>12}{'load':>7}"
    yield f"{'CPU time of each, microseconds':34}{used}   {'PostgreSQL under pgbench':>25}"
    yield _cpu_row("read", result.read)
    yield _cpu_row("mutation", result.mutation)
    yield ""
    yield from _shares(result)
    yield ""
    yield from _second_lock(result)
    yield ""
    seen = f"p50 {result.streams.p50_ms:.1f} ms, p99 {result.streams.p99_ms:.1f} ms"
    yield f"Event streams, {result.followers} followers: {seen} after the request was sent"
    memory = f"{result.memory.resident_bytes / MIB:.0f} MiB; at most {result.memory.peak_bytes / MIB:.0f} MiB"
    yield f"Memory of the server after the load: {memory}"
    if result.catalog is not None:
        yield ""
        yield from catalog_lines(result.catalog)


def catalog_lines(catalog: CatalogResult) -> Iterator[str]:
    """The catalog with few and with many versions."""
    counts = f"{f'{catalog.few_versions:,} versions':>18}{f'{catalog.many_versions:,} versions':>18}"
    yield f"{'Catalog: p50, p99 ms':46}{counts}{'p99 ratio':>11}{'goal':>6}"
    for line in catalog.lines:
        few = f"{line.few.p50_ms:.2f}, {line.few.p99_ms:.2f}"
        many = f"{line.many.p50_ms:.2f}, {line.many.p99_ms:.2f}"
        yield f"  {line.name:44}{few:>18}{many:>18}{line.ratio:>11.2f}{CATALOG_RATIO_MAX:>6.1f}"


def _row(name: str, compared: Comparison, goal: str) -> str:
    api, limit = compared.api, compared.pgbench
    latency = f"{api.latency.p50_ms:.2f}, {api.latency.p99_ms:.2f}"
    other = f"{limit.latency.p50_ms:.2f}, {limit.latency.p99_ms:.2f}"
    rates = f"{api.per_second:>9.0f}{limit.per_second:>11.0f}{compared.ratio:>7.2f}"
    return f"{name:34}{rates}{goal:>6}   {latency:>17}{other:>19}"


def _cpu_row(name: str, compared: Comparison) -> str:
    api = compared.api
    used = f"{api.server_cpu_us:>9.0f}{api.postgres_cpu_us:>12.0f}{api.client_cpu_us:>7.0f}"
    return f"{name:34}{used}   {compared.pgbench.postgres_cpu_us:>25.0f}"


def _shares(result: BenchResult) -> Iterator[str]:
    shares = result.shares
    if shares.whole <= 0:
        yield "Where the server's time of a read goes: it was too short for the clock of its processor time"
        return
    yield f"Where the server's {shares.whole:.0f} microseconds of a read go"
    for name, part in (
        ("HTTP, caller, permission, answer, log", shares.without_database),
        ("database driver and pool, alone", shares.driver),
        ("what both take longer when they alternate", shares.rest),
    ):
        yield f"  {name:43}{part:>6.0f}{part / shares.whole:>7.0%}"


def _second_lock(result: BenchResult) -> Iterator[str]:
    lock = result.second_lock
    yield f"{'The second lock (row-level security)':44}{'reads/s':>9}{'cost':>7}"
    for name, rate, cost in (
        ("pgbench, platform's role: no lock", lock.pgbench_without, None),
        ("pgbench, tenant named once", lock.pgbench_with, lock.pgbench_cost),
        ("pgbench, tenant named before each read", lock.pgbench_renamed_each_time, lock.pgbench_cost_renamed),
        ("API, one tenant", lock.api_one_tenant, None),
        ("API, as many tenants as connections", lock.api_as_many_tenants_as_connections, lock.api_cost_as_many),
        ("API, twice as many tenants", lock.api_twice_as_many, lock.api_cost_twice_as_many),
    ):
        yield f"  {name:42}{rate:>9.0f}{'' if cost is None else f'{cost:>7.0%}'}"
