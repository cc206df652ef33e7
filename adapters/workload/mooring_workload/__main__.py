"""The program: without a verb it is the adapter; verbs produce what the adapter runs.

mooring-workload --url URL --key-file FILE                      operate instances until stopped
mooring-workload manifest hello                                 print a manifest with its digests
mooring-workload program > hello.py                             print the program of `hello`, which its manifest names
mooring-workload build-image jupyter --output DIR               write an OCI layout, made from this machine's Python
mooring-workload render-cloud-init manifest.yaml                print user-data for a machine that boots by itself
mooring-workload bundle hello --key-file FILE --output DIR      write the input of `mooring install`
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from mooring_adapter import main as run_adapter
from mooring_workload import catalog
from mooring_workload.adapter import adapter
from mooring_workload.bundle import BundleRefused, bundle_of, key_at, write_bundle
from mooring_workload.cloud_init import Sources, render_user_data
from mooring_workload.image import BuildFailed, hello_image, jupyter_image
from mooring_workload.profile import read_profile
from mooring_workload.render import NotRenderable


def _manifest(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="mooring-workload manifest", description="Print a manifest.")
    parser.add_argument("app", choices=catalog.APPS)
    parser.add_argument(
        "--digest", action="append", default=[], metavar="ROLE=DIGEST", help="the digest of an artifact"
    )
    parser.add_argument("--version", help="a version other than the file's")
    given = parser.parse_args(arguments)
    made = catalog.manifest_of(given.app, _pairs(given.digest), given.version)
    print(yaml.safe_dump(made, sort_keys=False, allow_unicode=True), end="")
    return 0


def _program(arguments: Sequence[str]) -> int:
    argparse.ArgumentParser(prog="mooring-workload program").parse_args(arguments)
    sys.stdout.buffer.write(catalog.program())
    return 0


def _build_image(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="mooring-workload build-image", description="Write an image as an OCI layout."
    )
    parser.add_argument("app", choices=("hello", "jupyter"))
    parser.add_argument("--output", type=Path, required=True, help="a directory that does not exist yet")
    given = parser.parse_args(arguments)
    if given.app == "hello":
        made = hello_image(given.output, catalog.program())
    else:
        with catalog.requirements_file() as file:
            made = jupyter_image(given.output, file)
    print(made.digest)
    return 0


def _render_cloud_init(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="mooring-workload render-cloud-init",
        description="Print cloud-init user-data that runs a manifest's profile. It holds no secret.",
    )
    parser.add_argument("manifest", type=Path, help="a manifest, YAML or JSON")
    parser.add_argument("--config", type=Path, help="the launcher's configuration, YAML or JSON")
    parser.add_argument("--repository", help="the image's repository, without tag and digest: registry/name")
    parser.add_argument("--address", action="append", default=[], metavar="ROLE=URL", help="the URL of a blob")
    parser.add_argument("--content", action="append", default=[], metavar="ROLE=FILE", help="the file of a small blob")
    given = parser.parse_args(arguments)
    manifest = yaml.safe_load(given.manifest.read_text(encoding="utf-8"))
    config = yaml.safe_load(given.config.read_text(encoding="utf-8")) if given.config else {}
    contents = {role: Path(file).read_bytes() for role, file in _pairs(given.content).items()}
    for role, content in contents.items():
        if (found := catalog.digest_of(content)) != manifest["artifacts"].get(role):
            raise NotRenderable(f"the file for {role!r} has the digest {found}, but the manifest has another digest")
    sources = Sources(given.repository, _pairs(given.address), contents)
    print(render_user_data(read_profile(manifest), config or {}, sources), end="")
    return 0


def _bundle(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="mooring-workload bundle",
        description="Write the input of `mooring install`: the manifest, its artifacts' places, and a key.",
    )
    parser.add_argument("app", choices=catalog.APPS)
    parser.add_argument("--output", type=Path, required=True, help="the directory to write to")
    parser.add_argument("--key-file", type=Path, required=True, help="the adapter's key; created if it does not exist")
    parser.add_argument("--artifact", action="append", default=[], metavar="ROLE=LOCATION@DIGEST")
    parser.add_argument("--version", help="a version other than the manifest's")
    given = parser.parse_args(arguments)
    made = bundle_of(given.app, _pairs(given.artifact), key_at(given.key_file), given.version)
    print(write_bundle(given.output, made))
    return 0


def _pairs(given: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals:
            raise NotRenderable(f"{each!r} must have the form ROLE=VALUE")
        pairs[name] = value
    return pairs


VERBS: Final[Mapping[str, Callable[[Sequence[str]], int]]] = {
    "manifest": _manifest,
    "program": _program,
    "build-image": _build_image,
    "render-cloud-init": _render_cloud_init,
    "bundle": _bundle,
}


def main(arguments: Sequence[str] | None = None) -> Any:
    """Run the adapter or a verb; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words in (["--help"], ["-h"]):
        print(f"{(__doc__ or '').strip()}\n")  # the adapter's options follow
    if not words or words[0] not in VERBS:
        return run_adapter(adapter(), words)
    try:
        return VERBS[words[0]](words[1:])
    except (NotRenderable, BuildFailed, BundleRefused, OSError, ValueError, yaml.YAMLError) as error:
        print(f"mooring-workload: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
