"""`kill -9` of the server in the middle of a mutation, and the client that repeats it with the same Idempotency-Key.

One mutation of each shape (create, transition, delete) is killed at every point at which it waits for something, in a
process that has just started, so that connecting, authenticating and preparing statements are among those points. One
mutation of every shape of decision (which kinds of rows it writes) is killed just before its commit and just after;
the long form does that to every mutation of the API. Each time a new server gets the repetition, and there must be
exactly one effect: the state of every table changed as it does undisturbed, with the same events, the same audit
rows, and an answer that is right and stays the same.
"""

import signal
import uuid

import pytest

from mooring.api.route import Route
from server.tests.processes.conftest import Killing
from server.tests.support.aftermath import (
    AUDITS,
    EVENTS,
    Outcome,
    headers_of,
    repeated,
    send_doomed,
    state_of,
    survived,
)
from server.tests.support.http_wire import BROKEN, WireClient
from server.tests.support.mutations import MUTATIONS, Prepared
from server.tests.support.postgres import SOAK
from tools import generate_map

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

SHAPES = {
    "create": "create_project",
    "transition": "disable_service_account",
    "delete": "delete_project_membership",
}
UNHEARD = ("test", "reveal", "record")
"""Verbs without an event: a ping, a look at a secret, and usage, which is read where it is stored."""
ONE_OF_EACH = {
    "create_project": ("identity.project.created", "project.create"),
    "disable_service_account": ("identity.service_account.disabled", "service_account.disable"),
    "delete_project_membership": ("identity.membership.deleted", "membership.delete"),
}
POINTS_MAX = 100
CHANGES_A_PASSWORD = "change_own_password"
"""Its hash is another one each time, so its rows are not compared with those of an undisturbed run."""


async def undisturbed(killing: Killing, route: Route) -> Outcome:
    """How this mutation goes when nothing goes wrong."""
    if route.name not in killing.undisturbed:
        prepared = await killing.subjects.prepare(route)
        before = await state_of(killing.connection)
        async with WireClient(killing.server.url, prepared.token) as caller:
            outcome, replayed = await repeated(caller, prepared, uuid.uuid4().hex, killing.connection, before)
        assert not replayed
        assert outcome.status == route.status
        assert outcome.events or route.verb in UNHEARD, "a mutation that nobody hears of"
        assert {how for _, how in outcome.audits} == {"done"}
        assert outcome.changed["idempotency"][0] == 1
        killing.undisturbed[route.name] = outcome
    return killing.undisturbed[route.name]


async def killed_and_repeated(killing: Killing, prepared: Prepared, doom: str) -> tuple[Outcome, bool] | None:
    """Kill the server at this point of this request and repeat it on a new one; none when it was not reached."""
    correlation_id = uuid.uuid4().hex
    before = await state_of(killing.connection)
    async with WireClient(killing.server.url, prepared.token) as caller:
        try:
            await send_doomed(caller, prepared, correlation_id, doom)
        except BROKEN:
            assert await killing.server.ended() == -signal.SIGKILL
        else:
            return None
        await survived(killing.connection)
        await killing.server.start()
        return await repeated(caller, prepared, correlation_id, killing.connection, before)


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_kill_wherever_a_mutation_waits_and_a_repetition_have_one_effect(killing: Killing, shape: str) -> None:
    route = MUTATIONS[SHAPES[shape]]
    expected = await undisturbed(killing, route)
    event, audit = ONE_OF_EACH[route.name]
    assert (expected.events, expected.audits) == ((event,), ((audit, "done"),))
    replays = []
    for point in range(1, POINTS_MAX):
        prepared = await killing.subjects.prepare(route)
        await killing.server.restart()
        done = await killed_and_repeated(killing, prepared, f"suspended:{point}")
        if done is None:
            break
        outcome, replayed = done
        assert outcome == expected, f"killed at the suspension {point}"
        replays.append(replayed)
    print(f"{shape}: killed at {len(replays)} points, {replays.count(True)} of them after the commit was sent")
    assert len(replays) >= 3, "the kills hit nothing"
    # Behind the first a loaded machine waits now once more, now once less: a number names no fixed place.
    assert not replays[0], "before anything was sent something was committed"


def one_of_each_shape() -> list[str]:
    """The first mutation of every shape of decision; in the long form all of them."""
    names = sorted(set(MUTATIONS) - {CHANGES_A_PASSWORD})
    chosen = {(generate_map.shape_of(MUTATIONS[name]), MUTATIONS[name].one_time_secret): name for name in names[::-1]}
    return names if SOAK else sorted(chosen.values())


@pytest.mark.parametrize("name", one_of_each_shape())
async def test_a_kill_around_the_commit_of_a_mutation_and_a_repetition_have_one_effect(
    killing: Killing, name: str
) -> None:
    route = MUTATIONS[name]
    expected = await undisturbed(killing, route)
    for moment in ("before", "after"):
        prepared = await killing.subjects.prepare(route)
        done = await killed_and_repeated(killing, prepared, moment)
        assert done is not None, f"{route.key} did not commit through the unit of work"
        outcome, replayed = done
        assert outcome == expected, f"killed {moment} the commit"
        assert replayed == (moment == "after")


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_password_whose_change_was_killed_is_the_old_one_or_the_new_one(killing: Killing, moment: str) -> None:
    prepared = await killing.subjects.prepare(MUTATIONS[CHANGES_A_PASSWORD])
    correlation_id = uuid.uuid4().hex
    async with WireClient(killing.server.url, prepared.token) as caller:
        email = await killing.connection.fetchval(
            'SELECT email FROM "user" WHERE id = $1', (await caller.get("/api/v1/whoami"))["id"]
        )
        with pytest.raises(BROKEN):
            await send_doomed(caller, prepared, correlation_id, moment)
        assert await killing.server.ended() == -signal.SIGKILL
        await killing.server.start()
        request = (prepared.route.method, prepared.path, prepared.body, headers_of(correlation_id))
        answers = [(await caller.call(*request)).status for _ in range(2)]
    assert answers == [204, 204]
    assert len(await killing.connection.fetch(EVENTS, correlation_id)) == 1
    done = [row["action"] for row in await killing.connection.fetch(AUDITS, correlation_id) if row["outcome"] == "done"]
    assert done == ["self.update"]
    async with WireClient(killing.server.url) as anybody:
        for password, status in ((prepared.body["new_password"], 200), (prepared.body["current_password"], 401)):
            body = {"email": email, "tenant": killing.subjects.tenant.slug, "password": password}
            assert (await anybody.call("POST", "/api/v1/sign-in", body)).status == status
