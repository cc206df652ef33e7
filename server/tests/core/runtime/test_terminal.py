"""Terminals of an app: which member a command runs on, as which user, and never as root."""

from typing import Any

import pytest

from mooring.core.catalog.manifest import Manifest, read_manifest
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.runtime.adapter_report import AdapterReport, EndpointReport, InstanceReport, take_report
from mooring.core.runtime.visit import Terminal, choose_terminal
from server.tests.support.decision_context import context
from server.tests.support.made_things import manifest_of
from server.tests.support.runtime_rows import instance, member, seen
from tests.support.rows import every_row

LOGIN: dict[str, Any] = {"name": "login", "member_id": "mem_head", "protocol": "terminal", "user": "ada"}
WEB: dict[str, Any] = {"name": "web", "member_id": "mem_head", "protocol": "http", "port": 80}


def declared(**endpoint: Any) -> Manifest:
    """A manifest with a terminal."""
    plain = manifest_of("shell") | {"endpoints": [{"name": "login", "protocol": "terminal", **endpoint}]}
    found = read_manifest(plain).manifest
    assert found is not None
    return found


def test_a_terminal_that_was_reported_is_at_its_member() -> None:
    of = instance(endpoints=[WEB, {**LOGIN, "directory": "/home/ada", "environment": {"A": "b"}}])
    here = member()
    found = choose_terminal(of, None, [here], None)
    assert found == (Terminal("login", "ada", "/home/ada", {"A": "b"}), here)
    assert choose_terminal(of, declared(user="other"), [here], "login") == found


def test_one_that_the_manifest_declares_is_at_the_first_member_that_is_up() -> None:
    members = [
        member(status=status, id=f"mem_{number}", ordinal=number)
        for number, status in enumerate(("failed", "degraded", "ready"))
    ]
    terminal, at = choose_terminal(instance(endpoints=[WEB]), declared(), members, None)
    assert (terminal, at.id) == (Terminal("login", "app"), "mem_1")
    with pytest.raises(Refusal) as refused:
        choose_terminal(instance(), declared(), members[:1], None)
    assert refused.value.code is Code.CONFLICT


@every_row(
    ("endpoints", "name", "code"),
    [
        ([WEB], None, Code.CONFLICT),
        ([WEB], "web", Code.CONFLICT),
        ([LOGIN], "other", Code.VALIDATION_FAILED),
        ([LOGIN, {**LOGIN, "name": "second"}], None, Code.VALIDATION_FAILED),
        ([{**LOGIN, "member_id": "mem_gone"}], None, Code.CONFLICT),
    ],
)
def test_a_terminal_that_cannot_be_opened_is_refused(
    endpoints: list[dict[str, Any]], name: str | None, code: Code
) -> None:
    with pytest.raises(Refusal) as refused:
        choose_terminal(instance(endpoints=endpoints), None, [member()], name)
    assert refused.value.code is code


@every_row(
    "wrong",
    [
        {**LOGIN, "user": "root"},
        {**LOGIN, "user": "0"},
        {**LOGIN, "user": "1000:0"},
        {**LOGIN, "port": 22},
        {**LOGIN, "path": "/x"},
        {**WEB, "user": "ada"},
        {**WEB, "environment": {"A": "b"}},
    ],
)
def test_an_adapter_reports_no_terminal_of_roots_and_no_port_with_a_user(wrong: dict[str, Any]) -> None:
    of = seen(member())
    with pytest.raises(Refusal) as refused:
        take_report(context(), of, AdapterReport(instance=InstanceReport(endpoints=(EndpointReport(wrong),))))
    assert refused.value.code is Code.VALIDATION_FAILED
