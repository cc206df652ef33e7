"""The terminal and the logs in a real browser, on a trial: a command, a reload, hostile output."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.e2e.browser.console_page import ConsolePage
from tests.e2e.browser.people import PASSWORD
from tests.e2e.trial_process import TrialProcess

pytestmark = pytest.mark.real_part("browser")
PICTURES = Path(__file__).resolve().parents[3] / ".test-output" / "console"
CONNECTED = re.compile("^●?connected")
SIZES = {"wide": {"width": 1440, "height": 900}, "narrow": {"width": 390, "height": 844}}


@pytest.fixture(scope="session")
def shell(trial: TrialProcess) -> str:
    """The id of a running instance in whose sandbox commands run."""
    trial.mooring("launch", "hello", "--name", "shell", "--wait")
    return str(json.loads(trial.mooring("instances", "get", "shell", "-o", "json"))["id"])


def screen(page: Page) -> str:
    """What the terminal shows, as its accessible rows say it."""
    return page.evaluate(  # type: ignore[no-any-return]
        "() => [...document.querySelectorAll('.xterm-accessibility-tree > div')].map((e) => e.textContent).join('\\n')"
    )


def expect_output(page: Page, pattern: str) -> None:
    page.wait_for_function(
        """(pattern) => new RegExp(pattern).test(
          [...document.querySelectorAll('.xterm-accessibility-tree > div')].map((e) => e.textContent).join('\\n'))""",
        arg=pattern,
    )


def enter(page: Page, line: str) -> None:
    page.locator(".xterm-helper-textarea").focus()
    page.keyboard.type(f"{line}\n")


def pictured(page: Page, name: str) -> None:
    """Pictures in both sizes and both themes, to look at."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for size, viewport in SIZES.items():
        for theme in ("light", "dark"):
            page.set_viewport_size(viewport)  # type: ignore[arg-type]  # a dict of its form
            page.evaluate("(dark) => document.documentElement.classList.toggle('dark', dark)", theme == "dark")
            page.screenshot(path=PICTURES / f"{name}-{size}-{theme}.png")
    page.set_viewport_size(SIZES["wide"])  # type: ignore[arg-type]  # a dict of its form
    page.evaluate("() => document.documentElement.classList.remove('dark')")


def test_a_terminal_runs_a_command_survives_a_reload_resizes_and_ends_with_its_code(
    console: ConsolePage, shell: str
) -> None:
    console.page.set_viewport_size(SIZES["wide"])  # type: ignore[arg-type]  # a dict of its form
    console.go(f"/workloads/{shell}?tab=members")
    console.sign_in()
    with console.page.context.expect_page() as opened:
        console.page.get_by_role("link", name="Terminal").first.click()
    page = opened.value
    page.on("pageerror", lambda error: console.complaints.append(f"error: {error}"))
    page.on("console", lambda said: console.complaints.append(said.text) if "olicy" in said.text else None)
    state = page.get_by_role("status")
    expect(state).to_have_text(CONNECTED)
    enter(page, "echo before-$((40+2))")
    expect_output(page, "before-42")
    columns = "stty size | cut -d' ' -f2 | sed 's/^/columns=/'"
    enter(page, columns)
    expect_output(page, r"columns=\d+")
    wide = re.findall(r"columns=(\d+)", screen(page))[-1]
    pictured(page, "terminal")
    page.set_viewport_size(SIZES["narrow"])  # type: ignore[arg-type]  # a dict of its form
    enter(page, f"until [ $(stty size | cut -d' ' -f2) -lt {wide} ]; do sleep 0.1; done; echo narrow-$((70+1))")
    expect_output(page, "narrow-71")
    page.set_viewport_size(SIZES["wide"])  # type: ignore[arg-type]  # a dict of its form
    enter(page, "echo kept-$((50+1)); printf '\\033]0;<img src=x onerror=alert(1)>\\007'")
    expect_output(page, "kept-51")
    page.wait_for_function("() => document.title.includes('<img src=x')")  # as text, and in the title alone
    assert page.locator("img[src=x]").count() == 0
    page.reload()
    expect(state).to_have_text(CONNECTED)
    expect_output(page, "kept-51")
    enter(page, "echo again-$((60+1))")
    expect_output(page, "again-61")
    page.get_by_text("My terminals").click()
    expect(page.get_by_text("this window")).to_be_visible()
    page.get_by_text("My terminals").click()
    enter(page, "exit 7")
    expect(state).to_contain_text("ended with exit code 7")
    expect(page.get_by_role("button", name="Start another")).to_be_visible()
    assert ConsolePage(page, console.trial).accessibility() == []


