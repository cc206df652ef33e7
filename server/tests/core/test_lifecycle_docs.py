"""What is made from the tables, or written beside them: seed rows, the generated page, the glossary."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from mooring.core.fleet.node import NODE
from mooring.core.identity.service_account import SERVICE_ACCOUNT
from mooring.core.kernel.lifecycle import WHO_MEANING, AnyLifecycle, Who
from mooring.core.lifecycle_docs import closing_rows, matrix, mermaid, page, states
from mooring.core.lifecycles import LIFECYCLES
from mooring.core.runtime.closing_record import ClosingKind, ClosingReason, TeardownProof
from tests.support.rows import every_row

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "lifecycles.md"
GLOSSARY = ROOT / "docs" / "glossary.md"

NOUNS = """
    allocation, app, app action, app version, artifact, artifact hold, artifact source, attachment,
    audit row, budget, closing record, correlation id, entitlement, event, instance, ledger entry,
    member, node, operation, owner, policy, principal, project, receipt, secret grant, service account,
    SKU, slot, task, tenant, usage record
"""


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """The tool that writes the page, loaded from its file: tools are no package."""
    spec = importlib.util.spec_from_file_location("generate_lifecycles", ROOT / "tools" / "generate_lifecycles.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def glossary_headings() -> list[str]:
    lines = GLOSSARY.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("### ") for line in lines if line.startswith("### ")]


def test_the_page_is_what_the_tables_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(LIFECYCLES), "run tools/generate_lifecycles.py"


def test_the_tool_writes_the_page_and_finds_a_change_in_it(
    generator: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "docs" / "lifecycles.md"

    assert generator.main(["--check"], target) == 1
    assert generator.main([], target) == 0
    assert generator.main(["--check"], target) == 0
    assert capsys.readouterr().err.endswith("run tools/generate_lifecycles.py\n")

    stored = target.read_text(encoding="utf-8")
    target.write_text(stored.replace("[*] --> draft", "[*] --> sketch"), encoding="utf-8")
    assert generator.main(["--check"], target) == 1
    assert "-    [*] --> sketch\n+    [*] --> draft\n" in capsys.readouterr().err


def test_the_tool_writes_where_the_test_looks(generator: ModuleType) -> None:
    assert generator.PAGE == PAGE


def test_the_seed_names_the_states_that_need_closing_records() -> None:
    assert closing_rows(LIFECYCLES) == (("instance", "stopped"), ("member", "removed"))


def test_states_are_plain_text_in_the_order_of_their_declaration() -> None:
    assert states(NODE) == ("enrolled", "pending", "ready", "draining", "drained", "retired")
    assert all(type(word) is str for word in states(NODE))


def test_a_diagram_shows_birth_edges_and_ends() -> None:
    assert mermaid(SERVICE_ACCOUNT).splitlines() == [
        "stateDiagram-v2",
        "    [*] --> active",
        "    active --> disabled: disable (user)",
        "    active --> deleted: delete (user)",
        "    disabled --> active: enable (user)",
        "    disabled --> deleted: delete (user)",
        "    deleted --> [*]",
    ]


def test_a_matrix_shows_every_cell() -> None:
    assert matrix(SERVICE_ACCOUNT).splitlines() == [
        "| state | disable | enable | delete |",
        "| --- | --- | --- | --- |",
        "| active | disabled | · | deleted |",
        "| disabled | · | active | deleted |",
        "| deleted | · | · | · |",
    ]


@every_row("machine", LIFECYCLES, ids=lambda machine: machine.name)
def test_the_page_explains_every_state_and_every_edge(machine: AnyLifecycle) -> None:
    text = page((machine,))

    assert machine.about in text
    assert f"```mermaid\n{mermaid(machine)}\n```" in text
    assert matrix(machine) in text
    for state in machine.states:
        assert f"| {state} | {machine.meaning[state]} |" in text
    for edge in machine.edges:
        assert f"| {edge.source} | {edge.trigger} | {edge.target} | {edge.by} | {edge.why} |" in text
    for column in {column for columns in machine.requires.values() for column in columns}:
        assert f"`{column}`" in text


def test_the_page_explains_who_and_every_word_about_closing_records() -> None:
    text = page(LIFECYCLES)

    assert list(WHO_MEANING) == list(Who)
    for word in (*Who, *ClosingKind, *TeardownProof, *ClosingReason):
        assert f"- `{word}`: " in text
    assert "- `stopped` of instance\n- `removed` of member\n" in text


def test_the_glossary_has_every_noun_and_every_verb_of_a_lifecycle() -> None:
    nouns = {" ".join(noun.split()) for noun in NOUNS.split(",")}
    verbs = {trigger.value.replace("_", " ") for machine in LIFECYCLES for trigger in machine.triggers}

    assert sorted((nouns | verbs) - set(glossary_headings())) == []


def test_the_glossary_is_alphabetical_and_says_something_under_every_heading() -> None:
    headings = glossary_headings()

    assert headings == sorted(set(headings), key=str.casefold)
    for entry in GLOSSARY.read_text(encoding="utf-8").split("\n### ")[1:]:
        heading, _, text = entry.partition("\n")
        assert text.strip().endswith("."), heading
