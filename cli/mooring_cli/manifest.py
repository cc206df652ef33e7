"""`mooring manifest`: create a manifest, lint it, and explain its fields.

A manifest is a file in YAML or JSON. The server lints it, since it has the rules; it gets the values and answers with
JSON pointers. Here each pointer becomes a line: the file is parsed into nodes that know their position, and the
pointer is followed through them.
"""

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import yaml

from mooring_cli import failures, output
from mooring_cli.invocation import current
from mooring_cli.main import MooringGroup

FILE = "mooring.yaml"
BYTES_MAX = 1_048_576
KINDS = ("oci", "launchable", "controller")
HEAD = """\
# The manifest of one version of an app. `mooring manifest explain` says what each field means,
# `mooring manifest lint` finds mistakes, `mooring schema manifest` and docs/manifest.md have the whole.
manifest_version: 1
app: {slug}
version: 0.1.0
artifact_kind: {kind}
artifacts:
  # The digest of the registered artifact; a tag is not accepted.
  main: sha256:0000000000000000000000000000000000000000000000000000000000000000
"""
OPERATED = """\
# What the adapter that runs it may do in a project; an admin agrees to it.
required_actions: [runtime.claim, runtime.report, task.create]
"""
PROFILE = """\
runtime_profile:
  image: main
  ports:
    - name: web
      port: 8080
  probes:
    readiness:
      kind: http
      port: web
      path: /ready
endpoints:
  - name: web
    protocol: http
    port: web
"""
CONTROLLER = """\
required_actions: [runtime.claim, runtime.report]
components:
  - key: worker
    min_count: 1
    max_count: 4
lifecycle:
  upgrade: {strategy: rolling, from_versions: [">=0.1.0"]}
  rollback: {supported: false}
  delete: {data: removed}
runbook:
  summary: what runs where
  entries:
    - symptom: a worker does not join
      steps: look at its log
"""
BODIES = {
    "oci": OPERATED + "runtime_profile:\n  image: main\n",
    "launchable": OPERATED + PROFILE,
    "controller": CONTROLLER,
}


class _Loader(yaml.SafeLoader):
    """YAML with only the types of JSON: a date stays text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class TextPosition(NamedTuple):
    """A position in the text; line and column start at 1."""

    line: int
    column: int


class ManifestFile(NamedTuple):
    """A parsed manifest: its values and their positions."""

    values: Any
    root: yaml.Node
    doubled: tuple[tuple[str, TextPosition], ...]

    def place(self, pointer: str) -> TextPosition:
        """The position of a pointer, or of the nearest enclosing value."""
        node = self.root
        mark = node.start_mark
        for step in pointer.split("/")[1:]:
            found = _below(node, step.replace("~1", "/").replace("~0", "~"))
            if found is None:
                break
            mark, node = found
        return TextPosition(mark.line + 1, mark.column + 1)


def read(path: str) -> ManifestFile:
    """Read the manifest in a file; an error in YAML is reported with its line."""
    name = "stdin" if path == "-" else path
    text = sys.stdin.read() if path == "-" else _text(path)
    if len(text.encode()) > BYTES_MAX:
        raise click.ClickException(f"{name} has more than {BYTES_MAX} bytes")
    try:
        for event in yaml.parse(text, Loader=_Loader):
            if isinstance(event, yaml.AliasEvent):
                line = 1 + (event.start_mark.line if event.start_mark else 0)
                raise click.ClickException(f"{name}:{line}: aliases are not supported; repeat the value")
        root = yaml.compose(text, Loader=_Loader)
        values = yaml.load(text, Loader=_Loader)  # a safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise click.ClickException(f"{where}: {error.problem or error.context}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise click.ClickException(f"{name} is not YAML: {error}") from error
    if root is None:
        raise click.ClickException(f"{name} is empty; `mooring manifest init` writes a first one")
    return ManifestFile(_json(values, name), root, tuple(_doubled(root)))


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{path} cannot be read: {error}") from error


def _json(value: Any, name: str) -> Any:
    """The values, if JSON can represent them."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else _key(key): _json(each, name) for key, each in value.items()}
    if isinstance(value, list):
        return [_json(each, name) for each in value]
    if isinstance(value, bool | str | int) or value is None or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise click.ClickException(f"{name} has a value that JSON does not have: {value!r}")


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _below(node: yaml.Node, step: str) -> tuple[yaml.Mark, yaml.Node] | None:
    """The child node, and where its key or item starts."""
    if isinstance(node, yaml.MappingNode):
        for key, value in reversed(node.value):
            if key.value == step:
                return key.start_mark, value
    if isinstance(node, yaml.SequenceNode) and step.isdigit() and int(step) < len(node.value):
        item = node.value[int(step)]
        return item.start_mark, item
    return None


