"""A page that says hello: the smallest app that a platform can launch, in one file with the standard library.

It listens on loopback, on the port in `MOORING_PORT_HTTP`, and ends on SIGTERM.
"""

import html
import os
import signal
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{greeting}</title>
<style>body {{ font: 18px/1.5 system-ui, sans-serif; max-width: 36rem; margin: 4rem auto; padding: 0 1rem }}</style>
<h1>{greeting}</h1>
<p>This page comes from <b>{host}</b>, through the platform, and is for you alone.</p>
"""


class Hello(BaseHTTPRequestHandler):
    """Two pages: one for people, one for probes."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/":
            greeting = html.escape(os.environ.get("GREETING", "Hello from Mooring"))
            self._answer(200, "text/html", PAGE.format(greeting=greeting, host=html.escape(socket.gethostname())))
        elif path == "/ready":
            self._answer(200, "text/plain", "ready\n")
        else:
            self._answer(404, "text/plain", "there is nothing here\n")

    def _answer(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing: probes come every few seconds."""


def main() -> None:
    """Serve until SIGTERM."""
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("MOORING_PORT_HTTP", "8080"))), Hello)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"hello listens on {server.server_address[1]}", flush=True)
    server.serve_forever()
    print("hello has ended", flush=True)


if __name__ == "__main__":
    main()
