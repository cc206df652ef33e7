"""Images of the apps of the workload adapter, made once from this machine's Python and kept below `.tools`."""

import fcntl
import hashlib
import shutil
import sys
from pathlib import Path

import mooring_workload.image
from mooring_workload import catalog
from mooring_workload.image import ImageLayout, hello_image, jupyter_image
from tools import set_up

KEPT = set_up.TOOLS / "images"


def image_of(app: str) -> ImageLayout:
    """The image of an app, as an OCI layout."""
    with catalog.requirements_file() as requirements:
        made_of = [Path(mooring_workload.image.__file__).read_bytes(), sys.version.encode()]
        made_of.append(requirements.read_bytes() if app == "jupyter" else catalog.program())
        place = KEPT / f"{app}-{hashlib.sha256(b''.join(made_of)).hexdigest()[:12]}"
        KEPT.mkdir(parents=True, exist_ok=True)
        with (KEPT / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not place.is_dir():
                for old in KEPT.glob(f"{app}-*"):
                    shutil.rmtree(old)
                if app == "jupyter":
                    return jupyter_image(place, requirements, _installer())
                return hello_image(place, catalog.program())
    return ImageLayout(place)


def _installer() -> list[str]:
    uv = set_up.uv()
    settings = [word for name, value in set_up.pip_settings().items() for word in (f"{name}={value}",)]
    if uv is None:
        return []
    # The hashes decide what is accepted, so every index may be asked for every package.
    strategy = ["--index-strategy", "unsafe-best-match"]
    return ["env", *settings, str(uv), "pip", "install", "--quiet", "--python", sys.executable, *strategy]
