"""A storm over the catalog: many clients who promote, retire, hold and drop the same few things at once.

There are a few digests at any time, each with its artifacts and versions. Moves go through the API of two processes,
of which one lets what is deprecated be retired at once and the other does not; holds are taken and dropped by the
commands, as a launch would, over two pools of connections of a third process. A client mostly asks for what would have
been allowed when somebody last looked, so that it often comes too late, and now and then for anything at all. What is
retired is replaced, so that there is always something to fight over.

Chance alone seldom lets two statements meet within the millisecond that counts. So a client that is about to retire an
artifact often waits for rivals: others then hold and drop its digest, or move its versions, at the same moment.
"""

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mooring.commands.catalog import artifact_promotion as promotions
from mooring.commands.kernel.work import PresentedAnswer, Work
from mooring.commands.services import Services
from mooring.core.catalog.artifact import ArtifactKind, ArtifactSpec, Visibility, register_artifact
from mooring.core.catalog.artifact_evidence import add_presence, presence
from mooring.core.catalog.artifact_hold import ArtifactHold
from mooring.core.catalog.artifact_promotion import Hold
from mooring.core.catalog.promotion_lifecycle import PROMOTION, PromotionState, PromotionTrigger
from mooring.core.kernel.errors import Refusal
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.permissions import Authority
from mooring.storage.kernel.database import Acting
from mooring.storage.kernel.unit_of_work import apply
from server.tests.support.http_wire import BROKEN, WireAnswer, WireClient
from server.tests.support.lifecycle_rows import CLOCK, context
from server.tests.support.route_requests import a_manifest
from server.tests.support.server_process import ProcessTenant

SLOTS: Final = 4
"""Digests that are fought over at any time."""
VERSIONS_OF_EACH: Final = 2
HOLDERS: Final = 8
SLUG: Final = "stormy"
WHY: Final = "the storm wants it"
LIKELY: Final = 0.75
"""How often a client asks for a move that was allowed when somebody last looked."""
ASIDE: Final = {PromotionTrigger.WITHDRAW: 2, PromotionTrigger.ROLLBACK: 3}
"""How often what leads away from the common way is asked for, against 6 for what leads along it."""
SHARES: Final = {"artifact": 0.5, "version": 0.35, "take": 0.08, "drop": 0.07}
"""What the clients do, of all that they do."""

LEAVING: Final = (
    PromotionTrigger.DEPRECATE, PromotionTrigger.RETIRE, PromotionTrigger.ROLLBACK, PromotionTrigger.WITHDRAW,
)  # fmt: skip
"""The moves of an artifact that a hold or a version may stand against."""
AHEAD: Final = ("staged", "canary", "active")
"""The states of a version that keep its artifact where it is."""
DUELS_MAX: Final = 4
RIVAL_VERSIONS: Final = 0.6
"""How many of the rivals move versions; the others hold."""
MOVES_MAX: Final = 3
TAKES_MAX: Final = 7
"""How often a rival moves a version, or takes and drops a hold, before it turns to something else."""

Key = tuple[str, str, str]
"""What was tried (artifact, version or hold), how, and how it ended.

That is `done`, or the code of a refusal, or for a version that is a canary already `share`, and where a holder had
nothing to let go of `nothing`.
"""


@dataclass(eq=False)
class StormSubject:
    """Something that is promoted, and the state in which somebody last saw it."""

    noun: str
    id: str
    path: str
    token: str
    state: str = "draft"
    generation: int = 0


@dataclass(eq=False)
class DigestSlot:
    """A digest with what lives on it now; some are registered by the platform and by the tenant."""

    shared: bool
    digest: str = ""
    artifacts: list[StormSubject] = field(default_factory=list)
    versions: list[StormSubject] = field(default_factory=list)
    renewing: bool = False


@dataclass(eq=False)
class Duel:
    """Somebody who waits for rivals before he takes an artifact away."""

    slot: DigestSlot
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    over: bool = False


@dataclass(frozen=True)
class StormTargets:
    """Where the storm takes place."""

    urls: Sequence[str]
    tenant: ProcessTenant
    project_id: str
    admin_token: str
    app_id: str
    files: Path
    pools: Sequence[Services]


