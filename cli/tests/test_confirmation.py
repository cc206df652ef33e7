"""Confirmation is the same for everything that ends something for good."""

from collections.abc import Callable

import pytest
from click.testing import Result

from cli.tests.conftest import TerminalResult
from cli.tests.support.fake_platform import PROJECT, CannedResponse, FakeCliPlatform, page
from tests.support.rows import every_row

Run = Callable[..., Result]
AT = f"/api/v1/projects/{PROJECT}"
ENDED = CannedResponse(202, {"id": "op_1", "status": "accepted", "kind": "x", "created_at": "2999-01-31T12:00:00Z"})


@pytest.fixture(autouse=True)
def in_project(environment: dict[str, str], platform: FakeCliPlatform) -> None:
    environment["MOORING_PROJECT"] = PROJECT
    platform.on("GET", f"{AT}/app-instances", page({"id": "ins_1", "name": "web", "status": "running"}))
    platform.on("GET", f"{AT}/attachments", page())


@every_row(
    ("words", "path"),
    [
        (("instances", "stop", "web"), f"{AT}/app-instances/ins_1/stop"),
        (("stop", "web"), f"{AT}/app-instances/ins_1/stop"),
        (("instances", "members", "remove", "ins_1", "mem_1"), f"{AT}/app-instances/ins_1/members/mem_1/remove"),
        (("allocations", "release", "alc_1"), f"{AT}/allocations/alc_1/release"),
        (("allocation-groups", "release", "grp_1"), f"{AT}/allocation-groups/grp_1/release"),
        (("attachments", "detach", "att_1"), f"{AT}/attachments/att_1/detach"),
        (("nodes", "retire", "nod_1", "--reason", "it is sold"), "/api/v1/platform/nodes/nod_1/retire"),
    ],
)
def test_what_ends_something_asks_on_a_terminal_and_needs_yes_elsewhere(
    run: Run,
    on_terminal: Callable[..., TerminalResult],
    platform: FakeCliPlatform,
    words: tuple[str, ...],
    path: str,
) -> None:
    platform.on("POST", path, ENDED)
    platform.asked.clear()
    refused = run(*words)
    assert (refused.exit_code, "give --yes" in refused.stderr) == (1, True)
    assert platform.of("POST") == []
    assert run(*words, "--yes").exit_code == 0
    assert len(platform.of("POST")) == 1


def test_a_terminal_is_asked(on_terminal: Callable[..., TerminalResult], platform: FakeCliPlatform) -> None:
    path = f"{AT}/app-instances/ins_1/members/mem_1/remove"
    platform.on("POST", path, ENDED)
    words = ("instances", "members", "remove", "ins_1", "mem_1")
    assert on_terminal(*words, typed="n\n").exit_code == 1
    assert platform.of("POST") == []
    assert on_terminal(*words, typed="y\n").exit_code == 0
    assert len(platform.of("POST")) == 1
