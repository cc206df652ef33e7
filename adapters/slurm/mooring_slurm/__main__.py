"""The program: without a verb it is the adapter; verbs produce what a catalog needs.

mooring-slurm --url URL --key-file FILE                    operate clusters until stopped
mooring-slurm bundle DIR --key-file FILE [--version V]     write the input of `mooring install`
mooring-slurm manifest [--version V]                       print the manifest with the digest of its program
mooring-slurm program [--version V]                        print the program on the node, which the manifest names
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mooring_adapter import main as run_adapter
from mooring_adapter.bundle import BundleRefused, key_at
from mooring_slurm.adapter import SLURM
from mooring_slurm.bundle import write_version
from mooring_slurm.catalog import VERSION, manifest_of, program


def _bundle(arguments: Sequence[str]) -> int:
    parser = _parser("bundle", "Write the input of `mooring install`: manifest, program and key.")
    parser.add_argument("directory", type=Path, help="the directory to write to")
    parser.add_argument("--key-file", type=Path, required=True, help="the adapter's key; created if it does not exist")
    given = parser.parse_args(arguments)
    print(write_version(given.directory, key_at(given.key_file), given.version))
    return 0


def _manifest(arguments: Sequence[str]) -> int:
    given = _parser("manifest", "Print the manifest.").parse_args(arguments)
    print(json.dumps(manifest_of(given.version), indent=2, ensure_ascii=False))
    return 0


def _program(arguments: Sequence[str]) -> int:
    given = _parser("program", "Print the program on the node.").parse_args(arguments)
    sys.stdout.buffer.write(program(given.version))
    return 0


def _parser(verb: str, about: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"mooring-slurm {verb}", description=about)
    parser.add_argument("--version", default=VERSION, help=f"the version's number ({VERSION})")
    return parser


VERBS: Final[Mapping[str, Callable[[Sequence[str]], int]]] = {
    "bundle": _bundle,
    "manifest": _manifest,
    "program": _program,
}


def main(arguments: Sequence[str] | None = None) -> Any:
    """Run the adapter or a verb; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words in (["--help"], ["-h"]):
        print(f"{(__doc__ or '').strip()}\n")  # the adapter's options follow
    if not words or words[0] not in VERBS:
        return run_adapter(SLURM, words)
    try:
        return VERBS[words[0]](words[1:])
    except (BundleRefused, OSError, ValueError) as error:
        print(f"mooring-slurm: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
