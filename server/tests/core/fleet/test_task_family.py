"""Task families: what arguments are taken, what is refused, and that the agent carries the same registry."""

from typing import Any

import pytest

from mooring.core.fleet.task_family import FAMILIES, argument_findings, published, result_findings, secret_names
from mooring.core.fleet.task_schema import ARGV_MAX, FILES_MAX
from mooring.core.kernel.json_schema import findings_of
from tests.support.rows import every_row
from tools import generate_task_schemas

DIGEST = "sha256:" + "a" * 64
IMAGE = {"registry": "https://registry.example", "repository": "team/app", "digest": DIGEST}
NETWORK = {"name": "prj_1", "address": "10.77.0.5", "subnet": "10.77.0.0/24"}
TAKEN: dict[str, list[dict[str, Any]]] = {
    "sandbox.create": [
        {"hostname": "one", "network": NETWORK},
        {
            "hostname": "one", "network": {**NETWORK, "machine": True}, "cpus": 0.5, "memory_bytes": 1 << 30,
            "pids": 100, "devices": [{"index": 0, "simulated": True}], "isolation": "bounded",
            "peers": [{"name": "two", "address": "10.77.0.6"}],
        },
    ],
    "sandbox.destroy": [{}],
    "files.write": [
        {"files": [{"path": "/etc/app/.hidden", "content": "ä", "mode": "0640", "user": "app"}]},
        {"files": [{"path": "/key", "secret": "key"}, {"path": "/data", "directory": True}]},
        {"files": [{"path": "/blob", "content_base64": "AAE="}]},
    ],
    "process.run": [
        {"argv": ["/bin/sh", "-c", "exit 0"]},
        {
            "argv": ["true", ""], "environment": {"A": "b"}, "environment_secrets": {"B": "key"}, "user": "app",
            "directory": "/", "timeout_seconds": 5, "stdin": "line\n",
        },
    ],
    "service.start": [
        {"name": "web", "argv": ["serve"], "restart": {"policy": "always", "backoff_seconds": 1, "limit": 3},
         "endpoint": {"name": "http", "port": 80, "protocol": "http"}},
    ],
    "service.stop": [{"name": "web"}, {"name": "web", "kill": "owner", "grace_seconds": 5}],
    "service.inspect": [{"name": "web"}],
    "log.read": [
        {"name": "web", "kind": "service"},
        {"name": "web", "kind": "container", "offset": 7, "max_bytes": 262_144, "wait_seconds": 20, "log": "0a"},
    ],
    "container.launch": [
        {"name": "web", "image": IMAGE},
        {"name": "web", "image": {**IMAGE, "secret": "pull"}, "argv": [], "user": "1000:1000",
         "mounts": [{"volume": "data", "target": "/data", "read_only": True}], "temporary": ["/tmp"], "pids": 64},
    ],
    "container.control": [{"name": "web", "action": "restart"}],
    "container.remove": [{"name": "web"}],
    "artifact.fetch": [
        {"kind": "blob", "digest": DIGEST, "source": "https://example.org/x", "size": 7, "destination": "/models/x"},
    ],
    "probe.tcp": [{"port": 80, "attempts": 3, "interval_seconds": 0.1, "timeout_seconds": 1}],
    "probe.http": [{"port": 80, "path": "/healthz?deep=1", "status": [200, 204]}, {"port": 80}],
    "probe.exec": [{"argv": ["check"]}],
    "teardown.verify": [{"close": True}, {}],
    "tunnel.open": [{"relay": "https://relay.example:7421", "ports": [80]}],
}  # fmt: skip
PATHS = (
    "relative", "", "/", "/../etc", "/etc/../../root", "/a/./b", "/a//b", "/a/", "/a\x00b", "/a\nb", "/\u202ea", "/ä",
    "/a b", "/" + "x" * 300, "/x" * 600, "~/x", "\\x", "/...", "/..a",
)  # fmt: skip


@every_row("type_", FAMILIES)
def test_good_arguments_are_taken(type_: str) -> None:
    for arguments in TAKEN[type_]:
        assert argument_findings(FAMILIES[type_], arguments) == (), arguments


