"""The files of the web console: what is served where, with which headers, and nothing else."""

from pathlib import Path

import pytest

from mooring.api.console import POLICY, read_files, serve
from mooring.core.kernel.errors import Code, Refusal
from server.tests.conftest import World
from tests.support.rows import every_row

PAGE, SCRIPT, ZIPPED = b"<!doctype html>page", b"script", b"zipped script"
TERMINAL = b"<!doctype html>terminal"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_bytes(b"outside")
    made = tmp_path / "console"
    (made / "assets").mkdir(parents=True)
    for name, body in (
        ("index.html", PAGE),
        ("terminal.html", TERMINAL),
        ("assets/app-1a2b.js", SCRIPT),
        ("assets/app-1a2b.js.gz", ZIPPED),
        ("mark.svg", b"<svg/>"),
        ("stamp", b"1"),
    ):
        (made / name).write_bytes(body)
    return made


@every_row(
    "path, body",
    [
        ("/console/", PAGE),
        ("/console/index.html", PAGE),
        ("/console/workloads/ins_1?tab=logs", PAGE),
        ("/console/assets/app-1a2b.js", SCRIPT),
        ("/console/mark.svg", b"<svg/>"),
        ("/console/stamp", PAGE),
        ("/console/terminal/prj_1/ins_1?member=mbr_1", TERMINAL),
        ("/console/terminal.html", TERMINAL),
        ("/console/terminals", PAGE),
        ("/console/../secret", PAGE),
        ("/console/%2e%2e/secret", PAGE),
        ("/console/..%2fsecret", PAGE),
        ("/console//etc/passwd", PAGE),
    ],
)
def test_a_path_gets_its_file_or_the_start_page_and_never_another_file(folder: Path, path: str, body: bytes) -> None:
    assert serve(read_files(folder), path, "GET", {}).body == body


@every_row("path", ["/console/assets/app-0000.js", "/console/assets/../index.html", "/console/assets/app-1a2b.js.gz"])
def test_an_asset_that_does_not_exist_is_not_found(folder: Path, path: str) -> None:
    with pytest.raises(Refusal) as refused:
        serve(read_files(folder), path, "GET", {})
    assert refused.value.code is Code.NOT_FOUND


def test_assets_are_cached_for_good_and_compressed_for_those_who_accept_it(folder: Path) -> None:
    files = read_files(folder)
    answer = serve(files, "/console/assets/app-1a2b.js", "GET", {"accept-encoding": "br, gzip"})
    assert answer.body == ZIPPED
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["vary"] == "accept-encoding"
    assert "cache-control" not in serve(files, "/console/", "GET", {}).headers  # the server's own: no-store


def test_only_the_document_of_terminals_may_have_style_elements_and_no_document_scripts(folder: Path) -> None:
    files, inline = read_files(folder), "'unsafe-inline'"
    policies = {
        path: serve(files, f"/console/{path}", "GET", {}).headers["content-security-policy"].split("; ")
        for path in ("", "terminal/prj_1/ins_1", "terminal.html")
    }
    assert {path: [each for each in found if inline in each] for path, found in policies.items()} == {
        "": [],
        "terminal/prj_1/ins_1": [f"style-src 'self' {inline}"],
        "terminal.html": [f"style-src 'self' {inline}"],
    }
    assert all("script-src 'self'" in found for found in policies.values())


def test_without_a_built_console_the_page_says_how_to_build_it(tmp_path: Path) -> None:
    answer = serve(read_files(tmp_path / "nothing"), "/console/workloads", "GET", {})
    assert (answer.status, b"make console" in answer.body) == (503, True)


@pytest.mark.anyio
@pytest.mark.real_part("postgresql")
@pytest.mark.usefixtures("shared_platform")
async def test_the_root_leads_to_the_console_whose_policy_allows_nothing_from_outside(world: World) -> None:
    client = world.client()
    root = await client.get("/")
    assert (root.status_code, root.headers["location"]) == (307, "/console/")
    page = await client.get("/console/workloads")
    assert page.headers["content-security-policy"] == POLICY
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["cache-control"] == "no-store"
    allowed = [word for part in POLICY.split("; ") for word in part.split()[1:]]
    assert set(allowed) == {"'self'", "'none'", "data:"}
    refused = await client.post("/console/")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET")
