"""The app: one web server for each member. Replace it by your program.

`/` is the page, `/ready` answers when it serves, `/quiet` answers 200 when no other request is in progress.
"""

import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

GREETING = os.environ.get("APP_GREETING", "Hello")
VERSION = os.environ.get("APP_VERSION", "0")
in_progress = 0
lock = threading.Lock()


class PageHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        global in_progress
        if self.path == "/ready":
            self.respond(200, "ready")
        elif self.path == "/quiet":
            self.respond(503 if in_progress else 200, f"{in_progress} in progress")
        else:
            with lock:
                in_progress += 1
            try:
                self.respond(200, f"{GREETING} from example-app {VERSION}")
            finally:
                with lock:
                    in_progress -= 1

    def respond(self, status: int, text: str) -> None:
        body = f"{text}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), PageHandler).serve_forever()
