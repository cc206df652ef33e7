"""What `mooring apps from-image` makes of an image's config, which may come from anywhere."""

import json
from typing import Any

import pytest
import yaml

from mooring_cli.image_config import CONFIG_BYTES_MAX, ImageRefused, read_config
from mooring_cli.image_manifest import manifest_text, new_version, slug_of, with_image
from tests.support.rows import every_row

DIGEST, OTHER = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
SECOND = 1_000_000_000


def content(**config: Any) -> bytes:
    return json.dumps({"os": "linux", "architecture": "amd64", "config": config}).encode()


def made(port: int | None = None, protocol: str = "http", path: str | None = None, **config: Any) -> dict[str, Any]:
    """The manifest that is made of a config."""
    read = read_config(content(**config))
    text = manifest_text("welcome", "0.1.0", DIGEST, read, port=port, protocol=protocol, path=path)
    return dict(yaml.safe_load(text))


def test_a_whole_config_becomes_a_profile() -> None:
    health = {"Test": ["CMD-SHELL", "curl -f http://localhost:8080/ready || exit 1"], "Interval": 7 * SECOND}
    manifest = made(
        ExposedPorts={"9090/udp": {}, "8080/tcp": {}},
        Entrypoint=["/bin/server"],
        Cmd=["--port", "8080"],
        User="1001:1002",
        Healthcheck=health | {"Timeout": 2 * SECOND, "Retries": 4, "StartPeriod": 9 * SECOND},
    )
    assert manifest["runtime_profile"] == {
        "image": "main",
        "command": ["--port", "8080"],
        "user": "1001:1002",
        "ports": [{"name": "page", "port": 8080}, {"name": "udp-9090", "port": 9090, "protocol": "udp"}],
        "probes": {
            "readiness": {
                "kind": "http",
                "port": "page",
                "path": "/ready",
                "period_seconds": 7,
                "timeout_seconds": 2,
                "failures_max": 4,
                "initial_delay_seconds": 9,
            }
        },
    }
    assert manifest["endpoints"] == [{"name": "page", "protocol": "http", "port": "page"}]


@every_row(
    ("exposed", "ports", "noted"),
    [
        (None, [], False),
        ({}, [], False),
        ({"80": {}}, [80], False),
        ({"80/tcp": {}, "80": {}}, [80], False),
        ({"443/tcp": {}, "80/tcp": {}}, [80, 443], False),
        ({"0/tcp": {}}, [], True),
        ({"65536/tcp": {}}, [], True),
        ({"80/sctp": {}}, [], True),
        ({"8000-8010/tcp": {}}, [], True),
        ({"-1/tcp": {}}, [], True),
        ({"٨٠/tcp": {}}, [], True),
        ({"80/tcp\n": {}}, [], True),
        ({"9" * 10_000: {}}, [], True),
        ({"$(reboot)": {}, "80/tcp": {}}, [80], True),
        (["80/tcp"], [], True),
        ("80/tcp", [], True),
        ({f"{number}/tcp": {} for number in range(1, 200)}, list(range(1, 33)), True),
    ],
)
def test_ports(exposed: Any, ports: list[int], noted: bool) -> None:
    read = read_config(content(ExposedPorts=exposed, Cmd=["run"], User="1000"))
    assert [each.port for each in read.ports] == ports
    assert bool(read.notes) == noted
    assert all(len(each) < 300 and each.isascii() for each in read.notes)


@every_row(
    ("user", "expected"),
    [
        ("1001", "1001:1001"),
        ("1001:1002", "1001:1002"),
        ("", None),
        (None, None),
        ("root", None),
        ("0", None),
        ("0:0", None),
        ("1001:0", None),
        ("nginx", None),
        ("100000", None),
        ("1000:1000;id", None),
        ({"id": 1}, None),
    ],
)
def test_users(user: Any, expected: str | None) -> None:
    read = read_config(content(User=user, Cmd=["run"]))
    assert read.numeric_user == expected
    assert bool(read.notes) == (expected is None), "a user that is not taken is named"


