"""What somebody finds who gets a dump of the database: no secret that a walk through the platform sent."""

import asyncio
import json
from typing import Any, Final

import pytest

from mooring.commands.records.seal_stored import seal_stored
from mooring.embedded.binaries import find_installation
from mooring.gateways.secrets import CannotUnseal
from mooring.storage.fleet import task as tasks
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.runtime import instance as instances
from server.tests.api.catalog.test_apps import AppPublisher
from server.tests.api.runtime.test_instance_attacks import FORM, VERBS, bare_publisher
from server.tests.conftest import World
from server.tests.support.launching import Launching, make_launching

__all__ = ["bare_publisher"]
pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]
CONFIGURED: Final = "canaryconfigured"
ENTERED: Final = "canaryentered"
ARGUMENT: Final = "canaryargument"
CONFIG: Final = {"password": CONFIGURED, "mirrors": [{"key": CONFIGURED}], "title": "mine"}


@pytest.fixture
async def launching(world: World, bare_publisher: AppPublisher) -> Launching:
    made = await make_launching(world, bare_publisher)
    await made.publish("2.0.0", config_schema=FORM, actions=VERBS)
    return made


async def dumped(url: str) -> str:
    program = find_installation().program("pg_dump")
    process = await asyncio.create_subprocess_exec(str(program), url, stdout=asyncio.subprocess.PIPE)
    text, _ = await process.communicate()
    assert process.returncode == 0
    return text.decode()


async def a_task(launching: Launching) -> Any:
    """A task with a secret in its arguments, made with an idempotency key, and cancelled with one."""
    allocation = await launching.site.active(launching.sku, gpu_count=1)
    body = {
        "step": "canary",
        "type": "process.run",
        "arguments": {"argv": ["login", ARGUMENT], "environment": {"PASSWORD": ARGUMENT}},
    }
    path = f"{launching.site.path}/allocations/{allocation['id']}/tasks"
    made = [await launching.client.post(path, json=body, headers={"Idempotency-Key": "one"}) for _ in range(2)]
    assert [each.status_code for each in made] == [201, 201], made[0].text
    assert made[0].json() == made[1].json(), "the stored answer is the answer"
    return made[0].json()


async def test_a_dump_of_the_database_has_no_secret_that_was_sent(launching: Launching) -> None:
    running = await launching.running(config=CONFIG)
    one = f"{launching.path}/{running['id']}"
    keyed = {"Idempotency-Key": "entered"}
    entered = await launching.client.post(
        f"{one}/actions/enter", json={"input": {**CONFIG, "password": ENTERED}}, headers=keyed
    )
    assert entered.status_code == 202, entered.text
    task = await a_task(launching)
    assert task["arguments"]["argv"] == ["login", ARGUMENT]

    text = await dumped(launching.publisher.world.running.settings.database_url)
    assert running["id"] in text
    assert {each: text.count(each) for each in (CONFIGURED, ENTERED, ARGUMENT)} == {
        CONFIGURED: 0,
        ENTERED: 0,
        ARGUMENT: 0,
    }
    # Those who need the values still get them.
    database, project_id = launching.services.database, launching.publisher.project_id
    instance = await instances.find(database, PLATFORM, project_id, running["id"])
    assert instance is not None
    assert instance.config == CONFIG
    stored = await tasks.find(database, PLATFORM, project_id, task["id"])
    assert stored is not None
    assert stored.arguments == task["arguments"]


async def test_what_was_stored_in_the_clear_is_sealed_and_a_moved_ciphertext_does_not_open(
    launching: Launching,
) -> None:
    database, project_id = launching.services.database, launching.publisher.project_id
    cipher, database.documents = database.documents, None  # as before the sealing
    running = await launching.running(config=CONFIG)
    task = await a_task(launching)
    await database.fetch(
        PLATFORM, "UPDATE instance SET config = $2, config_secrets = NULL WHERE id = $1", running["id"], CONFIG
    )
    await database.fetch(PLATFORM, "DELETE FROM idempotency")  # kept for two days at the most
    url = launching.publisher.world.running.settings.database_url
    assert ARGUMENT in await dumped(url)

    database.documents = cipher
    assert await seal_stored(launching.services)
    text = await dumped(url)
    assert (text.count(ARGUMENT), text.count(CONFIGURED)) == (0, 0)
    instance = await instances.find(database, PLATFORM, project_id, running["id"])
    assert instance is not None
    assert instance.config == CONFIG

    sealed = await database.fetchval(PLATFORM, "SELECT arguments FROM task WHERE id = $1", task["id"])
    assert json.dumps(sealed).count("$sealed") == 1
    other = await a_task_of(launching)
    await database.fetch(PLATFORM, "UPDATE task SET arguments = $2 WHERE id = $1", other, sealed)
    with pytest.raises(CannotUnseal):
        await tasks.find(database, PLATFORM, project_id, other)


async def a_task_of(launching: Launching) -> str:
    task_id: str = await launching.services.database.fetchval(
        PLATFORM, "SELECT id FROM task WHERE type = 'sandbox.create' LIMIT 1"
    )
    return task_id
