"""A real browser: a script in an app's page can use neither the API nor another app in the viewer's name."""

import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agent_platform import AgentPlatform, running_agent_platform

pytestmark = pytest.mark.real_part("browser")
HOST = "namespace" if os.geteuid() == 0 else "process"
CHROMIUM = shutil.which("chromium")
SERVER = """
import http.server, json
hits = []
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        hits.append(self.path)
        kind = "application/json" if self.path == "/hits" else "text/html"
        body = json.dumps(hits).encode() if self.path == "/hits" else PAGE.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Access-Control-Allow-Origin", self.headers.get("Origin", "*"))
        self.send_header("Access-Control-Allow-Credentials", "true")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_POST = do_GET
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
"""
ATTACK = """<!doctype html><title>app</title><h1 id=who>evil</h1><pre id=out></pre><script>
const tries = {
  api: () => fetch(API + "/api/v1/whoami", {credentials: "include"}).then(r => r.status),
  own: () => fetch("/own").then(r => r.status),
  other: () => fetch(OTHER + "/stolen", {credentials: "include"}).then(r => r.status),
  otherPost: () => fetch(OTHER + "/posted", {method: "POST", mode: "no-cors", credentials: "include"})
    .then(r => r.type),
  image: () => new Promise(done => { const i = new Image(); i.onload = () => done("loaded");
    i.onerror = () => done("failed"); i.src = OTHER + "/image"; }),
  socket: () => new Promise(done => { const s = new WebSocket(OTHER.replace("http", "ws") + "/socket");
    s.onopen = () => done("open"); s.onerror = () => done("failed"); }),
  cookie: () => Promise.resolve(document.cookie),
};
(async () => {
  const results = {};
  for (const name in tries) { try { results[name] = await tries[name](); } catch (error) { results[name] = "threw"; } }
  document.getElementById("out").textContent = JSON.stringify(results);
})();
</script>"""


@pytest.fixture(scope="module")
def place() -> Iterator[AgentPlatform]:
    """A platform with one machine, where a browser is installed."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed; as root: apt-get install chromium")
    with running_agent_platform() as made:
        made.offer()
        made.join(HOST)
        yield made


def serve(place: AgentPlatform, allocation: Any, name: str, port: int, page: str) -> Any:
    """An app that serves one page and tells what it was asked for; its endpoint."""
    project = place.projects[0]
    program = f"PORT = {port}\nPAGE = {page!r}\n" + SERVER
    files = {"files": [{"path": f"/tmp/{name}.py", "content": program}]}
    assert place.do(project, allocation, "files.write", files, label=name).status == "succeeded"
    arguments = {
        "name": name,
        "argv": ["/usr/bin/python3", f"{name}.py"],
        "directory": "/tmp",
        "endpoint": {"name": name, "port": port, "protocol": "http"},
    }
    assert place.do(project, allocation, "service.start", arguments, label=name).status == "succeeded"
    probed = place.do(project, allocation, "probe.http", {"port": port, "attempts": 1_000, "interval_seconds": 0.2})
    assert probed.status == "succeeded", probed
    return next(each for each in place.tenant_admin.iter_endpoints(project.id) if each.name == name)


def browse(profile: Path, url: str) -> str:
    """What a browser with this profile shows in the end."""
    command = [
        str(CHROMIUM),
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={profile}",
        "--virtual-time-budget=15000",
        "--dump-dom",
        url,
    ]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert shown.returncode == 0, shown.stderr
    return html.unescape(shown.stdout)


def shown(place: AgentPlatform, profile: Path, app: Any, wanted: str) -> str:
    """What of an app's page is as wanted; a browser that was too slow for it follows a new link."""
    for _ in range(10):
        page = browse(profile, place.tenant_admin.open_endpoint(place.projects[0].id, app.id).url)
        if found := re.search(wanted, page, re.DOTALL):
            return found[1]
    raise AssertionError(page)


def test_a_script_in_a_page_reaches_neither_the_api_nor_another_endpoint(place: AgentPlatform, tmp_path: Path) -> None:
    project = place.projects[0]
    allocation = place.allocate(project)
    victim = serve(place, allocation, "victim", 19_001, "<title>victim</title>private")
    api, other = json.dumps(place.mooring.url), json.dumps(victim.origin)
    evil = serve(place, allocation, "evil", 19_002, f"<script>const API={api}, OTHER={other};</script>{ATTACK}")
    shown(place, tmp_path / "profile", victim, "(private)")
    results = json.loads(shown(place, tmp_path / "profile", evil, r'<pre id="out">(\{.*?)</pre>'))
    assert results["own"] == 200, results
    assert results["api"] in ("threw", 401), results
    across = [results[name] for name in ("other", "image", "socket", "cookie")]
    assert across == ["threw", "failed", "failed", ""], results
    hits = place.do(
        project,
        allocation,
        "process.run",
        {
            "argv": [
                "/usr/bin/python3",
                "-c",
                "import urllib.request as u; print(u.urlopen('http://127.0.0.1:19001/hits').read().decode())",
            ]
        },
        label="looks",
    )
    seen = json.loads(hits.last_lines[-1])
    assert "/" in seen
    assert not {"/stolen", "/posted", "/image", "/socket"} & set(seen), seen
    place.tenant_admin.release_allocation(project.id, allocation.id)
    place.until(lambda each: each.status == "released", project, allocation.id)
