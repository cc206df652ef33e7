"""Builds what is released: a wheel of every part, their checksums, a signature, a bill of materials, the licences.

The wheels are built from the last commit, not from the working tree, and without a network: the build backend is in the
lock. SOURCE_DATE_EPOCH (by default the time of the commit) is the only time in them, so the same commit gives the same
bytes. `MOORING_DIST_KEY` names the builder's Ed25519 key (PEM); without it nothing is signed, and the run says so.

    python -m tools.dist [--out DIR]
    python -m tools.dist --new-key FILE          # a key for the builder; prints its public half
    python -m tools.dist --verify DIR --public-key KEY
"""

import argparse
import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from tools.bill_of_materials import CONSOLE_LOCK, LOCK, document, licensed, licensed_console
from tools.console import TARGET
from tools.set_up import ROOT, workspace_parts

KEY_SETTING: Final = "MOORING_DIST_KEY"
SUMS: Final = "SHA256SUMS"
SIGNATURE: Final = "SHA256SUMS.sig"
CONTEXT: Final = b"mooring-release-v1\n"


class DistFailed(Exception):
    """Nothing can be released; the message says why."""


def commit_seconds() -> int:
    """SOURCE_DATE_EPOCH, or the time of the last commit."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    return int(_git("log", "-1", "--format=%ct"))


def export(target: Path) -> None:
    """The files of the last commit."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "x", "-C", str(target)], input=archive.stdout, check=True)


def add_console(target: Path) -> None:
    """The console that the set-up built, if it was built from the sources of the commit."""
    stamp = TARGET / "stamp"
    if not stamp.exists() or stamp.read_text(encoding="ascii") != _console_stamp(target):
        raise DistFailed("the console was not built from this commit; `make console` builds it")
    shutil.copytree(TARGET, target / TARGET.relative_to(ROOT))


def _console_stamp(source: Path) -> str:
    words = ["sh", str(source / "tools" / "set_up.sh"), "--console-stamp"]
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def build(source: Path, names: Sequence[str], out: Path, seconds: int) -> list[Path]:
    """Build the wheels of these parts (paths below the source)."""
    out.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(seconds), "PYTHONHASHSEED": "0", "TZ": "UTC"}
    for name in names:
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out.resolve())]
        done = subprocess.run(command, cwd=source / name, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise DistFailed(f"{name} cannot be built:\n{done.stderr.strip()}")
    return sorted(out.glob("*.whl"))


def sums(files: Sequence[Path]) -> str:
    """The checksums, as sha256sum writes and checks them."""
    return "".join(f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in files)


def new_key(path: Path) -> str:
    """Write a new key that only its owner can read; returns the public half."""
    private = Ed25519PrivateKey.generate()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return _public(private)


def sign(out: Path, key_file: Path) -> str:
    """Sign the checksums; returns the public half of the key."""
    private = load_pem_private_key(key_file.read_bytes(), None)
    if not isinstance(private, Ed25519PrivateKey):
        raise DistFailed(f"{key_file} is not an Ed25519 key")
    signature = private.sign(CONTEXT + (out / SUMS).read_bytes())
    (out / SIGNATURE).write_text(base64.b64encode(signature).decode() + "\n", encoding="ascii")
    return _public(private)


def verify(out: Path, public_key: str) -> int:
    """Check signature and checksums; returns the number of files, or raises DistFailed."""
    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public_key, validate=True))
        signature = base64.b64decode((out / SIGNATURE).read_text(encoding="ascii").strip(), validate=True)
        key.verify(signature, CONTEXT + (out / SUMS).read_bytes())
    except (InvalidSignature, ValueError) as error:
        raise DistFailed(f"{out / SIGNATURE} is not a signature of this key over {SUMS}") from error
    except OSError as error:
        raise DistFailed(f"cannot read {error.filename}: {error.strerror}") from error
    lines = (out / SUMS).read_text(encoding="ascii").splitlines()
    listed = {line[66:]: line[:64] for line in lines}
    for name, expected in listed.items():
        file = out / name
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != expected:
            raise DistFailed(f"{name} is missing or was changed")
    if unknown := sorted(each.name for each in out.iterdir() if each.name not in {*listed, SUMS, SIGNATURE}):
        raise DistFailed(f"{unknown[0]} is not in {SUMS}")
    return len(listed)


def release(out: Path) -> None:
    """Everything, into an empty directory."""
    packages = licensed(LOCK.read_text(encoding="utf-8"))
    packages += licensed_console(CONSOLE_LOCK.read_text(encoding="utf-8"))
    if complaints := [each.complaint for each in packages if each.complaint]:
        raise DistFailed("\n".join(complaints))
    seconds = commit_seconds()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    names = [str(part.relative_to(ROOT)) for part in workspace_parts()]
    with tempfile.TemporaryDirectory(prefix="mooring-dist-") as directory:
        export(Path(directory))
        add_console(Path(directory))
        build(Path(directory), names, out, seconds)
        parts = dict(_named(Path(directory) / name) for name in names)
    bill = document(packages, parts, seconds)
    (out / "sbom.cdx.json").write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
    lines = [f"{each.package.name} {each.package.version}: {each.licence}\n" for each in packages]
    (out / "licences.txt").write_text("".join(lines), encoding="utf-8")
    (out / SUMS).write_text(sums(sorted(each for each in out.iterdir() if each.is_file())), encoding="ascii")


def _named(part: Path) -> tuple[str, str]:
    project = tomllib.loads((part / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["name"]), str(project["version"])


def _public(private: Ed25519PrivateKey) -> str:
    return base64.b64encode(private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DistFailed("this is not a git clone: what is released is built from a commit")
    return done.stdout.strip()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.dist", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--new-key", type=Path, metavar="FILE")
    parser.add_argument("--verify", type=Path, metavar="DIR")
    parser.add_argument("--public-key", default="")
    options = parser.parse_args(arguments)
    try:
        if options.new_key:
            print(f"public key: {new_key(options.new_key)}")
        elif options.verify:
            print(f"{verify(options.verify, options.public_key)} files, signature and checksums hold")
        else:
            release(options.out)
            print((options.out / SUMS).read_text(encoding="ascii"), end="")
            if key_file := os.environ.get(KEY_SETTING):
                print(f"signed; public key: {sign(options.out, Path(key_file))}")
            else:
                print(f"not signed: {KEY_SETTING} names no key")
    except (DistFailed, OSError, subprocess.CalledProcessError) as error:
        print(f"dist: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
