"""The apps of this adapter: their manifests with digests, and their small artifacts."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Final

import yaml

from mooring_adapter.bundle import digest_of

__all__ = ["APPS", "CATEGORY", "TITLE", "digest_of", "manifest_of", "program", "requirements_file"]

APPS: Final = ("hello", "jupyter", "vllm")
CATEGORY: Final[Mapping[str, str]] = {"hello": "web", "jupyter": "notebook", "vllm": "inference"}
TITLE: Final[Mapping[str, str]] = {"hello": "Hello", "jupyter": "JupyterLab", "vllm": "vLLM"}


def program() -> bytes:
    """The program of `hello`: one file of Python."""
    return _file("hello", "program.py")


@contextmanager
def requirements_file() -> Iterator[Path]:
    """The requirements file of the `jupyter` image."""
    with as_file(files("mooring_workload").joinpath("apps", "jupyter", "requirements.txt")) as path:
        yield path


def manifest_of(app: str, digests: Mapping[str, str] | None = None, version: str | None = None) -> dict[str, Any]:
    """The manifest of an app, with the digests of its artifacts and optionally another version.

    With an image, `hello` is a container that contains the program, and the blob is not needed.
    """
    manifest: dict[str, Any] = yaml.safe_load(_file(app, "manifest.yaml"))
    known = {"program": digest_of(program())} if app == "hello" else {}
    manifest["artifacts"] = {**manifest["artifacts"], **known, **(digests or {})}
    if app == "hello" and "image" in manifest["artifacts"]:
        del manifest["artifacts"]["program"], manifest["runtime_profile"]["volumes"]
        manifest["runtime_profile"]["image"] = "image"
        manifest["runtime_backend"] = "container"
    if version is not None:
        manifest["version"] = version
    return manifest


def _file(app: str, name: str) -> bytes:
    return files("mooring_workload").joinpath("apps", app, name).read_bytes()
