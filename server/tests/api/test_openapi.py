"""The published contract: valid OpenAPI 3.1, equal to what the routes say, and complete.

The committed document is what clients are made from. A change of a route without generating it again fails here.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import jsonschema_rs
import pytest
import schemathesis

from mooring.api.openapi import document
from mooring.api.problem import MEDIA_TYPE, STATUS
from mooring.api.routes import ROUTES
from mooring.core.kernel.errors import CATALOGUE, Code
from mooring.core.kernel.permissions import ACTIONS, Scope
from tests.support.rows import every_row
from tools import generate_openapi

ROOT: Final = Path(__file__).resolve().parents[3]
RESERVED: Final[dict[str, tuple[Code, ...]]] = {
    "the answer of a path to a method that it does not have: no operation's own": (Code.METHOD_NOT_ALLOWED,),
    "for the end of instances and members": (Code.CLOSING_RECORD_MISSING,),
    "for the catalog and its sources": (Code.TAG_MOVED,),
    "why an operation waits, or why it failed": (Code.NO_CAPACITY,),
}  # fmt: skip
"""Codes that no operation documents yet, by what they are in the catalogue for."""
ASKS = {"begin_passkey", "lint_manifest", "explain_allocation", "plan_instance", "read_exec_recording"}
"""What is asked by POST, since it is too long for an address, and changes nothing."""


@cache
def stored() -> dict[str, Any]:
    """The committed document."""
    content: dict[str, Any] = json.loads(generate_openapi.FILE.read_text(encoding="utf-8"))
    return content


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every operation of the committed document, with its path and method."""
    for path, methods in stored()["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def _named(value: object) -> str:
    return str(value["operationId"]) if isinstance(value, dict) else ""


def test_the_committed_document_is_what_the_routes_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate_openapi.main(["--check"]) == 0, capsys.readouterr().err[:3000]


def test_a_document_that_is_not_what_the_routes_say_is_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "openapi.json"
    assert generate_openapi.main(["--check"], old) == 1
    assert generate_openapi.main([], old) == 0
    assert generate_openapi.main(["--check"], old) == 0
    old.write_text(old.read_text().replace("list_tenants", "list_everything"))
    assert generate_openapi.main(["--check"], old) == 1
    assert '-    "operationId": "list_everything"' in capsys.readouterr().err


def test_it_is_the_same_in_every_process() -> None:
    """No order in it comes from the hashing of text, which is another one in each process."""
    command = (sys.executable, "-c", "from tools.generate_openapi import text; print(text(), end='')")
    environment = {"PYTHONHASHSEED": "1", "PYTHONUTF8": "1"}
    made = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    assert made.stdout == generate_openapi.FILE.read_bytes()


def test_it_is_valid() -> None:
    assert stored()["openapi"] == "3.1.0"
    schemathesis.openapi.from_dict(stored()).validate()
    for name, schema in stored()["components"]["schemas"].items():
        jsonschema_rs.meta.validate(schema)
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name)


def test_every_reference_leads_somewhere_and_nothing_is_left_over() -> None:
    whole = stored()
    named = set(re.findall(r'"#/components/(\w+/[\w.-]+)"', json.dumps(whole)))
    there = {f"{kind}/{name}" for kind, parts in whole["components"].items() for name in parts}
    assert named - there == set()
    assert there - named - {"securitySchemes/bearer"} == set()


def test_every_route_that_is_not_hidden_is_an_operation_with_a_name_of_its_own() -> None:
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(names) == len(set(names))
    assert sorted(names) == sorted(each.name for each in ROUTES if not each.hidden)
    assert all(re.fullmatch(r"[a-z][a-z_]*[a-z]", name) for name in names)


@every_row(("path", "method", "operation"), list(operations()), ids=_named)
def test_every_operation_is_whole(path: str, method: str, operation: dict[str, Any]) -> None:
    said = operation["x-mooring"]
    assert re.fullmatch(r"\S.*[^.\s]", operation["summary"])
    assert operation["tags"] == [said["noun"]]
    assert said["scope"] in set(Scope)
    public = said["scope"] == Scope.PUBLIC
    assert said["action"] == "public" if public else said["action"] in ACTIONS
    assert operation.get("security") == ([] if public else None)
    in_path = [each["name"] for each in operation["parameters"] if each["in"] == "path"]
    assert in_path == re.findall(r"\{(\w+)\}", path)
    headers = {each["name"] for each in operation["parameters"] if each["in"] == "header"}
    assert "X-Correlation-ID" in headers
    assert (
        ("Idempotency-Key" in headers)
        == said["idempotent"]
        == (
            method != "get"
            and not public
            and said["scope"] not in ("node", "runtime")
            and operation["operationId"] not in ASKS
        )
    )
    good = [status for status in operation["responses"] if int(status) < 400]
    assert len(good) == 1
    assert said["errors"], "no operation is without errors"
    for code in said["errors"]:
        assert str(STATUS[Code(code)]) in operation["responses"], code
    for status, answer in operation["responses"].items():
        assert "X-Correlation-ID" in whole_answer(answer)["headers"]
        if int(status) >= 400:
            assert list(whole_answer(answer)["content"]) == [MEDIA_TYPE]
            assert any(str(STATUS[Code(code)]) == status for code in said["errors"]), f"{status} has no code"


def whole_answer(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer itself, where it is a reference to one that several operations share."""
    if "$ref" in answer:
        found: dict[str, Any] = stored()["components"]["responses"][answer["$ref"].rpartition("/")[2]]
        return found
    return answer


def test_every_error_of_the_catalogue_is_documented_or_reserved() -> None:
    documented = {Code(code) for _, _, operation in operations() for code in operation["x-mooring"]["errors"]}
    reserved = {code for codes in RESERVED.values() for code in codes}
    assert set(CATALOGUE) - documented - reserved == set(), "neither documented nor reserved"
    assert documented & reserved == set(), "reserved no more: an operation documents it"


def test_the_document_that_is_served_is_the_committed_one() -> None:
    assert json.loads(json.dumps(document())) == stored()
