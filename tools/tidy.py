"""The rules of style that a machine can check, over every Python file of the project.

Each rule is a function over one parsed file that yields (line, message); adding a rule is adding a function
to RULES. There is no inline skip, and no list of exceptions by file but one: this file and its test must quote the
words that they refuse. A rule says itself where it holds: the core's rules in the core, the rule about transactions
in the server. Files whose first line says "# Generated" are nobody's handwriting and are not read.
"""

import ast
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path, PurePosixPath
from typing import TypeGuard

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
MARKED_WORDS = re.compile("told|anew|whoever|heeds", re.IGNORECASE)
WORD_EXCEPTIONS = {"tools/tidy.py", "tools/tests/test_tidy.py"}
"""The only files that may use the marked words: those that refuse them."""
SLEEPERS = {"asyncio", "time", "anyio"}
TABLE_CALLS = {"parametrize", "every_row"}
AGENT = "agent/mooring_agent"
BEFORE_TENANTS = (
    f"{AGENT}/sandbox_init",
    f"{AGENT}/hosts/namespace/root_filesystem.py",
    f"{AGENT}/kernel/hostile_files.py",
)
"""What builds a root before a tenant has seen it, and the one module that everything else uses."""
HOSTILE_FILES = (
    f"{AGENT}/supervisor",
    f"{AGENT}/hosts/log_parts.py",
    f"{AGENT}/hosts/safe_paths.py",
    f"{AGENT}/hosts/namespace/owner_files.py",
)
"""Where the agent opens what a tenant may have put there."""
PATH_METHODS = {"read_text", "read_bytes", "write_text", "write_bytes"}
SUBJECT_LENGTH_MAX = 72
SUBJECTS_SINCE = "a3a4963"
"""The commit after which the rule about subjects holds."""

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


Rule = Callable[[Source], Iterator[Problem]]


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


def words_are_plain(source: Source) -> Iterator[Problem]:
    if str(source.path) in WORD_EXCEPTIONS:
        return
    for number, line in enumerate(source.text.splitlines(), start=1):
        if match := MARKED_WORDS.search(line):
            yield number, f"'{match[0]}' is a word of the old dialect; say it as you would to a colleague"


def parameters_have_names(source: Source) -> Iterator[Problem]:
    for function in source.functions():
        if source.is_test and _is_called_by_pytest(function):
            continue
        arguments = function.args
        for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if each.annotation is not None and any(map(_is_mixed_tuple, ast.walk(each.annotation))):
                yield each.lineno, f"{each.arg} is an anonymous tuple of unlike things; name its members"


def _is_mixed_tuple(node: ast.AST) -> bool:
    if not (
        isinstance(node, ast.Subscript) and ast.unparse(node.value) == "tuple" and isinstance(node.slice, ast.Tuple)
    ):
        return False
    members = [ast.unparse(each) for each in node.slice.elts]
    return "..." not in members and len(set(members)) > 1


def only_tables_keep_their_form(source: Source) -> Iterator[Problem]:
    skips = [number for number, comment in _comments(source.text) if comment.replace(" ", "") == "#fmt:skip"]
    if not skips:
        return
    tables = [range(node.lineno, (node.end_lineno or node.lineno) + 1) for node in _tables(source.tree)]
    for number in skips:
        if not any(number in lines for lines in tables):
            yield number, "'# fmt: skip' outside a table: let ruff format it"


