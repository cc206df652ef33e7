"""Fixtures of the registry's tests: a dialer that reaches loopback, real registries, and a server that misbehaves."""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from itertools import count

import pytest

from mooring.core.kernel.address import Reach, read_networks
from mooring.gateways.egress import EgressClient
from mooring.gateways.registry.registry_client import RegistryClient, RegistryPlace
from mooring.gateways.registry.registry_push import RegistryPusher
from mooring.gateways.registry.registry_token import RegistryTokenIssuer, SigningPair, new_signing_pair
from mooring.gateways.registry.source_stream import SourceTimeouts
from server.tests.support.registry_adversary import Adversary, adversary
from server.tests.support.registry_process import RunningRegistry, running_registry

LOOPBACK = Reach(allowed=read_networks("127.0.0.0/8"), own_allowed=True)
SERVICE, ISSUER = "the tests' registry", "the tests' platform"
BRIEF = SourceTimeouts(total_seconds=120.0, answer_seconds=60.0, window_seconds=60.0, attempts=3, pause_seconds=0.0)
"""Tries again at once. Its times are no test's subject: who is to be given up on meets one with times of its own."""
_numbers = count(1)


@pytest.fixture(scope="session")
def open_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRegistry]:
    """A real registry that takes anybody."""
    with running_registry(tmp_path_factory.mktemp("registry")) as started:
        yield started


@pytest.fixture(scope="session")
def signing_pair() -> SigningPair:
    return new_signing_pair(datetime.now(UTC))


@pytest.fixture(scope="session")
def issuer(signing_pair: SigningPair) -> RegistryTokenIssuer:
    return RegistryTokenIssuer(signing_pair, issuer=ISSUER, service=SERVICE)


@pytest.fixture(scope="session")
def token_registry(tmp_path_factory: pytest.TempPathFactory, signing_pair: SigningPair) -> Iterator[RunningRegistry]:
    """A real registry that takes only tokens of ours."""
    directory = tmp_path_factory.mktemp("token-registry")
    bundle = directory / "bundle.pem"
    bundle.write_bytes(signing_pair.certificate_pem)
    realm = "http://127.0.0.1:9/token"  # where it would send its clients; a test with a token service says its own
    token = {"realm": realm, "service": SERVICE, "issuer": ISSUER, "rootcertbundle": str(bundle)}
    with running_registry(directory, {"token": token}) as started:
        yield started


@pytest.fixture
async def dialer() -> AsyncIterator[EgressClient]:
    """A dialer that may reach loopback, as for a source of the platform's tier."""
    made = EgressClient(LOOPBACK)
    yield made
    await made.close()


@pytest.fixture
def client(open_registry: RunningRegistry, dialer: EgressClient) -> RegistryClient:
    return RegistryClient(RegistryPlace(open_registry.url, patience=BRIEF), dialer)


@pytest.fixture
def pusher(client: RegistryClient) -> RegistryPusher:
    return RegistryPusher(client)


@pytest.fixture
def repository() -> str:
    """A repository of the test's own in a registry that all of them share."""
    return f"team/app-{next(_numbers)}"


@pytest.fixture
async def hostile() -> AsyncIterator[Adversary]:
    async with adversary() as made:
        yield made


@pytest.fixture
def hostile_client(hostile: Adversary, dialer: EgressClient) -> RegistryClient:
    return RegistryClient(RegistryPlace(hostile.url, patience=BRIEF), dialer)
