"""Drives one real cluster in tests: its members, its jobs by their keys, and waiting within bounds."""

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from adapters.slurm.tests.real.real_cluster import RealCluster, RealMember
from tests.support.waiting import until

PATIENCE_SECONDS = 120.0
GO = "/tmp/go"
WAITS = f'#!/bin/sh\necho "$HOME gpus $CUDA_VISIBLE_DEVICES"\nuntil test -e {GO}-$1; do sleep 0.05; done\n'
Found = TypeVar("Found")


class ClusterDriver:
    """The cluster, its members, and the submitted jobs."""

    def __init__(self, cluster: RealCluster, controller: RealMember) -> None:
        self.cluster = cluster
        self.controller = controller
        self.first = cluster.worker_of("hpc-worker-0", "alc_1")
        self.second = cluster.worker_of("hpc-worker-1", "alc_2")
        self.hammered: list[tuple[int, str]] = []
        self.accepted = asyncio.Event()
        self.reasons: set[str] = set()

    async def ask(self, *words: str, stdin: object = None, user: str = "root") -> dict[str, Any]:
        """Run the node program on the controller; it must succeed."""
        return await self.cluster.done(self.controller, *words, stdin=stdin, user=user)

    async def submit(self, key: str, **options: object) -> str:
        """Submit a job that runs until it is released; retried if it waited too long behind the same user's others."""
        given = {"key": key, "script": WAITS.replace("$1", key), "minutes": 5, **options}

        async def attempt() -> str | None:
            code, answer = await self.cluster.node(self.controller, "submit", stdin=given, user="app")
            if code != 0 and answer["error"]["code"] == "timed_out":
                return None
            assert code == 0, answer
            return str(answer["job_id"])

        return await until(attempt)

    async def output(self, job: dict[str, Any]) -> str:
        """The first output of a job, read where it runs."""
        member = self.first if job["batch_host"] == self.first.name else self.second

        async def look() -> str | None:
            answer = await self.cluster.done(member, "output", "--job", job["id"], user=job["user"])
            return str(answer["text"]) or None

        return await until(look)

    async def let_go(self, *keys: str) -> None:
        """Let jobs end, wherever they run."""
        for member in (self.first, self.second):
            await self.cluster.inside(member).run("touch", *(f"{GO}-{key}" for key in keys))

    async def job(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.ask("job", "--job", job_id))["job"]
        return found

    async def jobs_when(self, job_ids: Sequence[str], state: str) -> dict[str, dict[str, Any]]:
        """Wait until all jobs are in this state."""

        async def look() -> dict[str, dict[str, Any]] | None:
            listed = (await self.ask("jobs"))["jobs"]
            found = {each["id"]: each for each in listed if each["id"] in job_ids and each["state"] == state}
            return found if len(found) == len(job_ids) else None

        return await until(look)

    async def job_when(self, job_id: str, *states: str) -> dict[str, Any]:
        """Wait until a job is in one of these states."""

        async def look() -> dict[str, Any] | None:
            found = await self.job(job_id)
            return found if found["state"] in states else None

        return await until(look)
