"""Receipts verified offline: valid ones, forged ones, and what the command says about both."""

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.support.rows import every_row

Run = Callable[..., Result]
KINDS = (
    "processes",
    "namespaces",
    "mounts",
    "links",
    "sockets",
    "ports",
    "cgroups",
    "files",
    "containers",
    "secrets",
)


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class SigningNode:
    """A node that signs receipts."""

    def __init__(self) -> None:
        self.key = Ed25519PrivateKey.generate()
        self.bodies: list[bytes] = []

    def sign(self, **other: Any) -> bytes:
        """Sign one more receipt; returns its body."""
        previous = hashlib.sha256(self.bodies[-1]).hexdigest() if self.bodies else "0" * 64
        document = {
            "v": 1,
            "node_id": "nod_1",
            "sequence": len(self.bodies) + 1,
            "previous": previous,
            "task_id": "tsk_1",
            "task_type": "sandbox.destroy",
            "tenant_id": "ten_1",
            "project_id": "prj_1",
            "allocation_id": "alc_1",
            "owner": "alc_1",
            "host": "namespace",
            "looked_at": 1_700_000_000,
            "looked": dict.fromkeys(KINDS, 3),
            "not_looked": [],
            "found": [],
            "removed": [],
            "remaining": [],
            "truncated": False,
            "clean": True,
        } | other
        self.bodies.append(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())
        return self.bodies[-1]

    def bundle(self, *numbers: int) -> dict[str, Any]:
        """The bundle of the first of these receipts; the others in the chain belong to other owners."""
        public = self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        signed = [
            {
                "id": f"rcp_{number}",
                "body": encoded(self.bodies[number - 1]),
                "signature": encoded(self.key.sign(b"mooring-receipt-v1\n" + self.bodies[number - 1])),
            }
            for number in numbers
        ]
        chain = [
            {"sequence": number, "digest": hashlib.sha256(body).hexdigest()}
            for number, body in enumerate(self.bodies, 1)
        ]
        return {
            "v": 1,
            "receipt_id": f"rcp_{numbers[0]}",
            "node_id": "nod_1",
            "node_name": "one",
            "host": "namespace",
            "signing_key": encoded(public),
            "receipts": signed,
            "chain": chain,
        }


@pytest.fixture
def node() -> SigningNode:
    made = SigningNode()
    for _ in range(4):
        made.sign()
    return made


@pytest.fixture
def verify(run: Run, tmp_path: Path) -> Callable[..., Result]:
    def verify(bundle: object, *options: str) -> Result:
        path = tmp_path / "bundle.json"
        path.write_text(json.dumps(bundle), encoding="utf-8")
        return run("receipts", "verify", str(path), *options)

    return verify


def test_a_good_bundle_says_what_it_proves_and_what_it_does_not(verify: Run, node: SigningNode) -> None:
    result = verify(node.bundle(2, 3))
    assert result.exit_code == 0
    assert "rcp_2: verified, clean" in result.stdout
    assert "number 2 in the chain of node nod_1" in result.stdout
    assert "nothing is left: it is clean" in result.stdout
    assert "1 links of the chain are proven by both of their receipts" in result.stdout
    assert "1 links of the chain lead to receipts of others" in result.stdout
    shown = json.loads(verify(node.bundle(2, 3), "-o", "json").stdout)
    assert (shown["verified"], shown["clean"], shown["sequence"]) == (True, True, 2)


def test_the_first_receipt_of_a_chain_needs_no_other(verify: Run, node: SigningNode) -> None:
    assert verify(node.bundle(1)).exit_code == 0


def test_leftovers_are_printed_and_can_be_required_absent(verify: Run, node: SigningNode) -> None:
    node.sign(clean=False, remaining=[{"kind": "mounts", "name": "/x"}])
    result = verify(node.bundle(5))
    assert (result.exit_code, "NOT clean" in result.stdout, "left: mounts /x" in result.stdout) == (0, True, True)
    assert verify(node.bundle(5), "--require-clean").exit_code == 1


def test_a_simulated_host_is_reported_as_simulated(verify: Run, node: SigningNode) -> None:
    node.sign(host="simulated")
    assert "The host is simulated" in verify(node.bundle(5)).stdout


def bent(bundle: dict[str, Any], **other: Any) -> dict[str, Any]:
    return bundle | other


@every_row(
    ("bend", "why"),
    [
        (lambda b: bent(b, signing_key=encoded(b"k" * 32)), "did not sign"),
        (lambda b: bent(b, node_id="nod_2"), "a receipt of node nod_1"),
        (lambda b: bent(b, receipt_id="rcp_9"), "was exported for is missing"),
        (lambda b: bent(b, v=2), "version 2"),
        (lambda b: bent(b, chain=b["chain"][:1] + b["chain"][2:]), "gap"),
        (lambda b: bent(b, chain=[]), "another receipt at 2"),
        (lambda b: bent(b, chain=[{**b["chain"][0], "digest": "1" * 64}, *b["chain"][1:]]), "does not follow"),
        (lambda b: bent(b, receipts=[{**b["receipts"][0], "body": encoded(b"{}")}]), "did not sign"),
        (lambda b: bent(b, receipts=[]), "0 receipts"),
        (lambda b: bent(b, receipts="x"), "not a bundle"),
        (lambda b: {}, "not a bundle"),
    ],
)
def test_a_bent_bundle_proves_nothing(
    verify: Run, node: SigningNode, bend: Callable[[dict[str, Any]], dict[str, Any]], why: str
) -> None:
    result = verify(bend(node.bundle(2)))
    assert result.exit_code == 1
    assert "NOT VERIFIED" in result.stderr
    assert why in result.stderr


@pytest.mark.parametrize(
    "lie", [{"remaining": [{"kind": "files", "name": "/x"}]}, {"looked": {}}, {"not_looked": ["ports"]}]
)
def test_a_node_that_says_clean_and_is_not_is_not_believed(verify: Run, node: SigningNode, lie: dict[str, Any]) -> None:
    node.sign(**lie)
    result = verify(node.bundle(5))
    assert (result.exit_code, "it says clean" in result.stderr) == (1, True)


def test_a_missing_file_or_invalid_json_is_reported(run: Run, tmp_path: Path) -> None:
    assert run("receipts", "verify", str(tmp_path / "none")).exit_code == 1
    path = tmp_path / "text"
    path.write_text("[1, 2", encoding="utf-8")
    assert "is not JSON" in run("receipts", "verify", str(path)).stderr
