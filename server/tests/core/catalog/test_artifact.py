"""Artifacts: canonical digests, one text for each place, and who may see what."""

import re
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooring.core.catalog.artifact import (
    SOURCES_OF,
    Artifact,
    ArtifactKind,
    ArtifactSpec,
    Visibility,
    algorithm_of,
    is_visible,
    owner_of,
    read_digest,
    read_source,
    register_artifact,
    serves_owner,
)
from mooring.core.catalog.artifact_location import (
    ArtifactSource,
    SourceTier,
    SourceType,
    covers,
    read_location,
    read_pattern,
    source_of,
)
from mooring.core.catalog.promotion_lifecycle import PROMOTION
from mooring.core.catalog.trust_lifecycle import TRUST
from mooring.core.kernel.decision import Insert
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix, is_id
from server.tests.support.catalog_rows import artifact
from server.tests.support.decision_context import NOW, OTHER_PROJECT, OTHER_TENANT, PROJECT, TENANT, context
from server.tests.support.manifests import digest
from tests.support.rows import every_row

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def path_of(refused: pytest.ExceptionInfo[Refusal]) -> object:
    assert refused.value.code is Code.VALIDATION_FAILED
    return refused.value.details["path"]


# Digests


@settings(max_examples=30)
@given(st.binary(min_size=32, max_size=32))
def test_a_canonical_digest_is_taken(content: bytes) -> None:
    assert read_digest(f"sha256:{content.hex()}") == f"sha256:{content.hex()}"
    assert algorithm_of(f"sha256:{content.hex()}") == "sha256"


@every_row(
    "text",
    [
        "", "latest", "app:latest", digest("a")[:-1], digest("a") + "0", digest("A"), digest("g"),
        "sha512:" + "a" * 128, "SHA256:" + "a" * 64, "a" * 64, digest("a") + "\n", " " + digest("a"),
        f"registry.example/app@{digest('a')}", "sha256:" + "１" * 64,
    ],
)  # fmt: skip
def test_a_digest_that_is_not_canonical_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as refused:
        read_digest(text)
    assert path_of(refused) == "digest"


# Locations


@every_row(
    ("given_", "source_type", "canonical"),
    [
        ("oci://Registry.Example/team/app", SourceType.OCI, "oci://registry.example/team/app"),
        ("oci://registry.example:443/a", SourceType.OCI, "oci://registry.example/a"),
        ("oci://127.0.0.1:5000/a/b-c__d.e", SourceType.OCI, "oci://127.0.0.1:5000/a/b-c__d.e"),
        ("https://Files.Example/a/b.bin", SourceType.HTTPS, "https://files.example/a/b.bin"),
        ("https://files.example:443", SourceType.HTTPS, "https://files.example/"),
        ("s3://my-bucket/a/b=1/c.safetensors", SourceType.S3, "s3://my-bucket/a/b=1/c.safetensors"),
        (
            f"huggingface://owner/name@{COMMIT}/model.bin",
            SourceType.HUGGINGFACE,
            f"huggingface://owner/name@{COMMIT}/model.bin",
        ),
        (
            f"huggingface://datasets/owner/name@{COMMIT}/a/b",
            SourceType.HUGGINGFACE,
            f"huggingface://datasets/owner/name@{COMMIT}/a/b",
        ),
        ("file:models/a.bin", SourceType.FILE, "file:models/a.bin"),
    ],
)
def test_a_place_has_one_text(given_: str, source_type: SourceType, canonical: str) -> None:
    location = read_location(given_)

    assert (location.source_type, location.text) == (source_type, canonical)
    assert read_location(location.text) == location
    assert location.text.endswith(location.rest)


@every_row(
    "text",
    [
        "", "registry.example/app", "ftp://a.example/x", "oci:registry.example/app", "oci://registry.example",
        "oci://registry.example/app:latest", f"oci://registry.example/app@{digest('a')}", "oci://registry.example/App",
        "oci://registry.example/a//b", "oci://user@registry.example/a", "oci://registry.example/../a",
        "oci:///app", "http://files.example/a", "https://files.example/a?token=1", "https://files.example/a/../b",
        "https://files.example/a/%2e%2e/b", "https://files.example/a%2fb", "https://user:x@files.example/a",
        "https://files.example/a//b", "https://files.example/a#b", "s3://b/k", "s3://bucket", "s3://bucket/",
        "s3://Bucket/k", "s3://buc..ket/k", "s3://bucket/../k", "s3://bucket/a b", "s3://bucket/a?x",
        "huggingface://owner/name/model.bin", "huggingface://owner/name@main/model.bin",
        f"huggingface://owner/name@{COMMIT}/../x", f"huggingface://owner/name@{COMMIT}/", "file:/etc/passwd",
        "file:///etc/passwd", "file:../x", "file:a/../../x", "file:", "file:a\0b", "file:./a",
        "s3://bucket/" + "a" * 1000,
    ],
)  # fmt: skip
def test_a_place_in_another_text_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as refused:
        read_location(text)
    assert path_of(refused) == "location"


