"""Generate Ed25519 key pairs: the private key goes to a new file that only its owner can read.

The file is written before the public key is sent, so that the server never knows a key that is lost here. If the
server refuses the key, the file is deleted.
"""

import base64
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mooring_cli import output

if TYPE_CHECKING:
    from mooring_cli.invocation import Invocation


@dataclass(frozen=True, slots=True)
class KeyPair:
    """The file of the private key, and the public key in base64."""

    file: Path
    public: str


@contextmanager
def offered(file: str | None) -> Iterator[KeyPair | None]:
    """A new key pair, if a file for it is given; the file is deleted if the server refuses the key."""
    if file is None:
        yield None
        return
    from mooring_sdk import MooringError

    pair = generate(Path(file))
    try:
        yield pair
    except MooringError as error:
        if error.status is not None and error.status < 500:
            pair.file.unlink(missing_ok=True)
        else:
            output.note(f"It is unknown whether the server accepted the key; kept {pair.file}.")
        raise
    except click.ClickException:
        pair.file.unlink(missing_ok=True)
        raise


def generate(file: Path) -> KeyPair:
    """Generate a key pair; an existing file is never overwritten."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    private = Ed25519PrivateKey.generate()
    content = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise click.UsageError(f"{file} exists already, and a key is never overwritten") from error
    except OSError as error:
        raise click.UsageError(f"{file} cannot be written: {error.strerror}") from error
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    public = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return KeyPair(file, base64.b64encode(public).decode("ascii"))


def with_key_id(
    invocation: "Invocation", pair: KeyPair, path: dict[str, str], answer: dict[str, Any]
) -> dict[str, Any]:
    """The answer with the id of the key: of a new account it is not in the answer of the API."""
    if "service_account_id" in answer or "id" not in answer:
        return answer
    key_id = _key_id(invocation, path, str(answer["id"]), pair)
    return answer if key_id is None else {**answer, "key_id": key_id}


def explain(invocation: "Invocation", pair: KeyPair, answer: dict[str, Any]) -> None:
    """Print how to use the key."""
    if "id" not in answer:  # of the platform's workload adapter
        output.note(f"The private key is only in {pair.file}. To use it:")
        output.note(f"  mooring-workload --url {invocation.url} --key-file {pair.file.absolute()}")
        return
    account = answer.get("service_account_id") or answer["id"]
    key_id = answer["id"] if "service_account_id" in answer else answer.get("key_id")
    if key_id is None:
        return
    output.note(f"The private key is only in {pair.file}. To use it:")
    output.note(f"  export MOORING_URL={invocation.url}")
    output.note(f"  export MOORING_SERVICE_ACCOUNT={account}")
    output.note(f"  export MOORING_SERVICE_ACCOUNT_KEY_ID={key_id}")
    output.note(f"  export MOORING_SERVICE_ACCOUNT_KEY_FILE={pair.file.absolute()}")


def _key_id(invocation: "Invocation", path: dict[str, str], account: str, pair: KeyPair) -> str | None:
    if "project_id" not in path:
        return None
    where = {"project_id": path["project_id"], "service_account_id": account}
    listed = invocation.call("list_service_account_keys", where)["items"]
    return next((str(each["id"]) for each in listed if each["public_key"] == pair.public), None)
