"""Stands in for a developer's own tools: builds a small image, pushes and signs it.

    mooring artifacts publish --name hello -o json > intent.json
    python -m tools.demo_push intent.json --key release

The intent is the answer of `publish`; its token is only sent to the registry. The digest is printed. With `--key
NAME` the image is also signed as cosign would do it, with the key in `NAME.key`, which is generated together with
`NAME.pub` if it does not exist. With `--pushed DIGEST` nothing is pushed: the existing image is signed.
"""

import argparse
import asyncio
import os
import sys
from pathlib import Path

import msgspec

from mooring.core.kernel.errors import Refusal
from mooring.gateways.signing.cosign_keys import SigningKey, new_signing_key, read_signing_key
from mooring.gateways.signing.cosign_sign import sign_as_tag
from mooring_sdk import models
from tools.demo_registry import push, pushing, small_image


def signing_key(name: str) -> SigningKey:
    """The key with this name, generated if there is none; only its owner can read it."""
    private, public = Path(f"{name}.key"), Path(f"{name}.pub")
    if not private.exists():
        made = new_signing_key()
        with open(os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(made.private_pem)
        public.write_text(made.trusted("").pem, encoding="ascii")
    return read_signing_key(private.read_bytes())


def main(arguments: list[str]) -> int:
    """Push and sign; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.demo_push", description="Push a small image, and sign it.")
    parser.add_argument("intent", type=Path, help="the output of `mooring artifacts publish -o json`")
    parser.add_argument("--key", help="sign with the key in KEY.key, generated with KEY.pub if it does not exist")
    parser.add_argument("--pushed", metavar="DIGEST", help="sign this digest, pushed by another tool")
    given = parser.parse_args(arguments)
    intent = msgspec.json.decode(given.intent.read_bytes(), type=models.Publish)
    image = small_image()
    digest = given.pushed or image.digest
    try:
        if given.pushed is None:
            asyncio.run(push(intent, image))
        if given.key is not None:
            key = signing_key(given.key)
            asyncio.run(pushing(intent, lambda pusher: sign_as_tag(pusher, intent.repository, digest, key)))
    except (Refusal, OSError) as error:
        print(f"the push failed: {error}", file=sys.stderr)
        return 1
    print(digest)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
