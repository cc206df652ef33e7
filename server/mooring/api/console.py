"""The web console: the files that the set-up built, served below `/console/`.

All files are read once, into a table by their path. A request is a look-up in that table, so a path cannot lead
anywhere else. Names below `assets/` contain a hash of the content and are cached for good. Paths below `terminal/` get
the document of terminals, every other path the start page; their scripts show what belongs there.

The console uses the public API with the session of the browser; it has no rights of its own.
"""

import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

from mooring.api.response import Response
from mooring.core.kernel.errors import Code, Refusal

ROOT: Final = "/console"
ROUTE: Final = "GET /console/{path}"
START: Final = "index.html"
TERMINAL: Final = "terminal.html"
STAMP: Final = "stamp"
"""The set-up's mark of the sources that were built; it is not served."""
FOREVER: Final = "public, max-age=31536000, immutable"
POLICY: Final = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "object-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
PAGE_HEADERS: Final = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
}
TERMINAL_HEADERS: Final = {
    **PAGE_HEADERS,
    "content-security-policy": POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'"),
}
"""The terminal is a document of its own, since its library makes style elements; scripts stay as strict as anywhere."""
NOT_BUILT: Final = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Mooring</title></head>
<body><h1>The console was not built</h1>
<p>The API and the command line work without it. In a clone of the project, <code>make console</code> builds it; that
needs a package registry for npm. The API's own reference is at <a href="/docs">/docs</a>.</p></body></html>
"""


@dataclass(frozen=True, slots=True)
class ConsoleFile:
    """One file, and the same compressed if the build did that."""

    body: bytes
    media_type: str
    gzipped: bytes | None


def is_console(path: str) -> bool:
    """Whether the path belongs to the console, or is the root, which leads there."""
    return path in ("/", ROOT) or path.startswith(f"{ROOT}/")


def serve(files: Mapping[str, ConsoleFile], path: str, method: str, headers: Mapping[str, str]) -> Response:
    """The console's answer to a request for one of its paths."""
    if method != "GET":
        raise Refusal(Code.METHOD_NOT_ALLOWED, "this path supports GET", {"allowed": ["GET"]})
    if path in ("/", ROOT):
        return Response(307, b"", headers={"location": f"{ROOT}/"})
    if START not in files:
        return Response(503, NOT_BUILT, "text/html; charset=utf-8", PAGE_HEADERS)
    name = path.removeprefix(f"{ROOT}/")
    found = files.get(name)
    if found is None and name.startswith("assets/"):
        raise Refusal(Code.NOT_FOUND, "the console has no such file")
    if name == TERMINAL or name.startswith("terminal/"):
        return _response(files[TERMINAL], headers, TERMINAL_HEADERS)
    if found is None or name == START:
        return _response(files[START], headers, PAGE_HEADERS)
    kept = FOREVER if name.startswith("assets/") else "public, max-age=3600"
    return _response(found, headers, {"cache-control": kept})


@cache
def console_files() -> dict[str, ConsoleFile]:
    """The console that the set-up built; empty if it did not."""
    return read_files(resources.files("mooring").joinpath("console"))


def read_files(folder: Traversable) -> dict[str, ConsoleFile]:
    """The files of a folder by their path."""
    if not folder.is_dir():
        return {}
    content = dict(_walk(folder, ""))
    return {
        name: ConsoleFile(body, _media_type(name), content.get(f"{name}.gz"))
        for name, body in content.items()
        if not name.endswith(".gz") and name != STAMP
    }


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for each in folder.iterdir():
        if each.is_dir():
            found += _walk(each, f"{prefix}{each.name}/")
        else:
            found.append((prefix + each.name, each.read_bytes()))
    return found


def _media_type(name: str) -> str:
    guessed = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return f"{guessed}; charset=utf-8" if guessed.startswith("text/") else guessed


def _response(file: ConsoleFile, headers: Mapping[str, str], extra: Mapping[str, str]) -> Response:
    if file.gzipped is None:
        return Response(200, file.body, file.media_type, dict(extra))
    varied = {**extra, "vary": "accept-encoding"}
    if "gzip" not in headers.get("accept-encoding", ""):
        return Response(200, file.body, file.media_type, varied)
    return Response(200, file.gzipped, file.media_type, {**varied, "content-encoding": "gzip"})