@every_row("type_", FAMILIES)
def test_what_is_not_known_is_refused(type_: str) -> None:
    for arguments in TAKEN[type_]:
        assert argument_findings(FAMILIES[type_], {**arguments, "shell": "rm -rf /"})
    assert result_findings(FAMILIES[type_], {"unheard_of": 1})


@every_row("path", PATHS)
def test_a_path_that_could_leave_the_sandbox_or_surprise_is_refused(path: str) -> None:
    assert argument_findings(FAMILIES["files.write"], {"files": [{"path": path, "content": ""}]})
    mounted = {"name": "web", "image": IMAGE, "mounts": [{"volume": "data", "target": path}]}
    assert argument_findings(FAMILIES["container.launch"], mounted)


@every_row(
    "argv",
    ["true", [], [""], ["true", 1], ["a\x00"], ["x"] * (ARGV_MAX + 1), ["x" * 16_385], ["x" * 16_000] * 20, None],
)
def test_a_program_is_a_bounded_list_of_arguments(argv: object) -> None:
    for type_ in ("process.run", "probe.exec"):
        assert argument_findings(FAMILIES[type_], {"argv": argv})


@every_row(
    ("type_", "arguments"),
    [
        ("files.write", {"files": []}),
        ("files.write", {"files": [{"path": f"/f{number}", "content": ""} for number in range(FILES_MAX + 1)]}),
        ("files.write", {"files": [{"path": "/a", "content": "", "secret": "key"}]}),
        ("files.write", {"files": [{"path": "/a"}]}),
        ("files.write", {"files": [{"path": "/a", "content": ""}, {"path": "/a", "content": ""}]}),
        ("files.write", {"files": [{"path": "/a", "content": "", "mode": "4755"}]}),
        ("files.write", {"files": [{"path": "/a", "content": "\x00"}]}),
        ("process.run", {"argv": ["true"], "environment": {"LD PRELOAD": "x"}}),
        ("process.run", {"argv": ["true"], "environment": {"A": "x"}, "environment_secrets": {"A": "key"}}),
        ("process.run", {"argv": ["true"], "timeout_seconds": float("inf")}),
        ("process.run", {"argv": ["true"], "user": "root; rm"}),
        ("container.launch", {"name": "web", "image": {**IMAGE, "digest": "latest"}}),
        ("container.launch", {"name": "web", "image": {**IMAGE, "repository": "../team"}}),
        ("container.launch", {"name": "web", "image": IMAGE, "user": "0:0"}),
        ("container.launch", {"name": "web", "image": IMAGE, "privileged": True}),
        ("probe.tcp", {"port": 0}),
        ("probe.tcp", {"port": True}),
        ("probe.http", {"port": 80, "path": "http://elsewhere/"}),
        ("teardown.verify", {"close": False}),
        ("sandbox.create", {"hostname": "One", "network": NETWORK}),
        ("sandbox.create", {"hostname": "one", "network": {"name": "x"}}),
    ],
)
def test_what_is_out_of_bounds_is_refused(type_: str, arguments: dict[str, Any]) -> None:
    assert argument_findings(FAMILIES[type_], arguments)


def test_arguments_that_are_nested_too_deeply_are_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"files": deep}
    assert [each.rule for each in argument_findings(FAMILIES["files.write"], deep)] == ["too_deep"]


def test_the_secrets_that_arguments_name_are_found_wherever_they_stand() -> None:
    files = {"files": [{"path": "/a", "secret": "one"}, {"path": "/b", "content": ""}]}
    assert secret_names(files) == {"one"}
    assert secret_names({"image": {"secret": "two"}, "environment_secrets": {"A": "three"}}) == {"two", "three"}
    assert secret_names({"secret": "four"}) == {"four"}
    assert secret_names({}) == frozenset()


def test_every_schema_is_of_the_part_of_json_schema_that_is_checked() -> None:
    for family in FAMILIES.values():
        list(findings_of({}, family.arguments))
        list(findings_of({}, family.result))
        assert family.arguments["additionalProperties"] is False
        assert family.result["additionalProperties"] is False


def test_the_agent_carries_the_registry_that_is_published(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate_task_schemas.main(["--check"]) == 0, capsys.readouterr().err[:2000]
    assert set(published()["types"]) == set(FAMILIES)
