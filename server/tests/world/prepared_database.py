"""The worlds of one database: made once, used by many schedules."""

import asyncio
import gc
import logging
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mooring.commands.services import Services
from mooring.gateways.clock import SystemClock
from mooring.gateways.egress import outbound_for, outbound_inside, outbound_public
from mooring.gateways.passwords import Passwords
from mooring.gateways.registry.artifact_reader import ArtifactReader
from mooring.gateways.secrets import SecretBox
from mooring.storage.kernel.database import PoolSettings
from mooring.storage.kernel.hub import EventHub
from server.tests.world.app import APP
from server.tests.world.faults import SimulatedDatabase
from server.tests.world.schedule import Saved, SimulatedWorld
from server.tests.world.starting_point import EPOCH, TABLES, TRAILS, Snapshots, StartingPoint, make_starting_point

TIDY_EVERY: Final = 25


@dataclass
class PreparedDatabase:
    """A database with everything that schedules begin from."""

    database: SimulatedDatabase
    services: Services
    start: StartingPoint
    snapshots: Snapshots
    saved: dict[str, Saved]
    runs: int = 0

    async def world(self, name: str, seed: int, app: Any = APP) -> SimulatedWorld:
        """A world as it was saved under this name."""
        self.runs += 1
        await self.snapshots.restore(name)
        self.database.memory.forget((*TABLES, *TRAILS))
        if self.runs % TIDY_EVERY == 0:
            await self.snapshots.tidy()
        made = SimulatedWorld(self.database, self.services, self.start, self.saved[name], seed)
        made.adapters(app)
        return made

    async def make(self, name: str, after: str, intents: list[Any]) -> None:
        """One more world to begin with: another one, and what somebody wished there."""
        world = await self.world(after, -1 - len(self.saved))
        world.person.intents = list(intents)
        world.wake_all()
        while world.awake or world.person.intents:
            await world.step(next(iter(world.awake)) if world.awake else "person")
        for replica in world.replicas:
            await replica.leave()
        await self.snapshots.save(name)
        self.saved[name] = world.saved(name)


@asynccontextmanager
async def prepared_database(url: str) -> AsyncIterator[PreparedDatabase]:
    """Everything that schedules begin from, on a database of its own."""
    logging.disable(logging.WARNING)  # each schedule would say thousands of lines; its trace says what matters
    with tempfile.TemporaryDirectory() as keys:
        start = await make_starting_point(url, Path(keys))
        settings = start.settings
        database = SimulatedDatabase(PoolSettings(url, 2))
        outbound = outbound_for(settings, url)
        public, inside = outbound_public(settings, url), outbound_inside()
        services = Services(
            settings,
            database,
            SystemClock(),
            SecretBox(settings.master_key_path),
            Passwords(),
            EventHub(database),
            outbound,
            ArtifactReader(settings, public, inside),
        )
        snapshots = await Snapshots.open(url)
        await database.open()
        try:
            await snapshots.save("bare")
            made = PreparedDatabase(database, services, start, snapshots, {"bare": Saved("bare", EPOCH, None, [], {})})
            await made.make("kept", "bare", [("allocate",), ("allocate",)])
            await made.make("single", "bare", [("create", {"seed": 1}, "own")])
            await made.make("room", "kept", [("create", {"seed": 1}, "existing")])
            await made.make("attached", "room", ["attach"])
            await made.make("running", "bare", [("create", {"seed": 1, "worker": 1}, "own")])
            await made.make("housed", "kept", [("create", {"seed": 1, "worker": 1}, "existing")])
            await made.make("upgraded", "running", ["upgrade"])
            await snapshots.tidy()
            gc.freeze()  # what stands for good need not be looked through again and again
            yield made
        finally:
            logging.disable(logging.NOTSET)
            gc.unfreeze()
            await database.close()
            await snapshots.close()
            services.passwords.close()
            await asyncio.gather(outbound.close(), public.close(), inside.close())
