"""The agent's types and the published schemas agree on every document."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec

import mooring_agent
from agent.tests.support.fake_platform import FakePlatform
from mooring_agent.tasks.arguments import ARGUMENTS, read_arguments
from mooring_agent.tasks.verifier import TaskRefused
from tests.support.rows import every_row

PUBLISHED: dict[str, Any] = json.loads(
    (Path(mooring_agent.__file__).parent / "tasks" / "task_schemas.json").read_text()
)["types"]
DIGEST = "sha256:" + "0a" * 32
PROGRAM = {
    "argv": ["python3", "-c", "print(1)"],
    "environment": {"PATH": "/bin", "_x9": ""},
    "environment_secrets": {"TOKEN": "hub"},
    "user": "app",
    "directory": "/srv",
}
ENDPOINT = {"name": "web", "port": 8080, "protocol": "http"}
PROBE = {"attempts": 3, "interval_seconds": 0.5, "timeout_seconds": 5}
FULL: dict[str, dict[str, Any]] = {
    "sandbox.create": {
        "hostname": "box-1",
        "cpus": 1.5,
        "memory_bytes": 1 << 30,
        "pids": 100,
        "devices": [{"index": 0, "simulated": True}],
        "network": {"name": "prj-1", "address": "10.77.0.2", "subnet": "10.77.0.0/24", "machine": False},
        "peers": [{"name": "two", "address": "10.77.0.3"}],
        "isolation": "bounded",
    },
    "sandbox.destroy": {},
    "files.write": {
        "files": [
            {"path": "/etc/app.conf", "mode": "0640", "user": "1000:1000", "content": "a\nb"},
            {"path": "/srv/.key", "content_base64": "aGk="},
            {"path": "/srv/secret", "secret": "hub"},
            {"path": "/var/lib/app", "directory": True},
        ]
    },
    "process.run": {**PROGRAM, "timeout_seconds": 10, "stdin": "hi", "output_bytes": 4_096},
    "service.start": {
        **PROGRAM,
        "name": "web",
        "restart": {"policy": "always", "backoff_seconds": 1, "limit": 3},
        "endpoint": ENDPOINT,
    },
    "service.stop": {"name": "web", "kill": "owner", "grace_seconds": 0},
    "service.inspect": {"name": "web"},
    "log.read": {
        "name": "web",
        "kind": "service",
        "offset": 0,
        "tail_lines": 10,
        "max_bytes": 4_096,
        "wait_seconds": 1.5,
        "log": "0a1b",
    },
    "container.launch": {
        "name": "web",
        "image": {
            "registry": "https://hub.example:5000",
            "repository": "apps/web",
            "digest": DIGEST,
            "secret": "hub",
            "private": True,
        },
        "argv": ["serve"],
        "environment": {"A": "b"},
        "environment_secrets": {"TOKEN": "hub"},
        "user": "1000:1000",
        "mounts": [{"volume": "data", "target": "/data", "read_only": True}],
        "temporary": ["/tmp"],
        "cpus": 1,
        "memory_bytes": 1 << 28,
        "pids": 64,
        "endpoint": ENDPOINT,
    },
    "container.control": {"name": "web", "action": "stop", "grace_seconds": 1.5},
    "container.remove": {"name": "web"},
    "artifact.fetch": {
        "kind": "blob",
        "digest": DIGEST,
        "source": "https://files.example/a",
        "size": 10,
        "destination": "/srv/a",
        "secret": "hub",
        "private": False,
        "no_progress_seconds": 60,
    },
    "probe.tcp": {"port": 80, **PROBE},
    "probe.http": {"port": 80, "path": "/a?b=c", "status": [200, 204], **PROBE},
    "probe.exec": {"argv": ["true"], "environment": {"A": "b"}, "user": "root", "output_bytes": 0, **PROBE},
    "teardown.verify": {"close": True},
    "tunnel.open": {
        "relay": "https://relay.example",
        "ports": [80, 443],
        "argv": ["sh"],
        "user": "app",
        "directory": "/home/app",
        "environment": {"A": "b"},
        "terminal": False,
        "columns": 80,
        "rows": 24,
        "idle_seconds": 60,
    },
}
NUMBERS: tuple[Any, ...] = (
    -1, 0, 0.001, 0.01, 0.04, 0.05, 0.1, 0.5, 1, 1.0, 1.5, 2.0, 7, 8, 15, 16, 99, 100, 300, 301, 599, 600, 1_000,
    1_001, 1_023, 1_024, 3_600, 3_601, 4_096, 4_097, 10_000, 10_001, 65_535, 65_536, 65_537, 86_400, 86_401, 1 << 22,
    (1 << 22) + 1, (8 << 20) - 1, 8 << 20, (16 << 20) - 1, 16 << 20, 1 << 50, (1 << 50) + 1,
)  # fmt: skip
TEXTS: tuple[str, ...] = (
    "/a:b", "/a,b", "/a=b",
    "", "a", "A", "0", "a\n", "\n", "a\x00", "é", "日本", "-a", "a-", "a.b", "a_b", "_a", "a b", "a" * 32, "a" * 33,
    "a" * 63, "a" * 64, "x" * 128, "x" * 129, "x" * 16_384, "x" * 16_385, "x" * 32_768, "x" * 32_769, "x" * 65_536,
    "x" * 65_537, "x" * 262_144, "x" * 262_145, "/", "//", "/a", "/a/", "/a//b", "/..", "/a/../b", "/.", "/.a",
    "/..a", "/a b", "/é", "/a\n", "/" + "a" * 255, "/" + "a" * 256, "/a" * 64, "/a" * 65, "/" + "a" * 999, "0644",
    "644", "4755", "0888", "64", "1000", "1000:1000", "0:0", "1:0", "100000:1", "root:root", "1.2.3.4", "1.2.3.4\n",
    "1.2.3", "1.2.3.4/24", "1.2.3.4/240", "999.999.999.999", DIGEST, DIGEST + "\n", DIGEST.upper(), "sha256:00",
    "http", "tcp", "always", "main", "stop", "oci", "bounded", "none", "https://a", "https://a:1",
    "http://a.b-c:65535", "https://a/", "https://a:123456", "ftp://a", "https://a b", "https://é", "a/b", "a//b",
    "a/B", "a__b/c--d", "a" * 256, "/?q=%20&x", "/#f", "aGk=", "aGk", "a===", "aG k",
)  # fmt: skip
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [1], ["a"], [None], {"a": "b"}, {"1a": "b"}, {"A": 1}, ["a"] * 17)


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of everything within a document."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        yield from places(each, (*path, name))


def changed(document: dict[str, Any], path: tuple[str | int, ...], *put: Any) -> dict[str, Any]:
    """The document with another value there, or without it."""
    copied = copy.deepcopy(document)
    place: Any = copied
    for step in path[:-1]:
        place = place[step]
    if put:
        place[path[-1]] = put[0]
    else:
        del place[path[-1]]
    return copied


def documents(type: str) -> Iterator[dict[str, Any]]:
    """The full document, and each one that differs from it in one place."""
    full = FULL[type]
    yield full
    yield {}
    yield {**full, "unknown": 1}
    for path in places(full):
        yield changed(full, path)
        for value in (*NUMBERS, *TEXTS, *OTHERS):
            yield changed(full, path, value)
        there: Any = full
        for step in path:
            there = there[step]
        if isinstance(there, dict):
            yield changed(full, (*path, "unknown"), "a")
            yield changed(full, (*path, "line\n"), "a")
            yield changed(full, path, {f"N{number}": "a" for number in range(200)})
            yield changed(full, path, {f"N{number}": "a" for number in range(201)})
        if isinstance(there, list) and there:
            yield from (changed(full, path, there[:1] * count) for count in (0, 1, 16, 17, 32, 33, 64, 65, 256, 257))


def is_taken(task: Any, document: dict[str, Any]) -> bool:
    """Whether the agent accepts a task with these arguments."""
    try:
        read_arguments(msgspec.structs.replace(task, arguments=document))
    except TaskRefused as refused:
        return refused.reason != "bad_arguments"
    return True


@every_row("type", sorted(FULL))
def test_the_agent_and_the_schema_agree(type: str) -> None:
    schema, task = jsonschema_rs.validator_for(PUBLISHED[type]["arguments"]), FakePlatform().task(type)
    assert is_taken(task, FULL[type])
    outcomes = []
    for document in documents(type):
        outcomes.append(schema.is_valid(document))
        assert is_taken(task, document) == outcomes[-1], json.dumps(document)[:2_000]
    assert set(outcomes) == {True, False}


def test_every_family_is_compared() -> None:
    assert set(FULL) == set(PUBLISHED) == set(ARGUMENTS)


@every_row("path", ["/a:rw", "/a,exec", "/tmp:/etc"])
def test_a_temporary_place_has_no_options_of_its_own(path: str) -> None:
    odd = {**FULL["container.launch"], "temporary": [path]}
    assert not is_taken(FakePlatform().task("container.launch"), odd)
