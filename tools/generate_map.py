"""Write `docs/map.md`: for every verb its route, its command, the decision behind it and the tables it writes.

The map is read from the source by following calls, never from a list kept by hand: from the handler of a route to the
functions of `commands`, from those to the functions of `core` that return a `Decision`, and from those to the rows they
write. Workers, which have no route, follow in a table of their own. Without an option the page is written; with
`--check` nothing is, and the exit code is 1 when the page differs. Run it by `python -m tools.generate_map`.

Only the table at the top, which answers the questions of a newcomer, is kept by hand. Each name in it must be in the
source, or no page is made.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from mooring.api.route import PREFIX, Route
from mooring.api.routes import ROUTES
from tools.generate_docs import table
from tools.generate_lifecycles import check

ROOT = Path(__file__).resolve().parent.parent
SERVER = ROOT / "server"
PAGE = ROOT / "docs" / "map.md"
WINGS = ("kernel", "identity", "catalog", "pricing", "fleet", "runtime", "money", "records")
DECISIONS = ("Decision[", "NewTask", "NetworkPlan", "Insert")
"""What a deciding function returns: a decision, or a part of one with the rows that it writes."""
SQL_WRITE = re.compile(r"(?:INSERT INTO|DELETE FROM|(?<!DO )(?<!FOR )\bUPDATE) (?:ONLY )?(\w+)")
"""A table that a statement writes; neither `ON CONFLICT DO UPDATE` nor `FOR UPDATE` names one."""
WRITES = {"Insert", "Update", "StateChange", "Remove", "RowGuard"}
HEAD = """# Map

<!-- Made by `python -m tools.generate_map`; a test compares it with the source. -->

Where every change of state is made: the verbs that write, and what the platform does by itself. A row reads from left
to right, as a request passes through the layers: the route that takes it, the command that loads and applies, the pure
function that decides, and the tables in which the decision is written (by `storage/kernel/unit_of_work.py`, in one
statement). Paths are below `server/mooring/`; those that begin with `sdk/` or `agent/` are below the root of the
repository. A name after the colon is the function. Where no function of the core decides, the fourth column shows what
the command calls in the storage, and the fifth the tables that its SQL writes; a dash says that only an event and
an audit row are written, or nothing. What a command reads is in `storage/<wing>/`, usually under the same file name.
"""
FIRST = """## Where to look first

The questions that newcomers ask. A name in capitals is a constant, usually SQL.
"""
QUESTIONS = (
    (
        "Where is a drain decided?",
        "of a member: `core/runtime/member_change.py:drain_member`",
        "of a node: `core/fleet/node.py:drain_node`; `core/fleet/node.py:finish_drain` ends it",
    ),
    (
        "Where is the SQL of a claim?",
        "adapters claim instances: `storage/runtime/claim.py:CLAIM`",
        "agents claim tasks: `storage/fleet/task_claim.py:CLAIM`",
        "slots have none of their own: `core/fleet/slot.py:claim_slots` decides, and the unit of work writes",
    ),
    (
        "What runs when a node goes silent?",
        "`workers/nodes.py:NodeWatch.tick` calls `commands/fleet/node.py:mark_silent`; `storage/fleet/node.py:SILENT` "
        "finds who was not seen in time, `core/fleet/node.py:mark_unreachable` decides what changes",
        "then the reconcilers note it on what runs there: `core/fleet/allocation_reconcile.py:reconcile`, "
        "`core/runtime/instance_reconcile.py:reconcile`",
    ),
    (
        "Which file verifies a receipt?",
        "on arrival, with the signature: `commands/fleet/task_report.py:TaskReportHandler._receipt`",
        "its form, subject and place in the chain: `core/fleet/receipt.py:read_body`, "
        "`core/fleet/receipt.py:check_subject`, `core/fleet/receipt.py:check_place`",
        "offline: `sdk/mooring_sdk/receipts.py:verify_bundle`",
    ),
    (
        "Where does an agent decide whether to trust a task?",
        "`agent/mooring_agent/tasks/verifier.py:TaskVerifier.verify`",
    ),
    (
        "Where is a node chosen for an allocation?",
        "`core/fleet/placement.py:PlacementBoard.place`",
        "the result is written by `core/fleet/allocation_reconcile.py:place_allocations`",
    ),
    (
        "Where is an hour priced, and where is it booked?",
        "the clock of an allocation becomes money in `core/money/interval.py:pieces`, by `core/pricing/rating.py:part`",
        "what an hour should have in the ledger: `core/money/charge.py:target_lines`",
        "booked: `core/money/ledger.py:book`, by `commands/money/charge.py:settle`",
    ),
    (
        "Which file serves the web console?",
        "`api/console.py:serve`; its sources are [at the root](../console/README.md)",
    ),
    ("Where do I add a page to the console?", "[the console's README](../console/README.md) names every file"),
    (
        "Who may do what?",
        "`core/kernel/permissions.py:Authority`; the page is [authorization](authorization.md)",
    ),
    (
        "Who may see whose rows?",
        "what is of another tenant is not found: `api/app.py:Application`, with "
        "`api/project_tenant_cache.py:ProjectTenantCache.is_foreign`",
        "the second lock is the database's row-level security: [its record](decisions/0004-second-lock.md)",
    ),
    ("Which states and transitions are there?", "`core/lifecycles.py`; the page is [lifecycles](lifecycles.md)"),
    ("How does a decision reach the database?", "`storage/kernel/unit_of_work.py:apply`"),
    ("Where do I add a noun?", "[the checklist](checklists/add-a-noun.md) names every file, from the core to the docs"),
)
"""A question, and the lines of its answer. A path is below `server/mooring/`, or below the root of the repository."""
WORKERS = """## Workers

