"""Task families: the closed registry of what a node can do.

A family has a name, a schema of its arguments and a schema of its result. A family with `closes` ends an owner: once
such a task exists, no other task is created for the owner, and its result counts only with a receipt. The registry is
published at `/api/v1/schemas/tasks`; the agent ships a generated copy and refuses everything else.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from mooring.core.fleet.task_schema import (
    ADAPTER_ARGUMENTS,
    ARGUMENTS,
    ARGUMENTS_BYTES_MAX,
    LAST_LINES_MAX,
    LINE_LENGTH_MAX,
    LOG_BYTES_MAX,
    OUTPUT_BYTES_MAX,
    RESULT_BYTES_MAX,
    RESULTS,
)
from mooring.core.kernel.finding import Finding, below, bounded, error
from mooring.core.kernel.json_schema import depth_exceeds, findings_of

REGISTRY_VERSION: Final = 1
DEPTH_MAX: Final = 8
ARGV_BYTES_MAX: Final = 128 * 1024


class FailureCode(StrEnum):
    """Why a task failed, as its agent reports; the list is closed."""

    REFUSED = "refused"
    INTERRUPTED = "interrupted"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    EXITED = "exited"
    NOT_FOUND = "not_found"
    DIGEST_MISMATCH = "digest_mismatch"
    IMAGE_PULL_FAILED = "image_pull_failed"
    NO_PROGRESS = "no_progress"
    TOO_LARGE = "too_large"
    PATH_REFUSED = "path_refused"
    PERMISSION_DENIED = "permission_denied"
    PROBE_FAILED = "probe_failed"
    CAPACITY = "capacity"
    HOST_ERROR = "host_error"


class RefusalReason(StrEnum):
    """Why an agent rejects a task before it has any effect; the list is closed."""

    BAD_SIGNATURE = "bad_signature"
    WRONG_NODE = "wrong_node"
    WRONG_AUDIENCE = "wrong_audience"
    EXPIRED = "expired"
    REPLAYED = "replayed"
    UNKNOWN_TYPE = "unknown_type"
    BAD_ARGUMENTS = "bad_arguments"
    OWNER_CLOSED = "owner_closed"


@dataclass(frozen=True, slots=True)
class TaskFamily:
    type: str
    meaning: str
    arguments: Mapping[str, Any]
    result: Mapping[str, Any]
    closes: bool = False  # it ends an owner, and its result has a receipt


_MEANINGS: Final[Mapping[str, str]] = {
    "sandbox.create": "create the sandbox of an allocation",
    "sandbox.destroy": "remove everything of an allocation, check that nothing is left, and answer with a receipt",
    "files.write": "write files below the sandbox's root",
    "process.run": "run a program to its end",
    "service.start": "start a supervised program",
    "service.stop": "stop a supervised program",
    "service.inspect": "report the state of a supervised program",
    "log.read": "read a part of the log of a supervised program or a container",
    "container.launch": "start a container, by the digest of its image",
    "container.control": "stop, start, restart or inspect a container",
    "container.remove": "remove a container",
    "artifact.fetch": "fetch an artifact, verify it, and store it in the node's cache",
    "probe.tcp": "connect to a port inside the sandbox",
    "probe.http": "send an HTTP request to a port inside the sandbox",
    "probe.exec": "run a health check program inside the sandbox",
    "teardown.verify": "remove everything of one owner, check that nothing is left, and answer with a receipt",
    "tunnel.open": "connect to the relay, so that a user can reach ports of the sandbox or run one command in it",
}
_CONTENT_FIELDS: Final = ("content", "content_base64", "secret", "directory")
CLOSING: Final = ("sandbox.destroy", "teardown.verify")
WHOLE_ALLOCATION: Final = ("sandbox.create", "sandbox.destroy")
"""Types that concern the whole allocation, never a label within it."""
PLATFORM_TASKS: Final = frozenset((*CLOSING, *WHOLE_ALLOCATION))
"""The platform's own tasks: allocations and instances wait for the end of these and of no others."""

