"""The limit: `pgbench` running the statements that the server itself sends.

The texts are not copied: a read's is the constant that the storage uses, a mutation's is composed by the unit of work
for the decision that the core takes. Each `$n` becomes a variable of pgbench: ids, keys and revisions are new ones in
every transaction, everything else is the value that the server would send. Sessions are set up as the server's are,
in the tenants' role and behind the second lock, with prepared statements and as many connections.

A client of pgbench has a project of its own, as a connection of the load has: an update never waits for another one.
Only the scripts for a hot row let all clients change the same project.
"""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bench.bench_platform import BenchPlatform, BenchTenant
from mooring.core.identity.project import Project, update_project
from mooring.core.kernel.decision import Actor, DecisionContext, PrincipalKind
from mooring.core.kernel.ids import Prefix
from mooring.storage.identity import project as projects
from mooring.storage.identity import token as tokens
from mooring.storage.kernel.database import PoolSettings, session_settings
from mooring.storage.kernel.pool import NAME_TENANT
from mooring.storage.kernel.unit_of_work import Origin, StoredAnswer, compose

ROUTE = "PATCH /api/v1/projects/{project_id}"
RATE = re.compile(r"tps = ([0-9.]+)")
REVISION_SEEN = 7_000_000
"""Stands for the revision that a transaction has read, and by one more for the next; no other argument is as large."""
FEW_TRANSACTIONS = 300
LATENCY_SAMPLE = 0.1
GRACE_SECONDS = 60.0


class PgbenchFailed(Exception):
    """pgbench failed, so its rate would mean nothing."""


@dataclass(frozen=True)
class PgbenchScript:
    """What one transaction does, and the values of the variables that stay the same."""

    text: str
    constants: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PgbenchResult:
    """The rate and latencies of PostgreSQL without the server."""

    per_second: float
    transactions: int
    latencies_ms: list[float]


def read_script(tenant: BenchTenant) -> PgbenchScript:
    """The statement of `GET /projects/{project_id}`."""
    arms = [_with_variables(projects.FIND, [f"p{client}"]) + ";" for client in range(len(tenant.projects))]
    return PgbenchScript(_by_number("client_id", arms), _project_variables(tenant))


def read_with_token_script(tenant: BenchTenant, token_digest: bytes) -> PgbenchScript:
    """The same after the look-up of the token, which the server's cache spares it."""
    look_up = _with_variables(tokens.FACTS, ["token"]) + ";\n"
    read = read_script(tenant)
    return PgbenchScript(look_up + read.text, {**read.constants, "token": _text(token_digest)})


def renaming_read_script(tenants: Sequence[BenchTenant]) -> PgbenchScript:
    """The read with a tenant's name before each: every client takes turns between two tenants of its own."""
    arms, constants = [], {"turn": "0"}
    for number, tenant in enumerate(tenants):
        constants |= {f"t{number}": tenant.id, f"p{number}": tenant.projects[0]}
        name = _with_variables(NAME_TENANT, [f"t{number}"])
        arms.append(f"{name};\n{_with_variables(projects.FIND, [f'p{number}'])};")
    turns = "\\set turn 1 - :turn\n\\set which :client_id * 2 + :turn\n"
    return PgbenchScript(turns + _by_number("which", arms), constants)


def mutation_script(tenant: BenchTenant, answer_body: bytes) -> PgbenchScript:
    """The statements of `PATCH /projects/{project_id}`: read the row, then write everything at once."""
    loads = [_with_variables(projects.FIND, [f"p{client}"]) + " \\gset seen_" for client in range(len(tenant.projects))]
    return _mutation(tenant, answer_body, _by_number("client_id", loads))


def locked_mutation_script(tenant: BenchTenant, answer_body: bytes) -> PgbenchScript:
    """The same by every client on the first project: each locks the row before it reads it, or its guard would fail."""
    load = _with_variables(projects.FIND, ["p0"]) + " FOR UPDATE \\gset seen_"
    script = _mutation(tenant, answer_body, f"BEGIN;\n{load}")
    return PgbenchScript(f"{script.text}\nCOMMIT;", script.constants)


def blind_mutation_script(tenant: BenchTenant, answer_body: bytes) -> PgbenchScript:
    """The same on the first project without reading it: the statement alone, which counts the revision up."""
    script = _mutation(tenant, answer_body, "\\set seen_revision 0")
    text = script.text.replace('"revision" = :next', '"revision" = "revision" + 1')
    text = text.replace(' AND "revision" = :seen_revision', "").replace(":seen_id", ":p0")
    return PgbenchScript(text, script.constants)


def _mutation(tenant: BenchTenant, answer_body: bytes, load: str) -> PgbenchScript:
    statement, arguments = _composed(tenant, answer_body)
    names, constants = [], {}
    for number, argument in enumerate(arguments, 1):
        name = _VOLATILE.get(argument) if isinstance(argument, str | int) else None
        if name is None and argument is not None:
            name = f"c{number}"
            constants[name] = _text(argument)
        names.append(name)
    text = "\n".join(
        (
            "\\set n :n + 1",
            *(f"\\set {name} {expression}" for name, expression in _FRESH.items()),
            load,
            "\\set next :seen_revision + 1",
            _with_variables(statement, names) + ";",
        )
    )
    return PgbenchScript(text, {**_project_variables(tenant), **constants, "n": "0"})


