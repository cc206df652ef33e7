"""Builds OCI images from files without any tool: tar, gzip and JSON, with reproducible bytes.

The base is the Python that runs this program, with the libraries that it needs and nothing else: no shell, no package
manager, only one user. Packages are installed beside it from the index that pip or uv uses on this machine, each by its
hash.
"""

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
LAYER: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG: Final = "application/vnd.oci.image.config.v1+json"
INDEX: Final = "application/vnd.oci.image.index.v1+json"
PREFIX: Final = "usr/local"
USER: Final = "1000:1000"
UNWANTED: Final = frozenset(
    {"__pycache__", "test", "tests", "idlelib", "ensurepip", "turtledemo", "tkinter", "lib2to3"}
)
UNWANTED_ENDS: Final = (".a", ".pyc", ".js.map", ".css.map")
LIBRARY: Final = re.compile(r"(?:=> )?(/\S+) \(0x")
ARCHITECTURES: Final[Mapping[str, str]] = {"x86_64": "amd64", "aarch64": "arm64"}
BLOCK: Final = 1 << 20
DATA: Final = ("share", "etc")
"""The directories that packages install below the prefix."""


class BuildFailed(Exception):
    """The image cannot be built; the message says why."""


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A file of an image: its path, and its source."""

    name: str
    path: Path | None = None
    content: bytes = b""
    mode: int = 0o644
    is_directory: bool = False


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """An image as an OCI layout in a directory: blobs by digest, and an index that names the manifest."""

    directory: Path

    @property
    def digest(self) -> str:
        """The digest of the image's manifest."""
        index = json.loads((self.directory / "index.json").read_bytes())
        return str(index["manifests"][0]["digest"])

    def blob(self, digest: str) -> Path:
        """The file of a blob."""
        return self.directory / "blobs" / "sha256" / digest.partition(":")[2]

    @property
    def manifest(self) -> bytes:
        """The bytes of the manifest."""
        return self.blob(self.digest).read_bytes()

    @property
    def parts(self) -> tuple[str, ...]:
        """The digests of all blobs that the manifest names."""
        plain = json.loads(self.manifest)
        return tuple(str(each["digest"]) for each in (*plain["layers"], plain["config"]))


def write_image(directory: Path, layers: Sequence[Sequence[ImageFile]], about: Mapping[str, Any]) -> ImageLayout:
    """Write an image with these layers into a new directory, completely or not at all."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=".making-", dir=directory.parent))
    try:
        (making / "blobs" / "sha256").mkdir(parents=True)
        described, plain = [], []
        for layer in layers:
            digest, size, unpacked = _layer(making, layer)
            described.append({"mediaType": LAYER, "digest": digest, "size": size})
            plain.append(unpacked)
        config = {
            "architecture": ARCHITECTURES.get(os.uname().machine, os.uname().machine),
            "os": "linux",
            "config": dict(about),
            "rootfs": {"type": "layers", "diff_ids": plain},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _written(making, CONFIG, config),
            "layers": described,
        }
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [_written(making, MANIFEST, manifest)]}
        (making / "index.json").write_text(json.dumps(index))
        (making / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        making.rename(directory)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    return ImageLayout(directory)


def _written(directory: Path, media_type: str, value: Mapping[str, Any]) -> dict[str, Any]:
    content = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    digest = hashlib.sha256(content).hexdigest()
    (directory / "blobs" / "sha256" / digest).write_bytes(content)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


class _Hashing(io.RawIOBase):
    """Forwards bytes and hashes them."""

    def __init__(self, beneath: Any) -> None:
        self.hash = hashlib.sha256()
        self._beneath = beneath

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.hash.update(data)
        written: int = self._beneath.write(data)
        return written


def _layer(directory: Path, entries: Sequence[ImageFile]) -> tuple[str, int, str]:
    """Write one layer; returns its digest, its size, and the digest of its uncompressed content."""
    place = directory / "blobs" / "sha256" / "layer"
    with place.open("wb") as file:
        outer = _Hashing(file)
        with gzip.GzipFile(filename="", fileobj=outer, mode="wb", compresslevel=1, mtime=0) as packed:
            inner = _Hashing(packed)
            with tarfile.open(fileobj=inner, mode="w|", format=tarfile.PAX_FORMAT, bufsize=BLOCK) as tar:
                for entry in _with_parents(entries):
                    _add(tar, entry)
    digest = outer.hash.hexdigest()
    place.rename(place.with_name(digest))
    return f"sha256:{digest}", place.with_name(digest).stat().st_size, f"sha256:{inner.hash.hexdigest()}"


def _with_parents(entries: Sequence[ImageFile]) -> Iterator[ImageFile]:
    """The files sorted, without duplicates, each directory before its content."""
    known: dict[str, ImageFile] = {}
    for entry in entries:
        for parent in reversed(Path(entry.name).parents):
            if str(parent) != ".":
                known.setdefault(str(parent), ImageFile(str(parent), mode=0o755, is_directory=True))
        known[entry.name] = entry
    yield from (known[name] for name in sorted(known))


def _add(tar: tarfile.TarFile, entry: ImageFile) -> None:
    info = tarfile.TarInfo(entry.name)
    info.mode, info.mtime = entry.mode, 0
    if entry.is_directory:
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    elif entry.path is None:
        info.size = len(entry.content)
        tar.addfile(info, io.BytesIO(entry.content))
    else:
        info.size = entry.path.stat().st_size
        with entry.path.open("rb") as file:
            tar.addfile(info, file)


def python_base() -> list[ImageFile]:
    """The files of the running Python below /usr/local, with the libraries that it loads."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    program = Path(sys.base_prefix, "bin", version).resolve()
    library = Path(os.__file__).resolve().parent
    entries = [
        ImageFile(f"{PREFIX}/bin/python3", program, mode=0o755),
        *_tree(library, f"{PREFIX}/lib/{version}", leave_out=frozenset({"site-packages", "dist-packages"})),
        ImageFile("etc/passwd", content=b"app:x:1000:1000::/work:/sbin/nologin\n"),
        ImageFile("etc/group", content=b"app:x:1000:\n"),
        ImageFile("etc/hosts", content=b"127.0.0.1 localhost\n"),
        ImageFile("tmp", mode=0o1777, is_directory=True),
        ImageFile("work", mode=0o777, is_directory=True),
    ]
    return [*entries, *_libraries([program, *library.glob("lib-dynload/*.so")])]