What the platform does without being asked. `workers/registry.py` lists the loops; `workers/loop.py` runs each.
"""
LIVE = """## Parts that live as long as the process

Polls of agents and adapters wait in these; one loop claims for all who wait.
"""


@dataclass(frozen=True)
class Function:
    """A top-level function, or a method as `Class.method`."""

    module: str
    name: str

    @property
    def layer(self) -> str:
        return self.module.split(".")[1]

    def __str__(self) -> str:
        return f"`{'/'.join(self.module.split('.')[1:])}.py:{self.name}`"


@dataclass
class Module:
    """The functions of a file, and what its names stand for."""

    functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=dict)
    classes: set[str] = field(default_factory=set)
    aliases: dict[str, str] = field(default_factory=dict)
    """Names for types and tables of functions, such as `Step = Decision[Instance]`, with what they stand for."""
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    """A local name: the module, and the name in it (None for the module itself)."""


@cache
def modules() -> dict[str, Module]:
    """Every module of the server."""
    paths = {
        ".".join(path.relative_to(SERVER).with_suffix("").parts): path for path in (SERVER / "mooring").rglob("*.py")
    }
    return {name: _read(path, set(paths)) for name, path in sorted(paths.items())}


def _read(path: Path, names: set[str]) -> Module:
    module = Module()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            module.functions[node.name] = node
        elif isinstance(node, ast.ClassDef):
            module.classes.add(node.name)
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and not inner.decorator_list:
                    module.functions[f"{node.name}.{inner.name}"] = inner
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            module.aliases[node.targets[0].id] = ast.unparse(node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            module.aliases[node.target.id] = ast.unparse(node.value)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                target = (whole, None) if whole in names else (node.module, alias.name)
                module.imports[alias.asname or alias.name] = target
    return module


@cache
def calls(function: Function) -> tuple[Function, ...]:
    """The functions of the server that this one names, in the order of the source."""
    module = modules()[function.module]
    found: dict[Function, None] = {}
    for node in ast.walk(module.functions[function.name]):
        if isinstance(node, ast.Name):
            source, inner = module.imports.get(node.id, (function.module, node.id))
            found.update(dict.fromkeys(_known(source, inner)))
            for word in re.findall(r"\w+", module.aliases.get(node.id, "")):
                found.update(dict.fromkeys(_known(function.module, word)))
        elif isinstance(node, ast.Attribute):
            found.update(dict.fromkeys(_attribute(function, node)))
    found.pop(function, None)
    return tuple(found)


def _attribute(function: Function, node: ast.Attribute) -> tuple[Function, ...]:
    owner = node.value.id if isinstance(node.value, ast.Name) else None
    if owner == "self" and "." in function.name:
        return _known(function.module, f"{function.name.partition('.')[0]}.{node.attr}")
    source, inner = modules()[function.module].imports.get(owner or "", ("", None))
    if owner is not None and (annotated := _annotation(function, owner)):
        where, name = modules()[function.module].imports.get(annotated, (function.module, annotated))
        return _known(where, f"{name}.{node.attr}")
    if source:
        return _known(source, node.attr) if inner is None else ()
    if isinstance(node.value, ast.Attribute) and node.value.attr in parts():
        module, name = parts()[node.value.attr]
        return _known(module, f"{name}.{node.attr}")
    return ()


def _annotation(function: Function, parameter: str) -> str | None:
    """The class that a parameter of this function is annotated with."""
    arguments = modules()[function.module].functions[function.name].args
    for each in (*arguments.args, *arguments.kwonlyargs):
        if each.arg == parameter and each.annotation is not None:
            return ast.unparse(each.annotation).removesuffix(" | None")
    return None


@cache
def parts() -> dict[str, tuple[str, str]]:
    """What handlers and commands reach through the app's state or its services: the name of a field, and its class."""
    found = {}
    for name, holder in (("mooring.api.request_context", "AppState"), ("mooring.commands.services", "Services")):
        tree = ast.parse((SERVER / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8"))
        fields = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == holder)
        for each in fields:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                source, inner = modules()[name].imports.get(ast.unparse(each.annotation), ("", None))
                if inner is not None:
                    found[each.target.id] = (source, inner)
    return found


def _known(module: str, name: str | None) -> tuple[Function, ...]:
    """The function of this name; of a class all methods, since code that makes one calls them."""
    if name is None or module not in modules():
        return ()
    known = modules()[module]
    if name in known.functions:
        return (Function(module, name),)
    if name in known.classes and module.split(".")[1] == "commands":
        return tuple(_methods(module, name))
    return ()


def reached(start: Function, layer: str, through: tuple[str, ...]) -> Iterator[Function]:
    """Functions of a layer that `start` leads to, by way of functions of the layers `through`."""
    seen, waiting = {start}, [start]
    while waiting:
        for function in calls(waiting.pop(0)):
            if function in seen:
                continue
            seen.add(function)
            if function.layer == layer:
                yield function
            if function.layer in through:
                waiting.append(function)


@cache
def decides(function: Function) -> bool:
    """Whether it is a function of the core that returns a decision and is meant for others."""
    node = modules()[function.module].functions[function.name]
    returned = "" if node.returns is None else ast.unparse(node.returns)
    returned = modules()[function.module].aliases.get(returned.removesuffix(" | None"), returned)
    return (
        function.layer == "core" and any(each in returned for each in DECISIONS) and not function.name.startswith("_")
    )


@cache
def writes(function: Function) -> frozenset[str]:
    """The tables in which this function of the core, or one that it calls, writes a row."""
    tables: set[str] = set()
    for each in (function, *reached(function, "core", ("core",))):
        for node in ast.walk(modules()[each.module].functions[each.name]):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in WRITES and node.args:
                noun = node.args[0]
                if isinstance(noun, ast.Constant) and isinstance(noun.value, str):
                    tables.add(noun.value)
    return frozenset(tables)


@cache
def sql_writes(function: Function) -> frozenset[str]:
    """The tables that this function of the storage writes: by its own text, and by the constants that it names."""
    module = modules()[function.module]
    texts, seen, waiting = [], set(), [function.name]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        node = module.functions.get(name) or (ast.parse(module.aliases[name]) if name in module.aliases else None)
        for each in ast.walk(node) if node is not None else ():
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                texts.append(each.value)
            elif isinstance(each, ast.Name):
                waiting.append(each.id)
    return frozenset(table for text in texts for table in SQL_WRITE.findall(text))


@cache
def kinds(function: Function) -> frozenset[str]:
    """The kinds of writes that this function of the core, or one that it calls, makes: the shape of its decision."""
    found = set()
    for each in (function, *reached(function, "core", ("core",))):
        for node in ast.walk(modules()[each.module].functions[each.name]):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in WRITES:
                found.add(node.func.id)
    return frozenset(found)


def shape_of(route: Route) -> frozenset[str]:
    """The kinds of writes that the decisions behind a route make."""
    decisions = [each for command in commands_of(_handler(route)) for each in decisions_of(command, ("commands",))]
    return frozenset().union(*map(kinds, decisions))


def decisions_of(start: Function, through: tuple[str, ...]) -> list[Function]:
    """The decisions that `start` leads to; one that another of them calls is a part of it, and is left out."""
    found = [each for each in reached(start, "core", through) if decides(each)]
    parts = {inner for each in found for inner in reached(each, "core", ("core",))}
    return [each for each in found if each not in parts] or found


def commands_of(start: Function) -> list[Function]:
    """The functions of `commands` that a handler calls itself."""
    found = [each for each in reached(start, "commands", ("api",)) if not each.name.rpartition(".")[2].startswith("_")]
    found = [each for each in found if ".kernel." not in each.module]
    return [each for each in found if is_live(each) or decisions_of(each, ("commands",))] or found


def _statements(function: Function) -> list[Function]:
    return [each for each in reached(function, "storage", ("commands",)) if ".kernel." not in each.module]


def is_live(function: Function) -> bool:
    """Whether it belongs to what lives as long as the process; such a part uses SQL of its own."""
    return ".live." in function.module


def _cells(functions: Sequence[Function]) -> str:
    return "<br>".join(map(str, functions)) or "—"


def _row(verb: str, start: Function, commands: Sequence[Function]) -> tuple[str, ...]:
    found: dict[Function, None] = {}
    for command in commands:
        found.update(dict.fromkeys(decisions_of(command, ("commands",))))
    tables = set().union(*map(writes, found))
    for command in commands:
        statements: list[Function] = []
        if is_live(command):  # its loops do the work that its callers wait for
            owner = command.name.partition(".")[0]
            statements = [one for each in _known(command.module, owner) for one in _statements(each)]
        elif not found:  # nothing is decided: what is done is a statement of its own
            statements = _statements(command)
        found.update(dict.fromkeys(statements))
        tables.update(*map(sql_writes, statements))
    names = ", ".join(f"`{each}`" for each in sorted(tables)) or "—"
    return verb, str(start), _cells(commands), _cells(list(found)), names


def _handler(route: Route) -> Function:
    return Function(route.handler.__module__, route.handler.__name__)


def _wing(route: Route) -> str:
    return route.handler.__module__.split(".")[3]


def route_rows(routes: Sequence[Route]) -> list[tuple[str, ...]]:
    """A row for each handler that changes something; one that serves several kinds of place has one row."""
    rows: dict[Function, tuple[str, ...]] = {}
    for route in routes:
        start = _handler(route)
        commands = commands_of(start)
        reads = route.method == "GET" and route.status != 303  # a browser that comes back from elsewhere can only GET
        if reads or route.read_only or start in rows or not commands:
            continue
        verb = f"**{route.noun} {route.verb}**<br>`{route.method} {route.path.removeprefix(PREFIX)}`"
        rows[start] = _row(verb, start, commands)
    return list(rows.values())


def worker_rows() -> list[tuple[str, ...]]:
    """A row for each worker that leads to a command with a decision."""
    rows = []
    for name, module in modules().items():
        for owner in sorted(module.classes) if name.startswith("mooring.workers.") else ():
            found: dict[Function, None] = {}
            for method in _methods(name, owner):
                found.update(dict.fromkeys(each for each in calls(method) if each.layer == "commands"))
            commands = [each for each in found if decisions_of(each, ("commands",))]
            if commands:
                rows.append(_row(name.rpartition(".")[2].replace("_", " "), Function(name, owner), commands))
    return rows


def _methods(module: str, owner: str) -> list[Function]:
    return [Function(module, each) for each in modules()[module].functions if each.startswith(f"{owner}.")]


def live_rows() -> list[tuple[str, str]]:
    """A row for each part that lives as long as the process and uses SQL of its own."""
    rows = []
    for name, module in modules().items():
        found: dict[Function, None] = {}
        for function in module.functions if name.startswith("mooring.commands.live.") else ():
            found.update(dict.fromkeys(_statements(Function(name, function))))
        if found:
            rows.append((f"`{'/'.join(name.split('.')[1:])}.py`", _cells(list(found))))
    return rows


def first_rows() -> list[tuple[str, str]]:
    """The questions with their answers; raises ValueError if an answer names something that is not in the source."""
    missing = [place for _, *answer in QUESTIONS for place in re.findall(r"`([^`]+)`", " ".join(answer))]
    missing = [place for place in missing if not _exists(place)]
    if missing:
        raise ValueError(f"QUESTIONS in tools/generate_map.py names what is not in the source: {', '.join(missing)}")
    return [(question, "<br>".join(answer)) for question, *answer in QUESTIONS]


def _exists(place: str) -> bool:
    """Whether the file exists and defines the name after the colon."""
    file, _, name = place.partition(":")
    path = next((each / file for each in (SERVER / "mooring", ROOT) if (each / file).is_file()), None)
    if path is None:
        return False
    module = _read(path, set())
    return not name or name in {*module.functions, *module.classes, *module.aliases}


def page() -> str:
    """The whole page."""
    heads = ("verb", "route", "command", "decision", "tables")
    lines = [HEAD, FIRST, *table(("question", "answer"), first_rows()), ""]
    for wing in sorted(set(map(_wing, ROUTES)), key=WINGS.index):
        rows = route_rows([route for route in ROUTES if _wing(route) == wing])
        if rows:
            lines += [f"## {wing}", "", *table(heads, rows), ""]
    lines += [WORKERS, *table(("worker", "loop", *heads[2:]), worker_rows()), ""]
    lines += [LIVE, *table(("part", "SQL"), live_rows())]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str], path: Path = PAGE) -> int:
    """Write or check the page; the exit code."""
    parser = argparse.ArgumentParser(description="Write docs/map.md from the source of the server.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    wanted = page()
    if parser.parse_args(arguments).check:
        return check(path, wanted)
    path.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