@every_row(
    "text",
    [
        "*", "oci://*", "file:*", "oci://registry.example/*", "oci://registry.example:5000/team/*", "s3://bucket/*",
        "s3://bucket/a/*", "https://files.example/*", "https://files.example/a/*", "huggingface://owner/*",
        f"huggingface://owner/name@{COMMIT}/*", "file:models/*", "oci://registry.example/team/app",
    ],
)  # fmt: skip
def test_a_pattern_is_a_place_or_how_one_begins(text: str) -> None:
    assert read_pattern(text) == text


def test_a_pattern_is_made_canonical_as_a_place_is() -> None:
    assert read_pattern("oci://Registry.Example:443/team/*") == "oci://registry.example/team/*"


@every_row(
    "text",
    [
        "oci://registry.example*", "oci://*.example/a", "oci://*/a/*", "oci://registry.example/a*", "**", "",
        "https://files.example/../*", "s3://*/a", "nope://x/*", "oci://registry.example/team:tag/*", "huggingface://*x/*",
        f"huggingface://owner/name@{COMMIT}/../*",
    ],
)  # fmt: skip
def test_a_pattern_that_could_match_another_host_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as refused:
        read_pattern(text)
    assert path_of(refused) == "pattern"


def test_one_pattern_covers_another_when_it_matches_all_of_it() -> None:
    assert covers("oci://a.example/*", "oci://a.example/x")
    assert covers("oci://a.example/*", "oci://a.example/x/*")
    assert covers("*", "oci://a.example/*")
    assert not covers("oci://a.example/x/*", "oci://a.example/*")
    assert not covers("oci://a.example/x", "oci://a.example/x/*")
    assert not covers("oci://a.example/*", "*")


# Sources


def source(pattern: str, tenant_id: str | None = None, **changes: Any) -> ArtifactSource:
    return ArtifactSource(f"src_{pattern}_{tenant_id}", tenant_id, "source", pattern, 0, NOW, **changes)


def test_a_tenant_uses_the_platforms_sources_and_its_own() -> None:
    place = read_location("oci://registry.example/team/app")
    ours, theirs = source("oci://registry.example/*", TENANT), source("oci://registry.example/*", OTHER_TENANT)
    platform = source("oci://registry.example/*", reaches_private=True)

    assert source_of(place, [theirs], TENANT) is None
    assert source_of(place, [theirs, ours], TENANT) == ours
    assert source_of(place, [ours, platform], TENANT) == platform
    assert source_of(place, [source("s3://bucket/*")], TENANT) is None
    assert source_of(place, [ours], None) is None
    exact = source("oci://registry.example/team/*", TENANT)
    assert source_of(place, [platform, exact], TENANT) == exact
    assert (platform.tier, ours.tier) == (SourceTier.PLATFORM, SourceTier.TENANT)


@every_row("kind", ArtifactKind)
@every_row(
    "location", ["oci://a.example/x", "https://a.example/x", "s3://bucket/x", f"huggingface://o/n@{COMMIT}/x", "file:x"]
)
def test_an_image_lies_in_a_registry_and_a_blob_anywhere(kind: ArtifactKind, location: str) -> None:
    if SourceType(re.split("[:]", location)[0]) in SOURCES_OF[kind]:
        assert read_source(kind, location).text == location
    else:
        with pytest.raises(Refusal) as refused:
            read_source(kind, location)
        assert (path_of(refused), kind) == ("location", ArtifactKind.OCI)


def test_a_stated_source_type_is_that_of_the_place() -> None:
    assert read_source(ArtifactKind.BLOB, "s3://bucket/x", SourceType.S3).source_type is SourceType.S3
    with pytest.raises(Refusal) as refused:
        read_source(ArtifactKind.BLOB, "s3://bucket/x", SourceType.HTTPS)
    assert path_of(refused) == "source_type"


# Visibility