class Storm:
    """The clients' common view of the place, and the tally of what they did."""

    def __init__(self, targets: StormTargets, seed: int) -> None:
        self.targets = targets
        self.seed = seed
        self.slots = [DigestSlot(shared=number % 2 == 0) for number in range(SLOTS)]
        self.holders = [CLOCK.mint(Prefix.INSTANCE) for _ in range(HOLDERS)]
        self.tally: Counter[Key] = Counter()
        self.through: dict[str, str | None] = {}  # the version that each hold was taken through: its log does not say
        self.duels: list[Duel] = []
        self.running = 0
        self.advanced = asyncio.Event()
        self.over = False
        self._born = 0

    async def begin(self) -> None:
        """Fill every slot."""
        async with WireClient(self.targets.urls[0], self.targets.tenant.token) as caller:
            for slot in self.slots:
                await self.renew(slot, caller)

    async def run(self, clients: int, each: int) -> None:
        """All clients at once, until each has tried its number of things."""
        try:
            await asyncio.gather(*(StormClient(self, number).run(each) for number in range(clients)))
        finally:
            self.over = True
            self.advanced.set()

    def count(self, what: str, how: str, end: str) -> None:
        """One more attempt that ended like this."""
        self.tally[what, how, end] += 1
        self.advanced.set()

    async def renew(self, slot: DigestSlot, caller: WireClient) -> None:
        """Another digest for a slot, with new artifacts and versions."""
        if slot.renewing:
            return
        slot.renewing = True
        self._born += 1
        content = f"{self.seed} {self._born}".encode()
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        name = digest.partition(":")[2]
        (self.targets.files / name).write_bytes(content)
        owners: list[str | None] = [self.targets.tenant.id, None] if slot.shared else [self.targets.tenant.id]
        artifacts = [await self._register(owner, f"file:{name}", digest, len(content)) for owner in owners]
        versions = [await self.publish(digest, caller) for _ in range(VERSIONS_OF_EACH)]
        slot.digest, slot.artifacts, slot.versions, slot.renewing = digest, artifacts, versions, False

    async def publish(self, digest: str, caller: WireClient) -> StormSubject:
        """A new draft that needs the digest."""
        self._born += 1
        place = f"{self.targets.tenant.path}/apps/{self.targets.app_id}/versions"
        manifest = a_manifest(SLUG) | {"version": f"1.0.{self._born}", "artifacts": {"main": digest}}
        made = await caller.post(place, {"manifest": manifest})
        return StormSubject("version", made["id"], f"{place}/{made['id']}/promote", self.targets.tenant.token)

    async def _register(self, owner: str | None, location: str, digest: str, size_bytes: int) -> StormSubject:
        """An artifact of the tenant's or of the platform's, with the look at its source that was had."""
        now = context()
        seen = Visibility.PLATFORM if owner is None else Visibility.TENANT
        requested = ArtifactSpec(ArtifactKind.BLOB, location, digest, size_bytes, visibility=seen)
        made = register_artifact(now, requested, tenant_id=owner, project_id=None)
        looked = add_presence(made, presence(now, made.result, digest, size_bytes))
        await apply(self.targets.pools[0].database, Acting(owner), now, looked)
        place = "/api/v1/platform" if owner is None else self.targets.tenant.path
        token = self.targets.admin_token if owner is None else self.targets.tenant.token
        return StormSubject("artifact", made.result.id, f"{place}/artifacts/{made.result.id}/promote", token)


