"""A task is trusted only as the platform signed it, for this node, now."""

import json
import time

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agent.tests.support.fake_platform import ALLOCATION, CREATE, NODE, OTHER_ALLOCATION, FakePlatform
from mooring_agent.control_plane.messages import ENVELOPE_MAX, Envelope, decode, encode
from mooring_agent.tasks.arguments import read_arguments
from mooring_agent.tasks.verifier import TaskRefused
from tests.support.rows import every_row


def refusal(fake_platform: FakePlatform, envelope: Envelope) -> str:
    """Why the node refuses an envelope."""
    with pytest.raises(TaskRefused) as caught:
        fake_platform.verifier.verify(envelope, time.time())
    return caught.value.reason


def test_a_signed_task_is_believed_as_it_was_signed() -> None:
    task = FakePlatform().task("sandbox.create", CREATE)
    assert (task.node_id, task.owner, task.arguments) == (NODE, ALLOCATION, CREATE)


def test_a_changed_byte_is_no_longer_the_platforms() -> None:
    fake_platform = FakePlatform()
    envelope = fake_platform.sign(fake_platform.payload("sandbox.create", CREATE))
    changed = decode(envelope.payload).replace(b'"box"', b'"fox"')
    assert refusal(fake_platform, Envelope(encode(changed), envelope.key_id, envelope.signature)) == "bad_signature"


def test_another_key_counts_for_nothing_under_the_pinned_name() -> None:
    fake_platform = FakePlatform()
    forger = FakePlatform(Ed25519PrivateKey.generate())
    assert refusal(fake_platform, forger.sign(forger.payload("sandbox.destroy", {}))) == "bad_signature"


def test_a_key_that_is_not_pinned_is_not_asked() -> None:
    fake_platform = FakePlatform()
    other = FakePlatform(fake_platform.key, "key-2")
    assert refusal(fake_platform, other.sign(other.payload("sandbox.destroy", {}))) == "bad_signature"


def test_a_signature_for_another_use_is_not_one_for_a_task() -> None:
    fake_platform = FakePlatform()
    data = json.dumps(fake_platform.payload("sandbox.destroy", {})).encode()
    envelope = Envelope(
        encode(data), fake_platform.key_id, encode(fake_platform.key.sign(b"mooring-receipt-v1\n" + data))
    )
    assert refusal(fake_platform, envelope) == "bad_signature"


@every_row(
    ("change", "reason"),
    [
        ({"node_id": "nod_02hzzzzzzzzzzzzzzzzzzzzzzz"}, "wrong_node"),
        ({"audience": "https://elsewhere.example"}, "wrong_audience"),
        ({"expires_at": 1_000.0}, "expired"),
        ({"issued_at": 9e12, "expires_at": 9e12}, "expired"),
        ({"v": 2}, "unknown_type"),
        ({"owner": OTHER_ALLOCATION}, "bad_arguments"),
        ({"owner": ALLOCATION + "/../x"}, "bad_arguments"),
        ({"owner": ALLOCATION + "/A\u0000"}, "bad_arguments"),
        ({"fence": 0}, "bad_arguments"),
        ({"task_id": "../../etc"}, "bad_arguments"),
        ({"arguments": "text"}, "bad_arguments"),
    ],
)
def test_what_is_aimed_wrong_is_refused_by_its_reason(change: dict[str, object], reason: str) -> None:
    fake_platform = FakePlatform()
    assert (
        refusal(fake_platform, fake_platform.sign({**fake_platform.payload("sandbox.destroy", {}), **change})) == reason
    )


def test_a_payload_that_is_not_a_task_is_refused() -> None:
    fake_platform = FakePlatform()
    assert refusal(fake_platform, fake_platform.sign(b"[]")) == "bad_arguments"
    assert refusal(fake_platform, fake_platform.sign(b"\xff\xfe")) == "bad_arguments"
    assert refusal(fake_platform, Envelope("%%%", fake_platform.key_id, "%%%")) == "bad_signature"
    assert refusal(fake_platform, Envelope("A" * (ENVELOPE_MAX + 1), fake_platform.key_id, "AA")) == "bad_arguments"


@every_row(
    ("type", "arguments"),
    [
        ("shell.run", {}),
        ("process.run", {"argv": "rm -rf /"}),
        ("process.run", {"argv": []}),
        ("process.run", {"argv": ["a\x00b"]}),
        ("process.run", {"argv": ["x"] * 1_000}),
        ("process.run", {"argv": ["x"], "user": "root; id"}),
        ("process.run", {"argv": ["x"], "unknown": 1}),
        ("process.run", {"argv": ["x"], "environment": {"A=B": "c"}}),
        ("process.run", {"argv": ["x"], "timeout_seconds": -1}),
        ("process.run", {"argv": ["x"], "stdin": "x" * 1_200_000}),
        ("files.write", {"files": [{"path": "relative", "content": ""}]}),
        ("files.write", {"files": [{"path": "/a\x00", "content": ""}]}),
        ("files.write", {"files": [{"path": "/a", "content": "x" * 1_200_000}]}),
        ("files.write", {"files": [{"path": "/a", "content": "", "mode": "99"}]}),
        ("container.launch", {"name": "a", "image": {"registry": "http://r", "repository": "a", "digest": "latest"}}),
        (
            "container.launch",
            {
                "name": "--privileged",
                "image": {"registry": "http://r", "repository": "a", "digest": "sha256:" + "0" * 64},
            },
        ),
        (
            "container.launch",
            {
                "name": "a",
                "user": "0:0",
                "image": {"registry": "http://r", "repository": "a", "digest": "sha256:" + "0" * 64},
            },
        ),
        ("sandbox.create", {**CREATE, "hostname": "-x"}),
        ("sandbox.create", {**CREATE, "memory_bytes": 1 << 60}),
        ("probe.http", {"port": 0}),
        ("probe.http", {"port": 80, "path": "/\r\nHost: x"}),
    ],
)
def test_arguments_outside_of_the_family_are_refused_before_anything_is_done(type: str, arguments: object) -> None:
    fake_platform = FakePlatform()
    task = fake_platform.task(type, arguments)  # type: ignore[arg-type]
    with pytest.raises(TaskRefused) as caught:
        read_arguments(task)
    assert caught.value.reason in ("bad_arguments", "unknown_type")
