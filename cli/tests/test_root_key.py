"""The root key: made and used offline, and it signs only what it shows."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import Result
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from cli.tests.support.fake_platform import FakeCliPlatform
from tests.support.rows import every_row

Run = Callable[..., Result]
FIELDS = {"audience": "mooring:key_1", "epoch": 7, "key_id": "key_2", "public_key": "p" * 43}
DOCUMENT = "mooring-root-v1\nmooring:key_1\n7\nkey_2\n" + "p" * 43


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def test_the_signature_is_the_root_keys_over_the_document(run: Run, tmp_path: Path, platform: FakeCliPlatform) -> None:
    key, prepared = tmp_path / "root.pem", tmp_path / "prepared.json"
    public = run("root-key", "create", "--private-key-file", str(key)).stdout.strip()
    assert key.stat().st_mode & 0o777 == 0o600
    assert run("root-key", "create", "--private-key-file", str(key)).exit_code != 0, "a key is never overwritten"
    prepared.write_text(json.dumps(FIELDS | {"document": DOCUMENT}))
    signed = json.loads(run("root-key", "sign", str(prepared), "--private-key-file", str(key)).stdout)
    assert signed["key_id"] == "key_2"
    Ed25519PublicKey.from_public_bytes(decoded(public)).verify(decoded(signed["root_signature"]), DOCUMENT.encode())
    assert platform.asked == []


@every_row(
    ("content", "said"),
    [
        (json.dumps(FIELDS | {"document": DOCUMENT.replace("key_2", "key_3")}), "not signed"),
        (json.dumps(FIELDS), "is not the output of"),
        ("[]", "is not the output of"),
        ("{", "is not JSON"),
    ],
)
def test_nothing_else_is_signed(run: Run, tmp_path: Path, content: Any, said: str) -> None:
    key, prepared = tmp_path / "root.pem", tmp_path / "prepared.json"
    run("root-key", "create", "--private-key-file", str(key))
    prepared.write_text(content)
    refused = run("root-key", "sign", str(prepared), "--private-key-file", str(key))
    assert refused.exit_code != 0
    assert said in refused.stderr
    assert "root_signature" not in refused.stdout
    key.unlink()
