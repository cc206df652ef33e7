"""An OTLP collector for tests: the platform sends its spans there, and a test looks for its own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATIENCE_SECONDS = 120.0


@dataclass
class TraceCollector:
    """Keeps the received span batches as raw bytes."""

    url: str = ""
    came: list[bytes] = field(default_factory=list)
    news: threading.Condition = field(default_factory=threading.Condition)

    def take(self, spans: bytes) -> None:
        with self.news:
            self.came.append(spans)
            self.news.notify_all()

    def has(self, trace_id: str) -> bool:
        """Whether a span of this trace arrives in time: spans are sent in batches, every few seconds."""
        with self.news:
            return self.news.wait_for(
                lambda: any(bytes.fromhex(trace_id) in each for each in self.came), PATIENCE_SECONDS
            )


@contextmanager
def running_trace_collector() -> Iterator[TraceCollector]:
    """Run a collector on a port of the loopback."""
    collector = TraceCollector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Be quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
