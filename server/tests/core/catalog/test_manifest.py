"""Reading manifests: the published schema is what is taken, and what is wrong is named by its place."""

import copy
import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooring.core.catalog.compatibility import Compatibility, Need, NeedKind, ShapeWanted
from mooring.core.catalog.manifest import (
    DEPTH_MAX,
    Component,
    Connect,
    Environment,
    ManifestPort,
    ManifestProbe,
    ManifestVolume,
    canonical,
    manifest_digest,
    normal,
    read_manifest,
    stored_manifest,
)
from mooring.core.catalog.manifest_schema import MANIFEST_SCHEMA
from mooring.core.catalog.operating_mode import DEFAULT_MODE, ControlPlaneScope, OperatingMode
from mooring.core.kernel.finding import FINDINGS_MAX, Severity
from mooring.core.kernel.json_schema import KEYWORDS, UnknownKeyword, findings_of, type_of
from server.tests.support.manifests import EVERY_APP, Plain, controller, digest, launchable, oci, read
from tests.support.rows import every_row

PUBLISHED: Plain = dict(MANIFEST_SCHEMA)
ORACLE = jsonschema_rs.Draft202012Validator(PUBLISHED)


def at(plain: Any, pointer: str) -> Any:
    """The value that a pointer names, as RFC 6901 says."""
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        plain = plain[int(key)] if isinstance(plain, list) else plain[key]
    return plain


def changed(plain: Plain, pointer: str, value: object) -> Plain:
    """A copy with another value at the place; `...` takes it out."""
    copied = copy.deepcopy(plain)
    parent, _, last = pointer.rpartition("/")
    holder = at(copied, parent)
    if value is ...:
        del holder[int(last) if isinstance(holder, list) else last]
    elif isinstance(holder, list):
        holder.insert(int(last), value)
    else:
        holder[last] = value
    return copied


# The schema


def test_the_published_schema_is_valid_json_schema() -> None:
    jsonschema_rs.meta.validate(PUBLISHED)
    assert json.loads(json.dumps(MANIFEST_SCHEMA)) == MANIFEST_SCHEMA


