"""The program on the node: one file with the standard library only, so that it runs wherever there is a Python.

    python3 echo_node.py serve --role worker --port 8080     answers over HTTP on this machine's loopback and network
    python3 echo_node.py say TEXT                            prints the text
    python3 echo_node.py remember TEXT                       appends the text to the memory of a seed, durably

Files beside it: `peers.json` (the other members), `greeting` (the first word of its page, read at each request),
`cordon` ("on" while it takes no new work) and `memory`. `/ready` answers when it serves; `/quiet` answers 200 when it
takes no new work and has none, otherwise 503; `/wanted` removes the cordon.
"""

import argparse
import json
import os
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

DIRECTORY = Path(__file__).resolve().parent
BUSY = threading.Semaphore(64)
SECONDS_MAX = 60.0
UNDER_WAY: set[int] = set()


def is_cordoned() -> bool:
    """Whether it takes no new work."""
    try:
        return (DIRECTORY / "cordon").read_text(encoding="utf-8").strip() == "on"
    except FileNotFoundError:
        return False


def greeting() -> str:
    """The first word of its page, as last written by the adapter."""
    try:
        return (DIRECTORY / "greeting").read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return "echo"


def peers() -> list[dict[str, object]]:
    """The other members, as last written by the adapter."""
    try:
        listed = json.loads((DIRECTORY / "peers.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return []
    return [each for each in listed if isinstance(each, dict)]


def remember(text: str) -> None:
    """Store a text: it is on the disk when this returns."""
    with (DIRECTORY / "memory").open("a", encoding="utf-8") as file:
        file.write(json.dumps(text) + "\n")
        file.flush()
        os.fsync(file.fileno())


class EchoHandler(BaseHTTPRequestHandler):
    role = "worker"
    version = "0"

    def do_GET(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        given = dict(urllib.parse.parse_qsl(parts.query))
        if parts.path in ("/", "/ready"):
            self.respond(200, f"{greeting()} {self.role} {self.version}")
        elif parts.path == "/quiet":
            quiet = is_cordoned() and not UNDER_WAY
            self.respond(200 if quiet else 503, "quiet" if quiet else f"{len(UNDER_WAY)} under way")
        elif parts.path == "/wanted":
            (DIRECTORY / "cordon").write_text("off\n", encoding="utf-8")
            self.respond(200, "takes work")
        elif parts.path == "/echo":
            self.echo(given)
        else:
            self.respond(404, "try /echo?text=…")

    def echo(self, given: dict[str, str]) -> None:
        if is_cordoned():
            self.respond(503, "takes no new work")
            return
        number = id(self)
        UNDER_WAY.add(number)
        try:
            if self.role == "gate" and (answer := self.from_worker(given)) is not None:
                self.respond(200, answer)
                return
            time.sleep(min(max(float(given.get("seconds", 0)), 0.0), SECONDS_MAX))
            self.respond(200, given.get("text", ""))
        finally:
            UNDER_WAY.discard(number)

    def from_worker(self, given: dict[str, str]) -> str | None:
        """The echo of the first worker that takes the work; None if there is none."""
        for each in peers():
            if each.get("role") != "worker":
                continue
            address = f"http://{each['address']}:{each['port']}/echo?{urllib.parse.urlencode(given)}"
            try:
                with urllib.request.urlopen(address, timeout=SECONDS_MAX + 5) as answer:
                    return str(answer.read(65_536).decode())
            except (urllib.error.URLError, OSError):
                continue  # cordoned or gone: try the next one
        return None

    def respond(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: requests contain the users' texts."""


def main() -> None:
    reader = argparse.ArgumentParser()
    reader.add_argument("verb", choices=("serve", "say", "remember"))
    reader.add_argument("text", nargs="?", default="")
    reader.add_argument("--role", default="worker")
    reader.add_argument("--port", type=int, default=0)
    given = reader.parse_args()
    if given.verb == "say":
        print(given.text)
    elif given.verb == "remember":
        remember(given.text)
        print(given.text)
    else:
        EchoHandler.role, EchoHandler.version = given.role, os.environ.get("ECHO_VERSION", "0")
        with ThreadingHTTPServer(("0.0.0.0", given.port), EchoHandler) as server:
            print(f"{given.role} listens on {server.server_address[1]}", file=sys.stderr, flush=True)
            server.serve_forever()


if __name__ == "__main__":
    main()