@every_row(
    ("words", "expected"),
    [
        (["a", "b"], ("a", "b")),
        (None, ()),
        ([], ()),
        ("a b", ()),
        (["a", 1], ()),
        (["a\0b"], ()),
        (["a"] * 129, ()),
        (["a" * 4_097], ()),
    ],
)
def test_arguments(words: Any, expected: tuple[str, ...]) -> None:
    assert read_config(content(Cmd=words, Entrypoint=["/bin/server"])).arguments == expected


@every_row(
    ("test", "probe"),
    [
        (["CMD", "wget", "-q", "http://127.0.0.1:8080/"], {"kind": "http", "port": "page", "path": "/"}),
        (["CMD-SHELL", "curl -f http://localhost:8080"], {"kind": "http", "port": "page", "path": "/"}),
        (["CMD-SHELL", "curl http://localhost:9999/x"], {"kind": "tcp", "port": "page"}),
        (["CMD-SHELL", "curl http://evil.example:8080/x"], {"kind": "tcp", "port": "page"}),
        (["CMD", "pg_isready"], {"kind": "tcp", "port": "page"}),
        (["NONE"], {"kind": "tcp", "port": "page"}),
        ([], {"kind": "tcp", "port": "page"}),
        ("curl", {"kind": "tcp", "port": "page"}),
        ([1, 2], {"kind": "tcp", "port": "page"}),
    ],
)
def test_health_checks(test: Any, probe: dict[str, Any]) -> None:
    manifest = made(ExposedPorts={"8080/tcp": {}}, Healthcheck={"Test": test, "Interval": -1, "Retries": "many"})
    found = manifest["runtime_profile"]["probes"]["readiness"]
    assert {name: found[name] for name in ("kind", "port", "path") if name in found} == probe
    assert found.get("period_seconds", 10) == 10, "a value that makes no sense has the default"


def test_an_image_without_a_port_has_no_page_and_no_probe() -> None:
    manifest = made(Cmd=["run"])
    assert "endpoints" not in manifest
    assert manifest["runtime_profile"] == {"image": "main", "command": ["run"]}
    assert made(port=7000)["endpoints"][0]["port"] == "page"
    assert made(port=7000, path="/up")["runtime_profile"]["probes"]["readiness"]["path"] == "/up"
    assert made(port=7000, protocol="tcp")["endpoints"][0]["protocol"] == "tcp"


@every_row(
    ("bytes_", "said"),
    [
        (b"{" + b" " * CONFIG_BYTES_MAX + b"}", "more than"),
        (b"not json", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not an object"),
        (b'{"config": []}', "neither Entrypoint nor Cmd"),
        (b'{"config": [1]}', "not an object"),
        (b'{"os": "windows"}', "nodes run linux"),
        (b"\xff\xfe", "not JSON"),
    ],
)
def test_a_config_that_cannot_be_used_says_why(bytes_: bytes, said: str) -> None:
    try:
        notes = "; ".join(read_config(bytes_).notes)
    except ImageRefused as refusal:
        notes = refusal.message
    assert said in notes


@every_row(
    ("reference", "slug"),
    [
        ("localhost/welcome", "welcome"),
        ("registry.example:5000/team/My_App:1.2", "my-app"),
        (f"registry.example/app-x@{DIGEST}", "app-x"),
        ("./build/layout/", "layout"),
        ("x", None),
        ("../..", None),
        ("9lives", None),
    ],
)
def test_slugs(reference: str, slug: str | None) -> None:
    if slug is None:
        with pytest.raises(ImageRefused, match="--slug"):
            slug_of(reference)
    else:
        assert slug_of(reference) == slug


def test_another_image_changes_digest_and_version_and_nothing_else() -> None:
    text = manifest_text("welcome", "0.1.9", DIGEST, read_config(content()), port=80, protocol="http", path=None)
    text = text.replace("artifact_kind", "# mine\nartifact_kind")
    after = with_image(text, "main", OTHER, new_version("0.1.9"))
    assert after == text.replace(DIGEST, OTHER).replace("version: 0.1.9", "version: 0.1.10")
    with pytest.raises(ImageRefused, match="yourself"):
        with_image("version: 1.0.0\nartifacts: {main: x}\n", "main", OTHER, "1.0.1")
    with pytest.raises(ImageRefused, match="--version"):
        new_version("1.0.0-rc.1")
