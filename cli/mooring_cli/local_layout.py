"""Where `mooring up` keeps what belongs to this machine.

With `--data-dir X` everything is below X. The database's own directory is one of several there, so that the master key
and the certificate authority stay outside of it: a copy of the database is not a copy of its keys. Without the option,
and for a directory that an earlier release used as the database itself, the other directories stand beside it.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LocalLayout:
    """The directories of one Mooring on this machine."""

    root: Path
    database: Path
    node: Path
    adapter: Path
    apps: Path
    trial: Path

    @property
    def cluster(self) -> Path:
        """PostgreSQL's data; it exists once there is a database."""
        return self.database / "postgres" / "cluster"

    @property
    def keys(self) -> Path:
        """The master key, where the server puts it."""
        return self.database.with_name(f"{self.database.name}-keys")

    @property
    def tls(self) -> Path:
        """This machine's certificate authority, where the server puts it."""
        return self.database.with_name(f"{self.database.name}-tls")

    @property
    def registry(self) -> Path:
        """The images of the local registry, and its configuration."""
        return self.adapter.with_name(f"{self.adapter.name.removesuffix('adapter')}registry")

    @property
    def is_new(self) -> bool:
        return not self.cluster.exists()

    def everything(self) -> list[Path]:
        """Every directory of this Mooring, the database last; the root is last of all where it holds nothing else."""
        beside = (self.node, self.adapter, self.apps, self.registry, self.keys, self.tls, self.trial)
        return [*dict.fromkeys((*beside, self.database, self.root))]

    def make_root(self) -> None:
        """Create the root; as root, other accounts may pass through it, but not list it."""
        if not self.root.is_dir():
            self.root.mkdir(parents=True, exist_ok=True)
            self.root.chmod(0o711 if os.geteuid() == 0 else 0o700)

    def remove(self) -> None:
        """Remove all of it."""
        for path in self.everything():
            if path == self.root != self.database:
                if path.is_dir() and not any(path.iterdir()):
                    path.rmdir()
            elif path.exists():
                shutil.rmtree(path)


def layout_of(data_dir: str | None) -> LocalLayout:
    """The layout for `--data-dir`, for MOORING_DATA_DIR, or for the default of this account."""
    if data_dir is not None:
        root = Path(data_dir).absolute()
        if not (root / "postgres").is_dir():
            return LocalLayout(root, *(root / each for each in ("database", "node", "adapter", "apps", "try")))
    else:
        root = _default_root()
    return LocalLayout(
        root, root, *(root.with_name(f"{root.name}-{each}") for each in ("node", "adapter", "apps", "try"))
    )


def _default_root() -> Path:
    given = os.environ.get("MOORING_DATA_DIR")
    if given:
        return Path(given).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/mooring")
    return Path.home() / ".local" / "share" / "mooring"
