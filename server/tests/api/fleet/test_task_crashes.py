"""`kill -9` of a server between a claim and its answer: nothing is lost, and nothing is held under one fence twice."""

import asyncio
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from server.tests.support.agent_double import CLAIMS
from server.tests.support.node_site import NodeSite
from server.tests.support.server_process import END_SECONDS_MAX, GENEROUS, LISTENS

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

ROOT = Path(__file__).resolve().parents[4]


async def test_a_server_that_dies_between_claim_and_answer_loses_nothing(site: NodeSite, tmp_path: Path) -> None:
    made = [await site.make(label=f"owner-{number}") for number in range(3)]
    settings = site.world.running.settings
    own = {
        "MOORING_DATABASE_URL": settings.database_url,
        "MOORING_MASTER_KEY_FILE": settings.master_key_file,
        "MOORING_LOG_LEVEL": "warning",
    }
    with (tmp_path / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "server.tests.support.dying_server",
            cwd=ROOT,
            env=os.environ | GENEROUS | own,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    try:
        assert process.stdout is not None
        line = ""
        async with asyncio.timeout(END_SECONDS_MAX):
            while not line.startswith(LISTENS):
                line = (await process.stdout.readline()).decode()
                assert line, (tmp_path / "log").read_text()
        url = line.removeprefix(LISTENS).split()[0]
        headers = dict(site.agent.client.headers)
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            with pytest.raises(httpx.TransportError):
                await client.post(CLAIMS, json={"free": 8, "wait_seconds": 30}, headers=headers)
        async with asyncio.timeout(END_SECONDS_MAX):
            assert await process.wait() == -signal.SIGKILL
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    stand = [await site.stands(each) for each in made]
    assert {(each.status, each.fence) for each in stand} == {("claimed", 1)}
    assert (await site.agent.poll(wait_seconds=0.2))["tasks"] == []
    await site.later(timedelta(seconds=91))
    tasks = await site.agent.claim()
    assert [(each["task_id"], each["fence"]) for each in tasks] == [(each.id, 2) for each in made]
    assert all(each["accepted"] for each in await site.agent.report(*(site.agent.result(each) for each in tasks)))
    assert {(await site.stands(each)).status for each in made} == {"succeeded"}
    steps = "SELECT count(*) FROM transition WHERE machine = 'task' AND subject_id = $1"
    assert [await site.count(steps, each.id) for each in made] == [5, 5, 5]
