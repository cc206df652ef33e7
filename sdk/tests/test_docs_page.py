"""The page about the SDK is correct: its programs are valid, and the names in them exist."""

import ast
import re

import mooring_sdk
from mooring_sdk import Client, ClientSettings, RetryPolicy
from tests.support.rows import every_row
from tools.generate_sdk import ROOT

TEXT = (ROOT / "docs" / "sdk.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@every_row("program", PROGRAMS)
def test_every_program_of_the_page_can_be_read_and_names_what_there_is(program: str) -> None:
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.ImportFrom):
            assert node.module == "mooring_sdk"
            for name in node.names:
                assert name.name in mooring_sdk.__all__
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "client":
            assert hasattr(Client, node.attr)


def test_the_bounds_on_the_page_are_the_defaults() -> None:
    settings, policy = ClientSettings(), RetryPolicy()
    assert f"timeout_seconds={settings.timeout_seconds:.0f}," in TEXT
    assert f"deadline_seconds={settings.deadline_seconds:.0f}," in TEXT
    assert f"attempts={policy.attempts}, first_pause_seconds={policy.first_pause_seconds}," in TEXT
    assert f"longest_pause_seconds={policy.longest_pause_seconds:.0f})" in TEXT
