"""Tokens for one repository, issued by the platform and judged by Debian's docker-registry."""

import asyncio
import base64
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from mooring.core.kernel.errors import Code, Refusal
from mooring.gateways.egress import EgressClient
from mooring.gateways.registry.registry_auth import RegistryPassword
from mooring.gateways.registry.registry_client import RegistryClient, RegistryPlace
from mooring.gateways.registry.registry_push import RegistryPusher
from mooring.gateways.registry.registry_token import (
    RegistryTokenIssuer,
    RepositoryAccess,
    SigningPair,
    granted,
    new_signing_pair,
    read_scopes,
)
from server.tests.gateways.registry.conftest import BRIEF, ISSUER, SERVICE
from server.tests.support.images import image, push
from server.tests.support.registry_adversary import Adversary, Asked, head
from server.tests.support.registry_process import RunningRegistry, running_registry

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("registry")]


@dataclass(frozen=True)
class ConstantRegistryToken:
    """Always the same token, whatever is asked for."""

    fixed: str

    def token(self, repository: str, actions: Sequence[str]) -> str:
        return self.fixed


def client_with(registry: RunningRegistry, dialer: EgressClient, credentials: Any) -> RegistryClient:
    return RegistryClient(RegistryPlace(registry.url, credentials=credentials, patience=BRIEF), dialer)


async def refused(work: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await work
    return caught.value


async def test_a_token_lets_in_where_it_says_and_nowhere_else(
    token_registry: RunningRegistry, issuer: RegistryTokenIssuer, dialer: EgressClient, repository: str
) -> None:
    pushing = issuer.issue("publisher", [RepositoryAccess(repository, ("pull", "push"))]).token
    digest = await push(
        RegistryPusher(client_with(token_registry, dialer, ConstantRegistryToken(pushing))), repository, image()
    )
    other = f"{repository}-other"
    await push(RegistryPusher(client_with(token_registry, dialer, issuer)), other, image())

    reading = client_with(token_registry, dialer, ConstantRegistryToken(issuer.token(repository, ["pull"])))
    assert (await reading.manifest(repository, digest)).digest == digest
    elsewhere = await refused(reading.manifest(other, digest))
    writing = await refused(RegistryPusher(reading).chunked(repository, b"more"))
    pushing_elsewhere = client_with(token_registry, dialer, ConstantRegistryToken(pushing))
    writing_elsewhere = await refused(RegistryPusher(pushing_elsewhere).chunked(other, b"more"))

    assert {each.code for each in (elsewhere, writing, writing_elsewhere)} == {Code.REGISTRY_AUTH_REFUSED}


async def test_a_token_that_has_expired_is_refused(
    token_registry: RunningRegistry,
    issuer: RegistryTokenIssuer,
    dialer: EgressClient,
    signing_pair: SigningPair,
    repository: str,
) -> None:
    digest = await push(RegistryPusher(client_with(token_registry, dialer, issuer)), repository, image())
    # The registry forgives a minute, since clocks differ.
    before = RegistryTokenIssuer(signing_pair, issuer=ISSUER, service=SERVICE, clock=lambda: time.time() - 400)

    late = await refused(client_with(token_registry, dialer, before).manifest(repository, digest))

    assert late.code is Code.REGISTRY_AUTH_REFUSED


@pytest.mark.parametrize("wrong", ["key", "service", "issuer"])
async def test_a_token_of_another_key_service_or_issuer_is_refused(
    token_registry: RunningRegistry, dialer: EgressClient, signing_pair: SigningPair, wrong: str, repository: str
) -> None:
    pair = new_signing_pair(datetime.now(UTC)) if wrong == "key" else signing_pair
    stranger = RegistryTokenIssuer(
        pair,
        issuer="somebody" if wrong == "issuer" else ISSUER,
        service="something" if wrong == "service" else SERVICE,
    )

    code = (
        await refused(client_with(token_registry, dialer, stranger).blob_size(repository, f"sha256:{'0' * 64}"))
    ).code

    assert code is Code.REGISTRY_AUTH_REFUSED


async def test_the_registry_sends_its_client_to_the_token_service_and_the_token_counts(
    tmp_path: Path,
    hostile: Adversary,
    dialer: EgressClient,
    issuer: RegistryTokenIssuer,
    signing_pair: SigningPair,
    repository: str,
) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(signing_pair.certificate_pem)

    async def service(asked: Asked, writer: asyncio.StreamWriter) -> None:
        known = asked.headers.get("authorization") == RegistryPassword("publisher", "secret").header
        query = parse_qs(urlsplit(asked.path).query)
        assert query["service"] == [SERVICE]
        allowed = frozenset({"pull", "push"}) if known else frozenset()
        given = granted(read_scopes(query["scope"]), lambda name: allowed if name == repository else frozenset())
        body = json.dumps(issuer.issue("publisher", given).document()).encode()
        writer.write(head(200, content_length=len(body)) + body)

    hostile.routes["/token"] = service
    token = {
        "realm": f"{hostile.url}/token",
        "service": SERVICE,
        "issuer": ISSUER,
        "rootcertbundle": str(bundle),
    }
    with running_registry(tmp_path, {"token": token}) as started:
        place = RegistryPlace(
            started.url,
            credentials=RegistryPassword("publisher", "secret"),
            token_hosts=frozenset({hostile.authority}),
            patience=BRIEF,
        )
        client = RegistryClient(place, dialer)
        digest = await push(RegistryPusher(client), repository, image())
        assert (await client.manifest(repository, digest)).digest == digest
        asked = hostile.times("/token") + len([each for each in hostile.asked if each.path.startswith("/token?")])
        assert asked <= 2  # one for pulling and one for pushing, then they are remembered

        elsewhere = await refused(client.manifest("team/other", digest))
        nobody = RegistryClient(RegistryPlace(started.url, patience=BRIEF), dialer)
        unknown_service = await refused(nobody.manifest(repository, digest))

    assert elsewhere.code is unknown_service.code is Code.REGISTRY_AUTH_REFUSED
    assert "not allowed" in unknown_service.detail


async def test_the_token_says_who_for_what_and_how_long(issuer: RegistryTokenIssuer) -> None:
    issued = issuer.issue("usr_1", [RepositoryAccess("team/app", ("push", "pull"))])
    header, claims = (
        json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))) for part in issued.token.split(".")[:2]
    )

    assert header["alg"] == "ES256"
    assert len(header["kid"].split(":")) == 12
    assert (claims["sub"], claims["iss"], claims["aud"]) == ("usr_1", ISSUER, SERVICE)
    assert claims["access"] == [{"type": "repository", "name": "team/app", "actions": ["pull", "push"]}]
    assert claims["exp"] - claims["iat"] == issued.expires_in == 300
    assert issued.document()["token"] == issued.document()["access_token"] == issued.token