def test_a_viewer_sees_why_there_is_no_terminal_for_them(console: ConsolePage, shell: str, viewer: str) -> None:
    console.go(f"/workloads/{shell}?tab=members")
    console.sign_in(PASSWORD, email=viewer)
    button = console.page.get_by_role("button", name=re.compile("Terminal")).first
    expect(button).to_be_disabled()
    expect(button).to_have_accessible_description(re.compile("you need instance.exec"))
    project = json.loads(console.trial.mooring("instances", "get", "shell", "-o", "json"))["project_id"]
    console.go(f"/terminal/{project}/{shell}")  # by its address too
    expect(console.page.get_by_text(re.compile("Permission denied|does not have instance.exec"))).to_be_visible()


def served_log(route: Route, parts: list[dict[str, object]]) -> None:
    """Answer with the next part; the request after the last one waits."""
    if parts:
        route.fulfill(json={"gaps": [], "unread": [], "scanned_bytes": 0, "at_end": True, **parts.pop(0)})


def a_line(number: int, text: str) -> dict[str, object]:
    named = {"member_id": "mem_01hostile", "member": "web-0", "service": "web"}
    return {**named, "offset": number, "at": None, "text": text, "ends": True}


def test_the_logs_are_searched_and_downloaded_and_what_they_say_is_never_markup(
    console: ConsolePage, shell: str
) -> None:
    page = console.page
    page.set_viewport_size(SIZES["wide"])  # type: ignore[arg-type]  # a dict of its form
    console.go(f"/workloads/{shell}?tab=logs")
    console.sign_in()
    lines = page.get_by_role("region", name="Log lines")
    expect(lines).to_contain_text("hello listens on")
    page.get_by_label("Search in everything that is stored").fill("listens")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_text("1 line found")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert "| hello listens on" in download.value.path().read_text(encoding="utf-8")
    # No app of a trial prints so much or so badly; only the node's answer is made up.
    hostile = (
        "<img src=x onerror=alert(1)> \x1b[31mred\x1b[0m \x1b]8;;javascript:alert(1)\x07link\x1b]8;;\x07 \x1b[2Jend"
    )
    many = [a_line(number, f"line {number}") for number in range(10_000)]
    gap = {"member_id": "mem_01hostile", "member": "web-0", "service": "web", "bytes": 4_096}
    last = [a_line(10_000 + number, hostile) for number in range(3)]
    parts: list[dict[str, object]] = [
        {"items": many, "next_cursor": "c1", "gaps": [gap]},
        {"items": last, "next_cursor": "c2"},
    ]
    page.route(re.compile(r"/app-instances/[^/]+/log\?"), lambda route: served_log(route, parts))
    console.go(f"/workloads/{shell}?tab=logs")
    expect(lines).to_contain_text("<img src=x onerror=alert(1)> red link end")
    assert page.locator("img[src=x]").count() == 0
    expect(lines.get_by_text("red", exact=True).first).to_have_class("text-bad")
    expect(page.get_by_text("4,096 bytes before these lines are not shown")).to_be_visible()
    expect(page.get_by_text("3 earlier ones are in the download")).to_be_visible()
    assert lines.locator("[data-index]").count() < 300
    assert console.accessibility() == []
    pictured(page, "logs")
