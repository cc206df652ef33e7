"""The rules of style that a machine can check, over every Python file of the project.

Each rule is a function over one parsed file that yields (line, message); adding a rule is adding a function
to RULES. There is no list of exceptions by file and no inline skip. A rule says itself where it holds: the
core's rules in the core, the rule about transactions in the server. Files whose first line says "# Generated"
are nobody's handwriting and are not read.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("server", "sdk", "cli", "agent", "adapters", "tools", "bench", "tests", "conftest.py")

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
PARAMETERS_MAX = 5
VAGUE_WORDS = {"util", "utils", "helper", "helpers", "common", "misc", "base", "manager", "managers", "stuff"}
IMPURE_CALLS = {
    "now",
    "utcnow",
    "today",
    "uuid1",
    "uuid4",
    "random",
    "urandom",
    "getenv",
    "open",
    "print",
    "input",
}
TRANSACTION_FILES = {"unit_of_work.py", "migrate.py"}
"""The one write path; and the migrations, which change the schema before there is a row to write."""
TRANSACTION_SQL = re.compile(r"\s*(BEGIN|START TRANSACTION|COMMIT|END)(\s+[A-Z ,]+)?\s*;?\s*$")
APP_NAMES = re.compile(r"(?<![a-z])(slurm|rke2|ray|jupyter|vllm|kubernetes)(?![a-z])", re.IGNORECASE)

Problem = tuple[int, str]
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """One file: its path from the root of the project, its text and its syntax."""

    path: PurePosixPath
    text: str
    tree: ast.Module

    def is_in(self, place: str) -> bool:
        """Whether the file lies below this directory of the project."""
        return self.path.is_relative_to(place)

    @property
    def is_test(self) -> bool:
        return "tests" in self.path.parts

    def functions(self) -> Iterator[Function]:
        """Every function and method, nested ones too."""
        for node in ast.walk(self.tree):
            if isinstance(node, Function):
                yield node


def file_is_short(source: Source) -> Iterator[Problem]:
    lines = len(source.text.splitlines())
    if lines > FILE_LINES_MAX:
        yield FILE_LINES_MAX, f"the file has {lines} lines; split it by noun (at most {FILE_LINES_MAX})"


def file_says_what_it_is(source: Source) -> Iterator[Problem]:
    if not ast.get_docstring(source.tree):
        yield 1, "the module has no docstring"


def names_say_something(source: Source) -> Iterator[Problem]:
    for part in source.path.with_suffix("").parts:
        if vague := VAGUE_WORDS.intersection(part.lower().split("_")):
            yield 1, f"'{part}' names no thing of the domain ({', '.join(sorted(vague))})"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef):
            words = {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]+", node.name)}
            if vague := VAGUE_WORDS & words:
                yield (
                    node.lineno,
                    f"class {node.name} names no thing of the domain ({', '.join(sorted(vague))})",
                )


def functions_are_small(source: Source) -> Iterator[Problem]:
    for function in source.functions():
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield function.lineno, f"{function.name}() has {lines} lines (at most {FUNCTION_LINES_MAX})"


def functions_take_few_parameters(source: Source) -> Iterator[Problem]:
    for function in source.functions():
        if source.is_test and _is_called_by_pytest(function):
            continue
        arguments = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        count = len([name for name in arguments if name not in ("self", "cls")])
        if count > PARAMETERS_MAX:
            yield (
                function.lineno,
                f"{function.name}() takes {count} positional parameters (at most {PARAMETERS_MAX})",
            )


def _is_called_by_pytest(function: Function) -> bool:
    """pytest passes fixtures by name, so their number is no burden on a caller."""
    decorators = {ast.unparse(each).split("(")[0] for each in function.decorator_list}
    return function.name.startswith("test_") or "pytest.fixture" in decorators


def core_is_deterministic(source: Source) -> Iterator[Problem]:
    if not source.is_in("server/mooring/core"):
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            yield node.lineno, "the core does no I/O: nothing in it is asynchronous"
        elif isinstance(node, ast.Global | ast.Nonlocal):
            yield node.lineno, "the core keeps no state between calls"
        elif isinstance(node, ast.Call) and (name := _called_name(node)) in IMPURE_CALLS:
            yield node.lineno, f"{name}() in the core; take it as an argument"


def one_place_writes(source: Source) -> Iterator[Problem]:
    if not source.is_in("server/mooring") or source.path.name in TRANSACTION_FILES:
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            name = _called_name(node)
            if name == "commit" or (name == "transaction" and not _is_read_only(node)):
                yield (
                    node.lineno,
                    f"{name}(): only storage/kernel/unit_of_work.py opens a write transaction or commits",
                )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and TRANSACTION_SQL.match(node.value):
            yield node.lineno, "only storage/kernel/unit_of_work.py opens a write transaction or commits"


def _is_read_only(call: ast.Call) -> bool:
    return any(
        word.arg == "readonly" and isinstance(word.value, ast.Constant) and word.value.value is True
        for word in call.keywords
    )


def _called_name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def imports_are_at_the_top(source: Source) -> Iterator[Problem]:
    if source.is_in("cli") or source.is_in("sdk"):
        return  # they import lazily, to start fast
    for function in source.functions():
        for node in ast.walk(function):
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield node.lineno, "an import inside a function hides a cycle; break the cycle"


def the_server_names_no_app(source: Source) -> Iterator[Problem]:
    if not source.is_in("server/mooring"):
        return
    for number, line in enumerate(source.text.splitlines(), start=1):
        if match := APP_NAMES.search(line):
            yield number, f"'{match[1]}' is known by an adapter, not by the server"


RULES: tuple[Callable[[Source], Iterator[Problem]], ...] = (
    file_is_short,
    file_says_what_it_is,
    names_say_something,
    functions_are_small,
    functions_take_few_parameters,
    core_is_deterministic,
    one_place_writes,
    imports_are_at_the_top,
    the_server_names_no_app,
)


def files(root: Path) -> Iterator[Path]:
    """Every Python file of the project's parts."""
    for part in PARTS:
        path = root / part
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def problems(path: PurePosixPath, text: str) -> list[str]:
    """What the rules say about one file."""
    if text.startswith("# Generated"):
        return []
    source = Source(path, text, ast.parse(text, filename=str(path)))
    found = sorted({problem for rule in RULES for problem in rule(source)})
    return [f"{path}:{line}: {message}" for line, message in found]


def main() -> int:
    paths = list(files(ROOT))
    found = []
    for path in paths:
        found += problems(PurePosixPath(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    print("\n".join(found) or f"{len(paths)} files are tidy")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