def every_node(schema: Any, pointer: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Each schema within the schema, by its place."""
    found = [(pointer, schema)]
    for word in ("properties", "$defs"):
        for name, inner in schema.get(word, {}).items():
            found += every_node(inner, f"{pointer}/{word}/{name}")
    for word in ("items", "additionalProperties", "propertyNames"):
        if isinstance(schema.get(word), dict):
            found += every_node(schema[word], f"{pointer}/{word}")
    return found


def test_everything_in_the_schema_is_bounded_and_understood() -> None:
    for pointer, node in every_node(MANIFEST_SCHEMA):
        types = node.get("type", ())
        assert node.keys() <= KEYWORDS, pointer
        if "string" in types and "form" not in pointer:
            assert {"maxLength", "enum", "pattern"} & node.keys(), pointer
        if "array" in types:
            assert "maxItems" in node, pointer
        if "integer" in types and "form" not in pointer:
            assert {"minimum", "maximum"} <= node.keys(), pointer
        if "object" in types:
            assert node.get("additionalProperties") is False or "maxProperties" in node, pointer


def test_every_field_of_the_manifest_is_described() -> None:
    for pointer, node in every_node({**MANIFEST_SCHEMA, "$defs": {}}):
        if "/properties/" in pointer and "/items" not in pointer:
            assert node.get("description"), pointer


# Agreement with an independent validator

SPOILS: list[object] = [
    None, True, 0, 1, 1.0, 1.5, -1, 10**30, "", "x", "A b", "^[a-z]$", "nginx:latest", digest("f"), "\n", [], ["x"],
    [1, 1.0], {}, {"x": 1}, {"type": "string"}, {"a": [{}]},
]  # fmt: skip


def every_place(plain: Any, pointer: str = "") -> list[str]:
    places = [pointer]
    inner = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    for key, value in inner:
        places += every_place(value, f"{pointer}/{key}")
    return places


FULL = {**launchable(), **controller(), "runtime_profile": launchable()["runtime_profile"], "release_notes": "new"}
FULL["compatibility"] = {
    "requires_capacity_shape": "baremetal", "min_gpu_count": 8, "requires_exclusive_node": True, "multi_node": True,
    "needs": [{"fact": "rdma", "equals": True}, {"fact": "gpu", "one_of": ["a", "b"]}, {"fact": "mem", "at_least": 80}],
}  # fmt: skip
PLACES = [place for place in every_place(FULL) if place]


@every_row("name", EVERY_APP)
def test_the_manifests_of_the_design_are_taken_by_both(name: str) -> None:
    ORACLE.validate(EVERY_APP[name])
    assert read_manifest(EVERY_APP[name]).findings == ()


@settings(max_examples=150)
@given(st.sampled_from(PLACES), st.sampled_from([..., *SPOILS]))
def test_the_reader_takes_exactly_what_the_published_schema_takes(place: str, spoil: object) -> None:
    spoiled = changed(FULL, place, spoil)

    findings = tuple(findings_of(spoiled, MANIFEST_SCHEMA))
    assert ORACLE.is_valid(spoiled) is (not findings), (place, spoil, findings)
    for finding in findings:
        at(spoiled, finding.pointer)
        assert finding.reason
        assert finding.fix
        assert finding.severity is Severity.ERROR


@settings(max_examples=40)
@given(
    st.recursive(
        st.sampled_from(SPOILS),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    )
)
def test_no_json_value_makes_the_reader_fail(value: object) -> None:
    reading = read_manifest(value)

    assert reading.manifest is None
    assert reading.findings


@every_row("name", EVERY_APP)
def test_a_stored_manifest_is_what_the_reader_reads_and_another_one_is_not_taken_for_it(name: str) -> None:
    value = EVERY_APP[name]
    assert stored_manifest(value) == read_manifest(value).manifest
    assert stored_manifest(dict(reversed(value.items()))) is stored_manifest(value)
    another = {**value, "version": "9.9.9"}
    assert stored_manifest(another) == read_manifest(another).manifest != stored_manifest(value)
    assert stored_manifest({**value, "manifest_version": "one"}) is None
    assert stored_manifest({"manifest_version": 1, "app": "web-tool"}) is None


# What is read


def test_a_whole_manifest_becomes_typed_values() -> None:
    manifest = read(FULL)

    assert (manifest.app, manifest.version, manifest.artifact_kind) == ("cluster", "1.4.0", "controller")
    assert manifest.digests == (digest("d"), digest("e"))
    wanted = manifest.compatibility
    assert (wanted.requires_capacity_shape, wanted.min_gpu_count) == (ShapeWanted.BAREMETAL, 8)
    assert wanted.needs == (
        Need("rdma", NeedKind.EQUALS, True),
        Need("gpu", NeedKind.ONE_OF, ("a", "b")),
        Need("mem", NeedKind.AT_LEAST, 80),
    )
    assert wanted.members_max == 101
    profile = manifest.runtime_profile
    assert profile is not None
    assert profile.ports == (ManifestPort("web", 8080, "tcp"),)
    assert profile.env[1] == Environment("MODEL", from_config="model")
    assert profile.probes == {"readiness": ManifestProbe("http", "web", "/ready")}
    assert profile.volumes == (ManifestVolume("weights", "/weights", "artifact", "weights"),)
    assert manifest.components[1] == Component("worker", 100, "Worker", 0)
    assert manifest.endpoints[0].connect == (Connect("command", "Log in", "ssh -p {port} {host}"),)
    assert manifest.lifecycle is not None
    assert manifest.lifecycle.upgrade.from_versions == (">=1.0.0 <2.0.0",)
    assert manifest.runbook is not None
    assert manifest.runbook.entries[0].symptom == "a worker does not join"


@every_row(
    ("given", "wanted"),
    [
        (["baremetal", "gpu_slice"], ShapeWanted.ANY),
        (["gpu_slice", "baremetal"], ShapeWanted.ANY),
        (["gpu_slice"], ShapeWanted.GPU_SLICE),
        (["baremetal"], ShapeWanted.BAREMETAL),
        ("any", ShapeWanted.ANY),
    ],
)
def test_a_list_of_shapes_becomes_the_one_name_for_them(given: object, wanted: ShapeWanted) -> None:
    block = {"requires_capacity_shape": given, "min_gpu_count": 1, "requires_exclusive_node": False}
    document = oci(compatibility=block)

    ORACLE.validate(document)
    compatibility = read(document).compatibility
    assert compatibility == Compatibility(wanted, 1)
    assert stored_manifest(document) == read(document)


@every_row("given", [[], ["any"], ["gpu_slice", "gpu_slice"], ["gpu_slice", "whole"], "whole", [["gpu_slice"]]])
def test_a_list_that_is_not_of_shapes_is_refused(given: object) -> None:
    document = oci(compatibility={"requires_capacity_shape": given})

    assert not ORACLE.is_valid(document)
    assert [each.rule for each in read_manifest(document).findings] == ["enum"]


def test_what_is_left_out_has_the_default_that_the_schema_states() -> None:
    manifest = read(oci())

    assert manifest.operating_modes == (DEFAULT_MODE,)
    assert DEFAULT_MODE == (OperatingMode.TENANT_DEDICATED, ControlPlaneScope.PROJECT)
    assert manifest.runtime_backend == MANIFEST_SCHEMA["properties"]["runtime_backend"]["default"]
    stated = MANIFEST_SCHEMA["properties"]["compatibility"]["properties"]
    for name in ("requires_capacity_shape", "min_gpu_count", "requires_exclusive_node", "multi_node"):
        assert getattr(manifest.compatibility, name) == stated[name]["default"]
    assert manifest.compatibility.members_max == 1
    probe, stated = ManifestProbe("tcp"), MANIFEST_SCHEMA["$defs"]["probe"]["properties"]
    for name in ("initial_delay_seconds", "period_seconds", "timeout_seconds", "failures_max"):
        assert getattr(probe, name) == stated[name]["default"]


@every_row(
    ("place", "value", "pointer", "rule", "said"),
    [
        ("/artifacts/head", "nginx:latest", "/artifacts/head", "pattern", "sha256"),
        ("/artifacts/head", digest("D"), "/artifacts/head", "pattern", "sha256"),
        ("/artifacts/head", digest("d") + "\n", "/artifacts/head", "too_many", "71"),
        ("/runtime_profile/image", "a.example/app:1", "/runtime_profile/image", "pattern", "never named by a tag"),
        ("/runtime_profil", {}, "/runtime_profil", "unknown", "did you mean `runtime_profile`?"),
        ("/version", ..., "", "missing", "add `version`: the semantic version"),
        ("/version", "1.0", "/version", "pattern", "semantic version"),
        ("/version", 1, "/version", "type", "a text"),
        ("/components/0/max_count", 0, "/components/0/max_count", "minimum", "at least 1"),
        ("/components/0/max_count", 1e9, "/components/0/max_count", "maximum", "at most 10000"),
        ("/compatibility/needs", [{"fact": "rdma"}], "/compatibility/needs/0", "one_of", "exactly one of"),
        ("/compatibility/needs", [{"fact": "a", "equals": 1, "at_least": 2}], "/compatibility/needs/0", "one_of", "of"),
        ("/artifact_kind", "vm", "/artifact_kind", "enum", "oci, launchable, controller"),
        ("/artifacts", {}, "/artifacts", "too_few", "at least 1"),
        ("/required_actions", ["a", "a"], "/required_actions/1", "unique", "remove it"),
        ("/manifest_version", 2, "/manifest_version", "const", "write 1"),
    ],
)  # fmt: skip
def test_a_finding_says_where_why_and_what_to_do(place: str, value: object, pointer: str, rule: str, said: str) -> None:
    (finding,) = read_manifest(changed(FULL, place, value)).findings

    assert (finding.pointer, finding.rule) == (pointer, rule)
    assert said in f"{finding.reason} {finding.fix}"


def test_a_key_with_a_slash_is_named_by_its_escaped_pointer() -> None:
    findings = read_manifest(changed(oci(), "/artifacts", {"a/b~c": digest("a")})).findings

    assert [finding.pointer for finding in findings] == ["/artifacts/a~1b~0c"]


def test_all_findings_come_at_once_up_to_a_bound() -> None:
    two = read_manifest(changed(changed(FULL, "/app", "X"), "/version", "x")).findings
    many = read_manifest(changed(FULL, "/artifacts", {f"Bad {number}": "x" for number in range(500)})).findings

    assert [finding.pointer for finding in two] == ["/app", "/version"]
    assert len(many) == FINDINGS_MAX


def test_what_is_nested_too_deeply_is_refused_before_it_is_read() -> None:
    deep: Any = "x"
    for _ in range(5_000):
        deep = [deep]
    (finding,) = read_manifest(changed(oci(), "/release_notes", deep)).findings

    assert finding.rule == "too_deep"


def test_a_schema_of_the_deepest_allowed_form_is_still_read() -> None:
    form: Plain = {"type": "string"}
    for _ in range((DEPTH_MAX - 5) // 2):
        form = {"type": "object", "properties": {"a": form}}

    assert read_manifest(oci(config_schema=form)).findings == ()


def test_what_is_too_large_is_refused() -> None:
    entry = {"symptom": "s", "steps": "x" * 8_000}
    (finding,) = read_manifest(controller(runbook={"summary": "s", "entries": [entry] * 64})).findings

    assert finding.rule == "too_large"


@every_row("text", ["a\0b", "\ud800", "x\udfff"])
def test_a_text_that_no_database_keeps_is_refused(text: str) -> None:
    assert [each.rule for each in read_manifest(oci(release_notes=text)).findings] == ["unstorable"]
    assert [each.rule for each in read_manifest({**oci(), text: 1}).findings] == ["unstorable"]


def test_numbers_that_json_does_not_know_are_refused() -> None:
    for number in (float("nan"), float("inf"), -float("inf")):
        (finding,) = read_manifest(oci(compatibility={"min_gpu_count": number})).findings
        assert (finding.pointer, finding.rule) == ("/compatibility/min_gpu_count", "type")


def test_a_number_without_end_is_refused_and_not_written_out() -> None:
    (finding,) = read_manifest(oci(compatibility={"min_gpu_count": 10**5_000})).findings

    assert finding.reason == "a number of 16610 bits is too large"


# The digest


def test_equal_manifests_have_one_digest_however_they_were_written() -> None:
    shuffled = dict(reversed(list(oci(compatibility={"min_gpu_count": 1, "multi_node": False}).items())))
    same = oci(compatibility={"multi_node": False, "min_gpu_count": 1.0})

    assert manifest_digest(normal(shuffled)) == manifest_digest(normal(same))
    assert manifest_digest(oci()) != manifest_digest(oci(version="1.0.1"))
    assert canonical({"b": 1, "a": ["ä"]}) == '{"a":["ä"],"b":1}'.encode()
    assert normal({"a": [1.0, 1.5, True, "1.0", 1e3]}) == {"a": [1, 1.5, True, "1.0", 1000]}


# The validator itself


def test_a_schema_that_says_more_than_is_checked_is_a_mistake_of_ours() -> None:
    for schema in (
        {"minContains": 1},
        {"$ref": "https://example.org/schema"},
        {"oneOf": [{"type": "string"}], "type": "object"},
        {"pattern": "a+"},
    ):
        with pytest.raises(UnknownKeyword):
            list(findings_of({} if "oneOf" in schema else "x", schema))


def test_types_are_those_of_json() -> None:
    values: list[object] = [None, True, 1, 1.0, 1.5, "1", [], {}]

    assert [type_of(value) for value in values] == [
        "null",
        "boolean",
        "integer",
        "integer",
        "number",
        "string",
        "array",
        "object",
    ]
    with pytest.raises(TypeError):
        type_of(object())