_FRESH = {
    # Grows like a sortable id, and differs from every other client's and round's.
    **dict.fromkeys(("event", "audit", "correlation"), ":begun + :n * 1000 + :client_id"),
    "trace": "random(1000000000000000000, 9000000000000000000)",
    "key": "random(1000000000000000000, 9000000000000000000)",
}
_VOLATILE: dict[str | int, str] = {
    "new evt": "event",
    "new aud": "audit",
    "new correlation": "correlation",
    "new trace": "trace",
    "new key": "key",
    "new name": "key",
    "its project": "seen_id",
    REVISION_SEEN: "seen_revision",
    REVISION_SEEN + 1: "next",
}
"""Which argument of the composed statement is another one in each transaction, by the value that stands for it."""


def _composed(tenant: BenchTenant, answer_body: bytes) -> tuple[str, list[object]]:
    now = datetime.now(UTC)
    project = Project("its project", tenant.id, "project", "Project", REVISION_SEEN, now, None)
    actor = Actor(PrincipalKind.USER, tenant.admin_id, tenant.token_id)
    context = DecisionContext(actor, now, "new correlation", "new trace", _mint)
    decision = update_project(context, project, "new name", None)
    answer = StoredAnswer(tenant.admin_id, ROUTE, "new key", tenant.id, bytes(32), 200, answer_body)
    return compose(context, decision, Origin(ROUTE, "127.0.0.1"), answer)


def _mint(prefix: Prefix) -> str:
    return f"new {prefix}"


def _text(value: object) -> str:
    """A value in PostgreSQL's text form."""
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return msgspec.json.encode(value).decode()
    return str(value)


def _project_variables(tenant: BenchTenant) -> dict[str, str]:
    return {f"p{client}": project for client, project in enumerate(tenant.projects)}


def _with_variables(statement: str, names: Sequence[str | None]) -> str:
    """The statement with pgbench's variables for its arguments, on one line."""
    one_line = " ".join(statement.split())

    def variable(found: re.Match[str]) -> str:
        name = names[int(found[1]) - 1]
        return "NULL" if name is None else f":{name}"

    return re.sub(r"\$(\d+)", variable, one_line)


def _by_number(variable: str, arms: Sequence[str]) -> str:
    """The arm that the variable names: pgbench has no arrays."""
    lines = []
    for number, arm in enumerate(arms):
        lines += [f"\\{'if' if number == 0 else 'elif'} :{variable} = {number}", arm]
    return "\n".join((*lines, "\\endif"))


@dataclass(frozen=True)
class PgbenchSession:
    """The role of the session: a tenant behind the second lock, or the platform."""

    tenant: BenchTenant | None

    def options(self, dsn: str) -> str:
        """libpq's options for the server's own settings of a session."""
        settings = {**session_settings(PoolSettings(dsn)), "search_path": "public"}
        if self.tenant is not None:
            settings |= {"role": "mooring_tenant", "mooring.tenant": self.tenant.id}
        return " ".join(f"-c {name}={value}" for name, value in settings.items() if name != "application_name")


async def run(platform: BenchPlatform, script: PgbenchScript, session: PgbenchSession, seconds: float) -> PgbenchResult:
    """Run a script on every connection for a while."""
    place = platform.directory / "pgbench"
    place.mkdir(exist_ok=True)
    for old in place.iterdir():
        old.unlink()
    (place / "script.sql").write_text(script.text + "\n", encoding="utf-8")
    constants = {**script.constants, "begun": str(time.time_ns())}
    # pgbench counts whole seconds; what only has to be seen to run is counted otherwise.
    length = f"--time={round(seconds)}" if seconds >= 1 else f"--transactions={FEW_TRANSACTIONS}"
    command = [
        str(platform.installation.program("pgbench")),
        "--no-vacuum",
        "--protocol=prepared",
        f"--client={platform.connections}",
        f"--jobs={min(2, platform.connections)}",
        length,
        f"--file={place / 'script.sql'}",
        "--log",
        f"--log-prefix={place / 'latency'}",
        f"--sampling-rate={LATENCY_SAMPLE}",
        *(f"--define={name}={value}" for name, value in constants.items()),
        platform.dsn,
    ]
    process = await asyncio.create_subprocess_exec(
        *command,
        env={"PGOPTIONS": session.options(platform.dsn), "LC_ALL": "C"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, complaint = await asyncio.wait_for(process.communicate(), seconds + GRACE_SECONDS)
    except TimeoutError:
        process.kill()
        raise
    rate = RATE.search(output.decode())
    if process.returncode != 0 or rate is None or b"aborted" in complaint:
        raise PgbenchFailed(complaint.decode(errors="replace")[-2000:])
    return PgbenchResult(float(rate[1]), _count(output.decode()), _latencies(place))


def _count(output: str) -> int:
    found = re.search(r"transactions actually processed: (\d+)", output)
    return int(found[1]) if found else 0


def _latencies(place: Path) -> list[float]:
    """The sampled latencies: the third field of each line of pgbench's log, in microseconds."""
    return [int(line.split()[2]) / 1000 for path in place.glob("latency*") for line in path.read_text().splitlines()]