def _doubled(node: yaml.Node, pointer: str = "") -> Iterator[tuple[str, TextPosition]]:
    """Duplicate keys: YAML would silently use the last."""
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            below = f"{pointer}/{key.value}"
            if key.value in seen:
                yield below, TextPosition(key.start_mark.line + 1, key.start_mark.column + 1)
            seen.add(key.value)
            yield from _doubled(value, below)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _doubled(item, f"{pointer}/{index}")


@click.group(cls=MooringGroup, no_args_is_help=True)
def manifest() -> None:
    """Create, lint and explain the manifest of an app version."""


@manifest.command()
@click.argument("slug")
@click.option(
    "--kind", type=click.Choice(KINDS), default="launchable", help="The kind of the app. [default: launchable]"
)
@click.option("--file", "path", default=FILE, metavar="FILE", help=f"Where to write it. [default: {FILE}]")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def init(*, slug: str, kind: str, path: str, force: bool) -> None:
    """Write a first manifest for the app SLUG."""
    text = HEAD.format(slug=slug, kind=kind) + BODIES[kind]
    if path == "-":
        click.echo(text, nl=False)
        return
    try:
        with open(path, "w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise click.UsageError(f"{path} exists already; use --force to overwrite it") from error
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error}") from error
    output.note(f"Wrote {path}. Fill in the digest, then run: mooring manifest lint {path}")


@manifest.command()
@click.argument("path", default=FILE, metavar="[FILE]")
@click.option("--app", "app_slug", metavar="SLUG", help="The app of the manifest.")
@click.option("--category", metavar="WORD", help="The category of that app.")
def lint(*, path: str, app_slug: str | None, category: str | None) -> int:
    """Find mistakes in a manifest; each is printed with its line, the reason and a fix.

    The exit code is 0 when nothing prevents staging, and 1 otherwise.
    """
    invocation = current()
    document = read(path)
    asked = {"manifest": document.values, "app_slug": app_slug, "category": category}
    body = {name: value for name, value in asked.items() if value is not None or name == "manifest"}
    answer: dict[str, Any] = invocation.call("lint_manifest", body=body)
    found = [
        {**each, "line": place.line, "column": place.column}
        for each in answer["findings"]
        for place in (document.place(each["pointer"]),)
    ]
    found += [
        {
            "pointer": pointer,
            "rule": "key_doubled",
            "severity": "error",
            "reason": "duplicate key",
            "fix": "remove one of them",
            "why": None,
            "line": place.line,
            "column": place.column,
        }
        for pointer, place in document.doubled
    ]
    found.sort(key=lambda each: (each["line"], each["column"]))
    wrong = sum(each["severity"] == "error" for each in found)
    if invocation.output != "table":
        output.show(invocation.output, found)
    else:
        for each in found:
            click.echo(output.plain(line_of(path, each)))
        output.note(f"{wrong} errors, {len(found) - wrong} warnings." if found else "No problems found.")
    return failures.USAGE if wrong else failures.DONE


def line_of(path: str, finding: dict[str, Any]) -> str:
    """A finding in the format of compilers, so that editors can jump to it."""
    where = f"{path}:{finding['line']}:{finding['column']}"
    pointer = finding["pointer"] or "/"
    return f"{where}: {finding['severity']}: {pointer}: {finding['reason']}; {finding['fix']} [{finding['rule']}]"


@manifest.command()
@click.argument("word", required=False)
def explain(*, word: str | None) -> None:
    """Explain a field by its path, such as `runtime_profile.ports`, or a rule of the lint, such as `app_other`."""
    invocation = current()
    schema: dict[str, Any] = invocation.public_call("get_manifest_schema")
    rules: dict[str, str] = schema.get("x-mooring-rules", {})
    if word in rules:
        output.show(invocation.output, {"rule": word, "why": rules[word]})
        return
    steps = [each for each in (word or "").replace("/", ".").split(".") if each]
    here = schema
    for index, step in enumerate(steps):
        inside = fields_of(here)
        if step not in inside and not step.isdigit():
            listed = ", ".join(inside) or "no fields"
            place = ".".join(steps[:index]) or "a manifest"
            raise click.UsageError(f"{place} has no {step!r}; available: {listed}")
        here = inside.get(step, here)
    output.show(invocation.output, described(".".join(steps) or "manifest", here))


def fields_of(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The fields of an object, or of the items of a list."""
    inner = schema.get("items", schema)
    fields: dict[str, dict[str, Any]] = inner.get("properties", {}) if isinstance(inner, dict) else {}
    return fields


def described(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """What a schema says, for a reader."""
    inner = schema.get("items", schema)
    required = set(inner.get("required", ()))
    said: dict[str, Any] = {"field": name, "meaning": schema.get("description", ""), "type": schema.get("type", "any")}
    for key in ("const", "enum", "default", "pattern", "minimum", "maximum", "maxLength", "maxItems"):
        if key in schema:
            said[key] = schema[key]
    fields = fields_of(schema)
    if fields:
        said["fields"] = [f"{each}{' (required)' if each in required else ''}" for each in fields]
    return json.loads(json.dumps(said))  # type: ignore[no-any-return]