FAMILIES: Final[Mapping[str, TaskFamily]] = MappingProxyType(
    {
        name: TaskFamily(name, meaning, ARGUMENTS[name], RESULTS[name], name in CLOSING)
        for name, meaning in _MEANINGS.items()
    }
)
if not set(FAMILIES) == set(ARGUMENTS) == set(RESULTS):
    raise ValueError("every task family needs a meaning, a schema of its arguments and one of its result")


def published_for_adapters() -> dict[str, Any]:
    """The registry with the arguments as adapters give them, for `/api/v1/schemas/tasks` and the kit's copy."""
    registry = published()
    for name, family in registry["types"].items():
        family["adapter_arguments"] = dict(ADAPTER_ARGUMENTS.get(name, family["arguments"]))
    return registry


def published() -> dict[str, Any]:
    """The registry as plain values, for the agent's copy."""
    return {
        "version": REGISTRY_VERSION,
        "limits": {
            "arguments_bytes": ARGUMENTS_BYTES_MAX,
            "result_bytes": RESULT_BYTES_MAX,
            "output_bytes": OUTPUT_BYTES_MAX,
            "log_bytes": LOG_BYTES_MAX,
            "argv_bytes": ARGV_BYTES_MAX,
            "depth": DEPTH_MAX,
            "last_lines": LAST_LINES_MAX,
            "line_length": LINE_LENGTH_MAX,
        },
        "failure_codes": [each.value for each in FailureCode],
        "refusal_reasons": [each.value for each in RefusalReason],
        "types": {
            name: {
                "meaning": family.meaning,
                "closes": family.closes,
                "arguments": dict(family.arguments),
                "result": dict(family.result),
            }
            for name, family in FAMILIES.items()
        },
    }


def argument_findings(family: TaskFamily, arguments: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Everything that is wrong with a task's arguments: by the schema, then by rules that a schema cannot express."""
    if depth_exceeds(arguments, DEPTH_MAX):
        return (error("", "too_deep", "it is nested too deeply", "use fewer levels"),)
    wrong = bounded(findings_of(dict(arguments), family.arguments))
    return wrong or bounded(_rules(family, arguments))


def result_findings(family: TaskFamily, result: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Everything that is wrong with the result that an agent reports."""
    if depth_exceeds(result, DEPTH_MAX):
        return (error("", "too_deep", "it is nested too deeply", "use fewer levels"),)
    return bounded(findings_of(dict(result), family.result))


def secret_names(arguments: Mapping[str, Any]) -> frozenset[str]:
    named = {arguments.get("secret"), *arguments.get("environment_secrets", {}).values()}
    named |= {each.get("secret") for each in (arguments.get("image", {}), *arguments.get("files", ()))}
    return frozenset(name for name in named if name is not None)


def _rules(family: TaskFamily, arguments: Mapping[str, Any]) -> Iterator[Finding]:
    argv = arguments.get("argv")
    if argv:
        if not argv[0]:
            yield error("/argv/0", "empty", "the program has no name", "name the program")
        if sum(len(each.encode()) + 1 for each in argv) > ARGV_BYTES_MAX:
            yield error("/argv", "too_large", "the arguments are too long", f"at most {ARGV_BYTES_MAX} bytes together")
    twice = sorted(arguments.get("environment", {}).keys() & arguments.get("environment_secrets", {}).keys())
    for name in twice:
        pointer = below("/environment_secrets", name)
        yield error(pointer, "twice", f"{name} is also in `environment`", "give it once")
    if family.type == "files.write":
        yield from _file_rules(arguments["files"])


def _file_rules(files: list[dict[str, Any]]) -> Iterator[Finding]:
    seen: set[str] = set()
    for index, each in enumerate(files):
        pointer = below("/files", index)
        given = [name for name in _CONTENT_FIELDS if each.get(name) not in (None, False)]
        if len(given) != 1:
            reason = f"it has {' and '.join(given)}" if given else "it has no content"
            yield error(pointer, "one_of", reason, f"give one of {', '.join(_CONTENT_FIELDS)}")
        if each["path"] in seen:
            yield error(below(pointer, "path"), "twice", "this path is in the list already", "write it once")
        seen.add(each["path"])
