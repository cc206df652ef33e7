"""The SDK against a real Mooring that is stopped and started again under it."""

import asyncio
import base64
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from mooring_sdk import (
    AsyncClient,
    CallOptions,
    Client,
    ClientSettings,
    RetryPolicy,
    ServiceAccountCredentials,
    errors,
    models,
)
from tests.e2e.mooring_process import FIRST_ADMIN, PASSWORD, MooringProcess, running_mooring

pytestmark = pytest.mark.real_part("postgresql")
PATIENT = ClientSettings(retry=RetryPolicy(attempts=2000, first_pause_seconds=0.05, longest_pause_seconds=0.2))


@dataclass(frozen=True)
class SdkTenant:
    """A tenant, and a token of its admin's."""

    mooring: MooringProcess
    tenant_id: str
    token: str

    def client(self) -> Client:
        return Client(self.mooring.url, token=self.token, settings=PATIENT)


@pytest.fixture(scope="module")
def place() -> Iterator[SdkTenant]:
    with running_mooring() as mooring:
        with Client(mooring.url) as client:
            admin = client.sign_in(email=FIRST_ADMIN, one_time_code=mooring.code, new_password=PASSWORD)
        with Client(mooring.url, token=admin.token) as client:
            made = client.create_tenant(
                slug="harbour",
                display_name="Harbour",
                first_admin=models.FirstAdminBody(email="ada@harbour.test", display_name="Ada"),
            )
        with Client(mooring.url) as client:
            ada = client.sign_in(
                email="ada@harbour.test", tenant="harbour", one_time_code=made.one_time_code, new_password=PASSWORD
            )
        yield SdkTenant(mooring, made.id, ada.token)


def test_a_follower_misses_nothing_and_repeats_nothing_over_restarts(place: SdkTenant) -> None:
    wanted = [f"restart-{number}" for number in range(6)]
    seen: list[str] = []
    began = threading.Event()

    def follow() -> None:
        with place.client() as client:
            for event in client.follow_events(tenant_id=place.tenant_id, cursor="beginning"):
                began.set()
                if event.type == "identity.project.created" and event.data["slug"].startswith("restart-"):
                    seen.append(event.data["slug"])
                if len(seen) == len(wanted):
                    return

    follower = threading.Thread(target=follow)
    follower.start()
    assert began.wait(timeout=180)
    with place.client() as client:
        for number, slug in enumerate(wanted):
            client.create_project(place.tenant_id, slug=slug, display_name=slug)
            if number % 2:
                assert place.mooring.stop() == 0
                place.mooring.start()
    follower.join(timeout=180)
    assert seen == wanted


def test_a_mutation_waits_out_a_restart_and_has_one_effect(place: SdkTenant) -> None:
    place.mooring.stop()
    starting = threading.Thread(target=place.mooring.start)
    starting.start()
    with place.client() as client:
        made = client.create_project(place.tenant_id, slug="patient", display_name="Patient")
        found = [each for each in client.iter_projects() if each.slug == "patient"]
    starting.join(timeout=180)
    assert [each.id for each in found] == [made.id]


def test_a_service_account_exchanges_reads_and_waits_for_a_change(place: SdkTenant) -> None:
    key = Ed25519PrivateKey.generate()
    public = base64.b64encode(key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()
    with place.client() as client:
        project = client.create_project(place.tenant_id, slug="waited-for", display_name="Before")
        account = client.create_service_account(project.id, name="watcher", actions=["project.read"], public_key=public)
        (key_view,) = client.list_service_account_keys(project.id, account.id).items
        credentials = ServiceAccountCredentials(account.id, key_view.id, key)

        async def watch() -> models.Project:
            async with AsyncClient(place.mooring.url, credentials=credentials) as watcher:
                before = await watcher.get_project(project.id)
                waiting = asyncio.create_task(watcher.get_project(project.id, wait=60, changed_from=before.etag))
                await asyncio.to_thread(client.update_project, project.id, display_name="After")
                return await waiting

        assert asyncio.run(watch()).display_name == "After"
        client.disable_service_account(project.id, account.id)
        with (
            Client(place.mooring.url, credentials=credentials) as refused,
            pytest.raises(errors.AssertionRefused),
        ):
            refused.get_project(project.id)


def test_a_replayed_mutation_is_marked_as_replayed(place: SdkTenant) -> None:
    replayed: list[bool] = []
    settings = ClientSettings(observe=lambda exchange: replayed.append(exchange.replayed))
    options = CallOptions(idempotency_key="the-same-one")
    with Client(place.mooring.url, token=place.token, settings=settings) as client:
        for _ in range(2):
            client.create_project(place.tenant_id, slug="replayed", display_name="R", options=options)
        with pytest.raises(errors.IdempotencyConflict):
            client.create_project(place.tenant_id, slug="replayed", display_name="Other", options=options)
    assert replayed == [False, True, False]


def test_lists_are_walked_over_many_pages(place: SdkTenant) -> None:
    with place.client() as client:
        for number in range(7):
            client.create_project(place.tenant_id, slug=f"page-{number}", display_name="P")
        slugs = [each.slug for each in client.iter_projects(limit=3)]
    assert len(slugs) == len(set(slugs))
    assert {f"page-{number}" for number in range(7)} <= set(slugs)