def test_a_token_is_for_repositories_by_their_name_and_known_actions(issuer: RegistryTokenIssuer) -> None:
    for access in (
        RepositoryAccess("Team/App", ("pull",)),
        RepositoryAccess("../x", ("pull",)),
        RepositoryAccess("team/app", ("admin",)),
    ):
        with pytest.raises(Refusal) as caught:
            issuer.issue("usr_1", [access])
        assert caught.value.code is Code.VALIDATION_FAILED


def test_scopes_are_read_as_the_registrys_clients_write_them() -> None:
    asked = read_scopes(["repository:a/b:pull repository:c:push,pull", "repository:a/b:push", "registry:catalog:*"])

    assert asked == [RepositoryAccess("a/b", ("pull", "push")), RepositoryAccess("c", ("pull", "push"))]
    assert read_scopes(["repository:a:*"]) == [RepositoryAccess("a", ("pull", "push", "delete"))]
    assert granted(asked, lambda name: frozenset({"pull"}) if name == "c" else frozenset()) == [
        RepositoryAccess("c", ("pull",))
    ]
    for wrong in ("repository:A:pull", "repository:a", "repository:../x:pull", " ".join(["repository:a:pull"] * 33)):
        with pytest.raises(Refusal):
            read_scopes([wrong])


def test_a_lifetime_of_more_than_an_hour_is_not_given(signing_pair: SigningPair) -> None:
    with pytest.raises(ValueError, match="3600"):
        RegistryTokenIssuer(signing_pair, issuer=ISSUER, service=SERVICE, lifetime_seconds=3_601)


async def test_without_a_token_the_registry_lets_nobody_in(token_registry: RunningRegistry) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as anybody:
        answer = await anybody.get(f"{token_registry.url}/v2/")

    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer realm=")