@contextmanager
def installed(requirements: Path, installer: Sequence[str] = ()) -> Iterator[list[ImageFile]]:
    """Install the packages of a requirements file with hashes, and yield their files."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    with tempfile.TemporaryDirectory() as directory:
        target = Path(directory, "packages")
        words = [*(installer or _installer()), "--target", str(target), "--requirement", str(requirements)]
        done = subprocess.run([*words, "--require-hashes", "--no-deps"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BuildFailed(f"cannot install the packages: {done.stderr.strip()[-2_000:]}")
        yield [
            *_tree(target, f"{PREFIX}/lib/{version}/site-packages", leave_out=frozenset({"bin", *DATA})),
            *(entry for part in DATA for entry in _tree(target / part, f"{PREFIX}/{part}")),
            *_libraries(list(target.rglob("*.so*"))),
        ]


def _installer() -> list[str]:
    found = shutil.which("uv")
    if found is not None:
        return [found, "pip", "install", "--quiet", "--python", sys.executable]
    return [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]


def _tree(root: Path, name: str, leave_out: frozenset[str] = frozenset()) -> Iterator[ImageFile]:
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root)
        if UNWANTED.intersection(inside.parts) or inside.parts[0] in leave_out or not path.is_file():
            continue
        if path.name.endswith(UNWANTED_ENDS) or inside.parts[0].startswith("config-"):
            continue
        yield ImageFile(f"{name}/{inside}", path.resolve(), mode=0o755 if os.access(path, os.X_OK) else 0o644)


def _libraries(programs: Sequence[Path]) -> Iterator[ImageFile]:
    """The shared libraries that programs load, at the paths where the loader finds them."""
    if not programs:
        return
    said = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False).stdout
    own = {str(each.parent) for each in programs}
    for found in sorted(set(LIBRARY.findall(said))):
        if not any(found.startswith(each) for each in own):
            yield ImageFile(found.lstrip("/"), Path(found).resolve(), mode=0o755)


def jupyter_image(directory: Path, requirements: Path, installer: Sequence[str] = ()) -> ImageLayout:
    """The image of `jupyter`: Python, and the packages of its requirements."""
    # Needed because Debian's own Python looks for packages elsewhere.
    packages = f"PYTHONPATH=/{PREFIX}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    environment = ["PATH=/usr/local/bin", "LANG=C.UTF-8", "HOME=/work", packages]
    about = {"User": USER, "Env": environment, "WorkingDir": "/work", "Cmd": ["/usr/local/bin/python3"]}
    with installed(requirements, installer) as entries:
        return write_image(directory, [python_base(), entries], about)


def hello_image(directory: Path, program: bytes) -> ImageLayout:
    """The image of `hello`: Python, and the program."""
    about = {"User": USER, "Env": ["PATH=/usr/local/bin", "LANG=C.UTF-8"], "Cmd": ["/usr/local/bin/python3"]}
    return write_image(directory, [python_base(), [ImageFile("app/program", content=program, mode=0o555)]], about)