def _tables(tree: ast.Module) -> Iterator[ast.expr | ast.stmt]:
    """Assignments of modules and classes that show a list, tuple, dict or set; and the rows of a test."""
    places: list[ast.Module | ast.ClassDef] = [tree]
    places += (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    for statement in (each for place in places for each in place.body):
        if isinstance(statement, ast.Assign | ast.AnnAssign) and any(
            isinstance(node, ast.List | ast.Tuple | ast.Dict | ast.Set) for node in ast.walk(statement)
        ):
            yield statement
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called_name(node) in TABLE_CALLS:
            yield node


def _comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def tests_do_not_sleep(source: Source) -> Iterator[Problem]:
    if not source.is_test or "support" in source.path.parts:
        return
    for node in ast.walk(source.tree):
        if _is_sleep(node):
            yield node.lineno, "a test that sleeps: wait with until(condition, bound) of tests/support/waiting.py"


def _is_sleep(node: ast.AST) -> TypeGuard[ast.Attribute | ast.ImportFrom]:
    if isinstance(node, ast.Attribute):
        return node.attr == "sleep" and ast.unparse(node.value) in SLEEPERS
    return (
        isinstance(node, ast.ImportFrom)
        and node.module in SLEEPERS
        and any(each.name == "sleep" for each in node.names)
    )


def modes_change_by_descriptor(source: Source) -> Iterator[Problem]:
    if not source.is_in(AGENT) or any(source.is_in(place) for place in BEFORE_TENANTS):
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and _called_name(node) in {"chmod", "chown", "lchown"}:
            yield node.lineno, "root may follow a tenant's link here; use fchmod, fchown or hostile_files"


def hostile_files_are_opened_safely(source: Source) -> Iterator[Problem]:
    if not any(source.is_in(place) for place in HOSTILE_FILES):
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and _follows_links(node, source):
            yield node.lineno, "a tenant may have put a link or a FIFO here; open it by hostile_files"


def _follows_links(call: ast.Call, source: Source) -> bool:
    """Whether a call opens a path without O_NOFOLLOW or O_PATH, which may stand in a constant of the module."""
    if isinstance(call.func, ast.Name):
        return call.func.id == "open"
    if not isinstance(call.func, ast.Attribute) or call.func.attr in PATH_METHODS:
        return isinstance(call.func, ast.Attribute)
    is_open = call.func.attr == "open" and isinstance(call.func.value, ast.Name) and call.func.value.id == "os"
    if not is_open or ast.unparse(call.args[0]).lstrip("f").startswith(("'/dev/null'", "'/proc/")):
        return False  # the kernel's own names
    constants = {ast.unparse(each.target): each.value for each in source.tree.body if isinstance(each, ast.AnnAssign)}
    flags = ast.unparse(call.args[1])
    for name, value in constants.items():
        if value is not None and name in flags:
            flags += ast.unparse(value)
    return "O_NOFOLLOW" not in flags and "O_PATH" not in flags


RULES: tuple[Rule, ...] = (
    file_is_short,
    file_says_what_it_is,
    names_say_something,
    functions_are_small,
    functions_take_few_parameters,
    core_is_deterministic,
    one_place_writes,
    imports_are_at_the_top,
    the_server_names_no_app,
    words_are_plain,
    parameters_have_names,
    only_tables_keep_their_form,
    tests_do_not_sleep,
    modes_change_by_descriptor,
    hostile_files_are_opened_safely,
)


def long_subjects(root: Path) -> list[str]:
    """The commits since the rule began whose subject is too long; none where the history is not there."""
    command = ["git", "log", "--no-merges", "--format=%h %s", f"{SUBJECTS_SINCE}..HEAD"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return []
    subjects = (line.partition(" ") for line in done.stdout.splitlines())
    return [
        f"commit {commit}: the subject has {len(subject)} characters (at most {SUBJECT_LENGTH_MAX}): {subject}"
        for commit, _, subject in subjects
        if len(subject) > SUBJECT_LENGTH_MAX
    ]


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


def problems_of_tree(root: Path) -> list[str]:
    """What the rules say about every file."""
    found = []
    for path in files(root):
        found += problems(PurePosixPath(path.relative_to(root)), path.read_text(encoding="utf-8"))
    return found


def main() -> int:
    found = [*problems_of_tree(ROOT), *long_subjects(ROOT)]
    print("\n".join(found) or f"{len(list(files(ROOT)))} files are tidy")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