@every_row(
    ("visibility", "place", "owner"),
    [
        (Visibility.PLATFORM, (None, None), (None, None)),
        (Visibility.TENANT, (TENANT, None), (TENANT, None)),
        (Visibility.TENANT, (TENANT, PROJECT), (TENANT, None)),
        (Visibility.PROJECT, (TENANT, PROJECT), (TENANT, PROJECT)),
        (Visibility.PLATFORM, (TENANT, PROJECT), None),
        (Visibility.TENANT, (None, None), None),
        (Visibility.PROJECT, (TENANT, None), None),
    ],
)
def test_nobody_publishes_beyond_their_own_place(
    visibility: Visibility, place: tuple[str | None, str | None], owner: tuple[str | None, str | None] | None
) -> None:
    if owner is None:
        with pytest.raises(Refusal) as refused:
            owner_of(visibility, *place)
        assert path_of(refused) == "visibility"
    else:
        assert owner_of(visibility, *place) == owner


def test_an_artifact_is_seen_by_those_it_is_for() -> None:
    platform = artifact(tenant_id=None, visibility="platform")
    tenant = artifact()
    project = artifact(project_id=PROJECT, visibility="project")
    places = [(None, None), (TENANT, None), (TENANT, PROJECT), (TENANT, OTHER_PROJECT), (OTHER_TENANT, OTHER_PROJECT)]

    assert [is_visible(platform, *place) for place in places] == [True] * 5
    assert [is_visible(tenant, *place) for place in places] == [False, True, True, True, False]
    assert [is_visible(project, *place) for place in places] == [False, False, True, False, False]
    owners = (None, TENANT, OTHER_TENANT)
    assert [serves_owner(platform, owner) for owner in owners] == [True, True, True]
    assert [serves_owner(tenant, owner) for owner in owners] == [False, True, False]
    assert [serves_owner(project, owner) for owner in owners] == [False, False, False]


# Registering


def requested(**changes: Any) -> ArtifactSpec:
    given_: dict[str, Any] = {
        "kind": ArtifactKind.OCI,
        "location": "oci://Registry.example/team/app",
        "digest": digest("a"),
        "size_bytes": 10,
        "labels": {"tag": "v1", "arch": "amd64"},
        **changes,
    }
    return ArtifactSpec(**given_)


def test_a_registered_artifact_is_a_draft_and_unverified() -> None:
    decision = register_artifact(context(), requested(), tenant_id=TENANT, project_id=PROJECT)

    made = decision.result
    assert is_id(made.id, Prefix.ARTIFACT)
    assert (made.promotion, made.trust, made.algorithm, made.source_type) == ("draft", "unverified", "sha256", "oci")
    assert (made.tenant_id, made.project_id, made.visibility) == (TENANT, PROJECT, "project")
    assert made.location == "oci://registry.example/team/app"
    (write,) = decision.writes
    assert isinstance(write, Insert)
    assert (write.noun, write.born) == ("artifact", (PROMOTION, TRUST))
    assert set(write.row) == {each.name for each in fields(Artifact)}
    (event,), (audit,) = decision.events, decision.audits
    assert (event.type, event.tenant_id, event.project_id) == (EventType.ARTIFACT_REGISTERED, TENANT, PROJECT)
    assert audit.action == "artifact.create"


@every_row(
    ("changes", "path"),
    [
        ({"digest": "latest"}, "digest"),
        ({"location": "oci://registry.example/team/app:latest"}, "location"),
        ({"location": "s3://bucket/key"}, "location"),
        ({"size_bytes": -1}, "size_bytes"),
        ({"size_bytes": 2**60}, "size_bytes"),
        ({"media_type": "x"}, "media_type"),
        ({"labels": {"Upper": "x"}}, "labels"),
        ({"labels": {"a": "x\n"}}, "labels.a"),
        ({"labels": {"a": "x" * 201}}, "labels.a"),
        ({"labels": {f"l{number}": "x" for number in range(65)}}, "labels"),
        ({"visibility": Visibility.PLATFORM}, "visibility"),
    ],
)
def test_what_cannot_be_registered_is_named(changes: dict[str, Any], path: str) -> None:
    if changes.get("labels") == {"a": "x\n"}:
        changes = {"labels": {"a": "x\x07"}}
    with pytest.raises(Refusal) as refused:
        register_artifact(context(), requested(**changes), tenant_id=TENANT, project_id=PROJECT)
    assert path_of(refused) == path
