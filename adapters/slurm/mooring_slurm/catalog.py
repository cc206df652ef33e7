"""The app in a catalog: its manifest with the digest of its program, and the program itself."""

import io
import json
import zipfile
from importlib.resources import files
from typing import Any, Final

from mooring_adapter.bundle import digest_of

APP: Final = "slurm"
CATEGORY: Final = "scheduler"
TITLE: Final = "Slurm"
ABOUT: Final = {"slug": APP, "display_name": TITLE, "category": CATEGORY}
VERSION: Final = "1.0.0"
NEXT_VERSION: Final = "1.1.0"
"""A version that differs only in its number, to test upgrades."""
ROLE: Final = "program"
STARTER: Final = b"from slurm_node.program import main\n\nraise SystemExit(main())\n"
EPOCH: Final = (1980, 1, 1, 0, 0, 0)
UNIX: Final = 3


def program(version: str = VERSION) -> bytes:
    """The program on the node for a version: one zip file for Python, byte for byte reproducible.

    It is not compressed, because the result of compression differs between versions of the library.
    """
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in sorted({"__main__.py": STARTER, **_sources(version)}.items()):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.create_system, entry.external_attr = UNIX, 0o644 << 16
            archive.writestr(entry, content)
    return made.getvalue()


def _sources(version: str) -> dict[str, bytes]:
    """The modules of the program, with the version's number."""
    own, wanted = f'VERSION = "{VERSION}"'.encode(), f'VERSION = "{version}"'.encode()
    return {
        f"slurm_node/{each.name}": each.read_bytes().replace(own, wanted)
        for each in files("mooring_slurm").joinpath("slurm_node").iterdir()
        if each.name.endswith(".py")
    }


def manifest_of(version: str = VERSION) -> dict[str, Any]:
    """The manifest of a version, with the digest of its program."""
    manifest: dict[str, Any] = json.loads(files("mooring_slurm").joinpath("manifest.json").read_bytes())
    manifest["version"] = version
    manifest["artifacts"] = {ROLE: digest_of(program(version))}
    return manifest