class StormClient:
    """One of those who want something, with a connection to each process."""

    def __init__(self, storm: Storm, number: int) -> None:
        self._storm = storm
        self._chance = random.Random(f"{storm.seed} {number}")
        self._left = 0
        targets = storm.targets
        self._callers = [WireClient(url, targets.tenant.token) for url in targets.urls]
        self._services = targets.pools[number % len(targets.pools)]

    async def run(self, attempts: int) -> None:
        """Try one thing after the other."""
        storm, chance = self._storm, self._chance
        storm.running += 1
        self._left = attempts
        try:
            while self._left:
                [kind] = chance.choices(list(SHARES), list(SHARES.values()))
                duel = chance.choice(storm.duels) if storm.duels and kind in ("take", "version") else None
                slot = chance.choice(storm.slots) if duel is None else duel.slot
                if kind == "artifact":
                    await self._artifact(slot)
                elif kind == "drop":
                    await self._drop(slot, chance.choice(storm.holders))
                elif duel is not None:
                    await self._rival(duel)
                elif kind == "take":
                    await self._take(slot, chance.choice(storm.holders))
                else:
                    await self._version(slot)
        finally:
            storm.running -= 1
            for each in storm.duels:  # clients that wait for a rival no longer wait for this one
                each.begun.set()
            for caller in self._callers:
                caller.hang_up()

    async def _artifact(self, slot: DigestSlot) -> None:
        """Move an artifact; where that would take it away, often with rivals."""
        subject = self._chance.choice(slot.artifacts)
        trigger = self._trigger(subject)
        leaving, likely = trigger in LEAVING, self._chance.random() < LIKELY
        ahead = [each for each in slot.versions if each.state in AHEAD]
        if leaving and likely and ahead and trigger is not PromotionTrigger.ROLLBACK:
            await self._version(slot, self._chance.choice(ahead))  # first what stands in the way
            return
        duels = self._storm.duels
        if not leaving or not likely or len(duels) >= DUELS_MAX or self._storm.running <= DUELS_MAX:
            await self._move(slot, subject, trigger)
            return
        duel = Duel(slot)
        duels.append(duel)
        try:
            await duel.begun.wait()
            await self._move(slot, subject, trigger)
        finally:
            duel.over = True
            duels.remove(duel)

    async def _version(self, slot: DigestSlot, chosen: StormSubject | None = None) -> None:
        subject = chosen or self._chance.choice(slot.versions)
        await self._move(slot, subject, self._trigger(subject))

    async def _rival(self, duel: Duel) -> None:
        """Stand against somebody who takes an artifact away: by a version of it, or by holds taken and dropped."""
        duel.begun.set()
        if self._chance.random() < RIVAL_VERSIONS:
            for _ in range(MOVES_MAX):
                await self._version(duel.slot)
                if duel.over or not self._left:
                    return
            return
        holder = self._chance.choice(self._storm.holders)
        for _ in range(TAKES_MAX):
            if self._left:
                await self._take(duel.slot, holder)
            if self._left:
                await self._drop(duel.slot, holder)
            if duel.over or not self._left:
                return

    async def _move(self, slot: DigestSlot, subject: StormSubject, trigger: PromotionTrigger) -> None:
        further: dict[str, Any] = {}
        if trigger is PromotionTrigger.DEPRECATE:
            further = {"no_successor_because": WHY}
        if trigger is PromotionTrigger.CANARY and subject.noun == "version":
            further = {"canary_percentage": self._chance.choice((10, 25, 50))}
        answer = await self._ask(subject, {"move": trigger.value, "reason": WHY, **further})
        body = answer.json
        if answer.status != 200:
            self._count(subject.noun, trigger.value, body["code"])
            return
        after = body["promotion"] if subject.noun == "artifact" else body["status"]
        generation = body.get("generation", subject.generation)
        share = subject.noun == "version" and trigger is PromotionTrigger.CANARY and generation <= subject.generation
        self._count(subject.noun, trigger.value, "share" if share else "done")
        subject.state, subject.generation = after, max(generation, subject.generation)
        if after == PromotionState.RETIRED:
            await self._replace(slot, subject)

    async def _ask(self, subject: StormSubject, body: dict[str, Any]) -> WireAnswer:
        """Ask one of the processes for a move; once more where it had closed a connection that was idle for long."""
        caller = self._chance.choice(self._callers)
        caller.token = subject.token
        headers = {"Idempotency-Key": CLOCK.mint(Prefix.CORRELATION)}
        try:
            return await caller.call("POST", subject.path, body, headers)
        except BROKEN:
            return await caller.call("POST", subject.path, body, headers)

    def _trigger(self, subject: StormSubject) -> PromotionTrigger:
        """Mostly one that was allowed a moment ago; away from the common way less often than along it."""
        allowed = [edge.trigger for edge in PROMOTION.edges if edge.source == subject.state]
        if not allowed or self._chance.random() > LIKELY:
            return self._chance.choice(list(PromotionTrigger))
        return self._chance.choices(allowed, [ASIDE.get(each, 6) for each in allowed])[0]

    async def _replace(self, slot: DigestSlot, subject: StormSubject) -> None:
        """Something new for what has just gone for ever."""
        async with WireClient(self._storm.targets.urls[0], self._storm.targets.tenant.token) as caller:
            if subject in slot.versions:
                made = await self._storm.publish(slot.digest, caller)
                if subject in slot.versions:
                    slot.versions[slot.versions.index(subject)] = made
            elif subject in slot.artifacts and all(each.state == PromotionState.RETIRED for each in slot.artifacts):
                await self._storm.renew(slot, caller)

    async def _take(self, slot: DigestSlot, holder: str) -> None:
        through = self._chance.choice([None, None, None, *slot.versions])
        version_id = None if through is None else through.id
        hold = Hold(slot.digest, "instance", holder, version_id)
        how = "take" if version_id is None else "take through a version"
        try:
            taken = await self._holding(lambda work: promotions.take(work, self._storm.targets.project_id, [hold]))
        except Refusal as refusal:
            self._count("hold", how, refusal.code)
            return
        self._storm.through |= {each.id: each.version_id for each in taken}
        self._count("hold", how, "done")

    async def _drop(self, slot: DigestSlot, holder: str) -> None:
        digests = self._chance.choice([None, [slot.digest]])
        dropped = await self._holding(lambda work: promotions.drop(work, "instance", holder, digests))
        self._count("hold", "drop", "done" if dropped else "nothing")

    def _count(self, what: str, how: str, end: str) -> None:
        self._left -= 1
        self._storm.count(what, how, end)

    async def _holding(self, command: Any) -> tuple[ArtifactHold, ...]:
        """Run a command on holds, and say which."""
        results: list[tuple[ArtifactHold, ...]] = []

        def present(holds: tuple[ArtifactHold, ...]) -> PresentedAnswer:
            results.append(holds)
            return PresentedAnswer(200, b"")

        acting = Acting(self._storm.targets.tenant.id)
        await command(Work(self._services, acting, context(), Authority(), present=present))
        return results[-1]
