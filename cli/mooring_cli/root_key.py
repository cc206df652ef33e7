"""`mooring root-key`: the operator's offline key. Both commands run without a server and never contact one.

The root key signs one kind of statement: from this epoch on, this platform signs tasks with this key and no other. Keep
its file on a machine that is not connected to the platform.
"""

import base64
import json
from pathlib import Path
from typing import Any

import click

from mooring_cli import keys, output
from mooring_cli.invocation import current
from mooring_cli.main import MooringGroup

BYTES_MAX = 65_536
FILE = click.option("--private-key-file", required=True, metavar="FILE", help="File of the private key.")


@click.group(cls=MooringGroup, name="root-key")
def root_key() -> None:
    """Create the offline root key, and sign with it."""


@root_key.command()
@FILE
def create(*, private_key_file: str) -> int:
    """Create a root key: the private half goes to FILE, the public half is printed.

    Set the public half as `MOORING_ROOT_KEY` of the platform. Keep copies of FILE offline; nodes never accept another
    root key.
    """
    pair = keys.generate(Path(private_key_file))
    public = base64.urlsafe_b64encode(base64.b64decode(pair.public)).decode().rstrip("=")
    output.note(f"The private key is only in {pair.file}. Keep it offline, with a copy. On the platform:")
    output.note(f"  export MOORING_ROOT_KEY={public}")
    _show({"public_key": public})
    return 0


@root_key.command()
@FILE
@click.argument("path", metavar="PREPARED")
def sign(*, private_key_file: str, path: str) -> int:
    """Sign a prepared key, and print what `mooring task-signing-keys install -f` takes.

    PREPARED is the output of `mooring task-signing-keys prepare -o json`. Compare the key id that is printed with the
    one that the platform showed.
    """
    prepared = _prepared(Path(path))
    names = ("audience", "epoch", "key_id", "public_key")
    document = "\n".join(("mooring-root-v1", *(str(prepared[name]) for name in names)))
    if prepared["document"] != document:
        raise click.ClickException(f"{path}: `document` says something other than the fields beside it; not signed")
    signature = _private(Path(private_key_file)).sign(document.encode())
    output.note(f"Signed {prepared['key_id']} for {prepared['audience']}, epoch {prepared['epoch']}.")
    encoded = base64.urlsafe_b64encode(signature).decode().rstrip("=")
    click.echo(json.dumps({"key_id": prepared["key_id"], "root_signature": encoded}))
    return 0


def _show(document: dict[str, str]) -> None:
    if current().output == "table":
        click.echo(document["public_key"])
    else:
        output.show(current().output, {"id": document["public_key"], **document})


def _prepared(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            prepared = json.loads(file.read(BYTES_MAX))
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{path} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise click.ClickException(f"{path} is not JSON: {error}") from error
    wanted = {"audience": str, "epoch": int, "key_id": str, "public_key": str, "document": str}
    if not isinstance(prepared, dict) or any(not isinstance(prepared.get(name), kind) for name, kind in wanted.items()):
        raise click.ClickException(f"{path} is not the output of `mooring task-signing-keys prepare -o json`")
    return prepared


def _private(path: Path) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        loaded = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise click.ClickException(f"{path} is not a private key: {error}") from error
    if not isinstance(loaded, Ed25519PrivateKey):
        raise click.ClickException(f"{path} is not an Ed25519 key")
    return loaded
