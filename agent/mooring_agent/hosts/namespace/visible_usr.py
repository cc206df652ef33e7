"""Which part of the machine's /usr a sandbox sees: a list of directories, and what the operator adds to it.

The list holds what the distribution's packages install for programs, and what vendors of GPUs install beside it. It
leaves out what administrators put below /usr for the machine itself: /usr/local with its configuration, sources and
programs, such as this agent, and /usr/src. See decision 42.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PACKAGES: Final = (
    "/usr/bin",
    "/usr/include",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/libx32",
    "/usr/sbin",
    "/usr/share",
    "/usr/local/share/ca-certificates",
)
VENDORS: Final = ("cuda", "cuda-*", "nvidia*")
"""Below /usr/local; their installers know no other place."""
_USR: Final = Path("/usr")
_TOP: Final = ("/bin", "/sbin")  # directories of their own on old systems, and then shown too


@dataclass(frozen=True, slots=True)
class VisibleUsr:
    """Directories of the machine, and links between them; nothing else of /usr exists in a sandbox."""

    directories: tuple[str, ...]
    links: tuple[tuple[str, str], ...] = ()

    def contains(self, path: str) -> bool:
        """Whether a sandbox has this file of the machine's."""
        real = Path(os.path.realpath(path))
        return any(real.is_relative_to(each) for each in (*self.directories, *_TOP))


def find(added: Iterable[str] = ()) -> VisibleUsr:
    """What this machine has of the list."""
    vendors = [str(path) for pattern in VENDORS for path in sorted(Path("/usr/local").glob(pattern))]
    wanted = [path for path in (*PACKAGES, *vendors, *added) if os.path.isdir(path)]
    links = tuple((path, os.readlink(path)) for path in wanted if os.path.islink(path))
    directories = {path for path in wanted if not os.path.islink(path)}
    outermost = [path for path in directories if not any(_is_below(path, other) for other in directories)]
    seen = [link for link in links if not any(_is_below(link[0], other) for other in outermost)]
    return VisibleUsr(tuple(sorted(outermost)), tuple(dict.fromkeys(seen)))


def parse(paths: Sequence[str]) -> tuple[str, ...]:
    """Directories that an operator adds; refused if they are not below /usr, or do not exist."""
    for text in paths:
        path = Path(text)
        is_plain = os.path.normpath(text) == text and path.is_relative_to(_USR) and path != _USR
        if not is_plain or not path.is_dir() or path.is_symlink():
            raise ValueError(f"`--sandbox-usr` must be a directory below /usr, such as /usr/local/lib, not {text!r}")
    return tuple(paths)


def _is_below(path: str, other: str) -> bool:
    return path != other and Path(path).is_relative_to(other)
