"""The methods that are built from the table of operations are those that the OpenAPI document asks for.

The expected signatures are made here from the document itself, without the generator, so that a mistake of the
generator does not hide itself.
"""

import ast
import inspect
import json
import subprocess
import sys
import zipfile
from collections.abc import AsyncGenerator, Generator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

import mooring_sdk
from mooring_sdk import AsyncClient, CallOptions, Client, models
from mooring_sdk.method_builder import LazyMethod
from mooring_sdk.methods import SyncMethods
from tools.generate_sdk import ROOT, SOURCE

DOCUMENT = json.loads(SOURCE.read_text(encoding="utf-8"))
SCHEMAS = DOCUMENT["components"]["schemas"]
OPERATIONS = [
    (path, operation)
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
    if method in ("get", "post", "put", "patch", "delete")
]
SIMPLE = {"string": str, "integer": int, "number": float, "boolean": bool}


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rpartition("/")[2]]
    return schema


def alternatives(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The schemas of a value that may have several types."""
    if isinstance(schema.get("type"), list):
        return [{**schema, "type": each} for each in schema["type"]]
    return list(schema.get("anyOf", [schema]))


def annotation(name: str, schema: dict[str, Any]) -> Any:
    """The annotation of a value, as the document describes it."""
    kinds = alternatives(schema)
    found = [kind_of(name, each) for each in kinds if each != {"type": "null"} and each.get("type") != "null"]
    if len(found) > 1:
        return Any
    nullable = len(found) < len(kinds)
    return found[0] | None if nullable and found[0] is not Any else found[0]


def kind_of(name: str, schema: dict[str, Any]) -> Any:
    if "$ref" in schema:
        plain = resolved(schema)
        if "enum" in plain:
            return str
        return getattr(models, class_name(schema["$ref"].rpartition("/")[2]))
    kind = schema.get("type")
    if kind == "string" and (schema.get("format") == "date-time" or name.endswith("_at")):
        return datetime
    if kind == "array":
        return list[annotation("", schema.get("items", {}))]  # type: ignore[misc]  # a type that is known at run time
    if kind == "object":
        values = schema.get("additionalProperties")
        return dict[str, annotation("", values) if isinstance(values, dict) else Any]  # type: ignore[misc]
    return SIMPLE.get(str(kind), Any)


def class_name(schema: str) -> str:
    if schema.startswith("Page_"):
        return class_name(schema.removeprefix("Page_").rstrip("_")) + "Page"
    short = schema.removesuffix("View")
    return short if short and short not in SCHEMAS else schema


def optional(name: str, schema: dict[str, Any]) -> tuple[Any, Any]:
    """Annotation and default of an optional value."""
    kind = annotation(name, schema)
    if {"type": "null"} in schema.get("anyOf", ()) or "null" in (schema.get("type") or ()):
        if schema.get("default", 0) is not None:
            return kind | msgspec.UnsetType, msgspec.UNSET
        return kind, None
    return (kind if kind is Any else kind | None), None


def named_parameters(operation: dict[str, Any], *, without: str = "") -> dict[str, tuple[Any, Any]]:
    """The keyword-only parameters, each with its annotation and default."""
    found: dict[str, tuple[Any, Any]] = {}
    for each in operation.get("parameters", ()):
        if each["in"] == "query" and each["name"] != without:
            needed = each.get("required", False)
            kind = annotation(each["name"], each["schema"])
            found[each["name"]] = (kind, inspect.Parameter.empty) if needed else optional(each["name"], each["schema"])
    if "requestBody" in operation and not without:
        taken = operation["requestBody"]["content"]
        content = taken.get("application/json") or next(iter(taken.values()))
        body = resolved(content["schema"])
        for name, schema in body.get("properties", {}).items():
            needed = name in body.get("required", ())
            found[name] = (annotation(name, schema), inspect.Parameter.empty) if needed else optional(name, schema)
    return found


def answer_of(operation: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    for status, answer in operation["responses"].items():
        if status.startswith("2"):
            for media_type, content in answer.get("content", {}).items():
                return media_type, content["schema"]
    return None, {}


def check(name: str, path: str, named: dict[str, tuple[Any, Any]]) -> inspect.Signature:
    """Compare the parameters of a method in both clients; returns the signature in the blocking one."""
    positional = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    for client in (Client, AsyncClient):
        parameters = dict(inspect.signature(getattr(client, name)).parameters)
        assert parameters.pop("self").kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        assert parameters.pop("options") == inspect.Parameter(
            "options", inspect.Parameter.KEYWORD_ONLY, default=CallOptions(), annotation=CallOptions
        )
        for each in positional:
            parameter = parameters.pop(each)
            assert parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
            assert (parameter.annotation, parameter.default) == (str, inspect.Parameter.empty), (name, each)
        shown = {each.name.removesuffix("_"): (each.annotation, each.default) for each in parameters.values()}
        assert shown == {each.removesuffix("_"): value for each, value in named.items()}, name
        assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in parameters.values())
    return inspect.signature(getattr(Client, name))


def test_every_operation_has_the_signature_and_the_documentation_of_the_document() -> None:
    for path, operation in OPERATIONS:
        name, about = operation["operationId"], operation["x-mooring"]
        media_type, answer = answer_of(operation)
        if about["streams"] or media_type not in (None, "application/json"):
            assert not hasattr(Client, name), name
            continue
        signature = check(name, path, named_parameters(operation))
        expected = None if media_type is None else annotation("", answer)
        assert signature.return_annotation == expected, name
        for client in (Client, AsyncClient):
            text = inspect.getdoc(getattr(client, name)) or ""
            assert text.startswith(f"{operation['summary']}."), name
            assert operation.get("description", "") in text, name
        assert inspect.iscoroutinefunction(getattr(AsyncClient, name)), name


def test_every_list_has_an_iterator_and_every_stream_a_follower() -> None:
    for path, operation in OPERATIONS:
        rest = operation["operationId"].partition("_")[2]
        about = operation["x-mooring"]
        named = named_parameters(operation, without="cursor")
        if about["streams"]:
            name = f"follow_{rest}"
            named["cursor"] = (str | None, None)
            item: Any = models.TimelineEntry if about["noun"] == "timeline" else models.Event
        elif about["pages"]:
            name = f"iter_{rest}"
            named["most"] = (int | None, None)
            items = resolved(answer_of(operation)[1])["properties"]["items"]
            item = annotation("", resolved(items)["items"])
        else:
            continue
        signature = check(name, path, named)
        assert signature.return_annotation == Generator[item, None, None], name
        assert inspect.signature(getattr(AsyncClient, name)).return_annotation == AsyncGenerator[item, None], name
        assert (inspect.getdoc(getattr(Client, name)) or "").startswith(operation["summary"]), name


def test_the_stubs_say_of_every_method_what_it_is() -> None:
    tree = ast.parse((ROOT / "sdk/mooring_sdk/methods.pyi").read_text(encoding="utf-8"))
    stubs = [each for each in tree.body if isinstance(each, ast.ClassDef)]
    for client, stub in zip((Client, AsyncClient), stubs, strict=True):
        functions = [each for each in stub.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        inherited = {name for name in dir(client.__mro__[1]) if not name.startswith("_")}
        assert {each.name for each in functions} == inherited
        for each in functions:
            method = getattr(client, each.name)
            (built,) = ast.parse(inspect.getsource(method)).body
            assert type(each) is type(built), each.name
            assert isinstance(built, ast.FunctionDef | ast.AsyncFunctionDef)
            assert ast.get_docstring(each) == inspect.getdoc(method)
            assert ast.dump(each.args) == ast.dump(built.args), each.name
            assert ast.dump(each.returns or each) == ast.dump(built.returns or built), each.name


def test_a_method_is_built_when_it_is_first_used() -> None:
    program = (
        "from mooring_sdk import Client\n"
        "from mooring_sdk.methods import SyncMethods\n"
        "before = type(vars(SyncMethods)['create_project']).__name__\n"
        "method = Client.create_project\n"
        "print(before, type(vars(SyncMethods)['create_project']).__name__, method is Client.create_project)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["LazyMethod", "function", "True"]


def test_wrong_arguments_are_refused_as_any_function_refuses_them() -> None:
    with Client("http://localhost:1", token="t") as client:
        with pytest.raises(TypeError, match=r"create_project\(\) missing 2 required keyword-only arguments"):
            client.create_project("ten_1")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"list_projects\(\) got an unexpected keyword argument 'colour'"):
            client.list_projects(colour="red")  # type: ignore[call-arg]


def test_the_source_of_a_method_is_there_for_tracebacks_and_debuggers() -> None:
    assert "self.call(Call(OPERATION" in inspect.getsource(Client.create_project)


def test_a_subclass_may_override_a_method_and_use_the_original() -> None:
    class Audited(Client):
        def get_tenant(self, tenant_id: str, **more: Any) -> models.Tenant:
            raise LookupError(f"{tenant_id} {super().get_tenant.__name__}")

    with Audited("http://localhost:1", token="t") as client, pytest.raises(LookupError, match="ten_1 get_tenant"):
        client.get_tenant("ten_1")


def test_the_help_of_a_client_shows_its_methods() -> None:
    program = "import mooring_sdk; help(mooring_sdk.Client)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert "create_project(self, tenant_id: str, *, slug: str, display_name: str" in done.stdout
    assert LazyMethod.__name__ not in done.stdout
    assert SyncMethods.__name__ in done.stdout


def test_the_package_offers_what_it_says_and_imports_it_when_it_is_used() -> None:
    for name in mooring_sdk.__all__:
        assert getattr(mooring_sdk, name) is not None
    assert set(mooring_sdk.__all__) <= set(dir(mooring_sdk))
    with pytest.raises(AttributeError, match="no attribute 'Klient'"):
        mooring_sdk.Klient  # noqa: B018
    program = "import sys, mooring_sdk, mooring_sdk.operations; print('httpx' in sys.modules, 'msgspec' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "False"]


def test_the_wheel_has_the_stubs_and_the_mark_that_it_is_typed(tmp_path: Path) -> None:
    program = f"import os; os.chdir({str(ROOT / 'sdk')!r}); from hatchling.build import build_wheel; build_wheel({str(tmp_path)!r})"  # noqa: E501
    subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"mooring_sdk/py.typed", "mooring_sdk/methods.pyi", "mooring_sdk/operations.py"} <= set(names)
