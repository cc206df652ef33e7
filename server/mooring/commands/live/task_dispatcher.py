"""Hands tasks to agents: every poll of an agent waits here, and costs memory only.

One loop looks whether anything is queued. It looks when something was committed in this process, when an event of
another process says so, and now and then by itself, so that a hint lost in a crash delays and never loses. What it
finds for nodes whose agents wait is claimed in one statement for all of them, signed, and answered. A few such rounds
may overlap, each for other nodes: a disk that is slow holds up those whose claim it writes, not the next. A second loop
renews the leases that polls name, in batches, and says which are no longer theirs.

Of one node the newest poll counts: an older one returns at once, empty. What was claimed for a poll that went away
meanwhile is kept for the next poll of that node. When an answer is lost on its way, or this process dies before it was
sent, the lease runs out and the task is offered again, under a higher fence: no task is ever in two answers under one.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final

from mooring.commands.identity.platform_key import task_audience
from mooring.commands.services import Services
from mooring.core.fleet.task import TaskState
from mooring.core.fleet.task_envelope import SealedSecret, TaskEnvelope, payload_of, sealing_info
from mooring.core.fleet.task_family import secret_names
from mooring.core.identity.platform_key import TASK_SIGNING, PlatformKey
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event import Event
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.gateways.registry.registry_token import RepositoryAccess
from mooring.gateways.secrets import CannotUnseal
from mooring.gateways.signing.task_signing import TaskSigner, seal_to_node
from mooring.storage.fleet import task_claim
from mooring.storage.fleet.task_claim import ClaimedTask, FencedTask, SecretGrant
from mooring.storage.identity import platform_key as platform_keys

LOOK_SECONDS: Final = 2.0
LOOK_GAP_SECONDS: Final = 0.01
"""One look for all that was committed meanwhile."""
ROUNDS_MAX: Final = 4
"""Looks and their claims that are under way at once."""
RENEW_GAP_SECONDS: Final = 0.1
RETRY_SECONDS: Final = 0.5
NODES_MAX: Final = 500
"""Nodes for which one statement claims."""
TASKS_MAX: Final = 64
"""Tasks in one answer."""
KEYS_TOLD_MAX: Final = 8
TELL_AGAIN_SECONDS: Final = 30.0
WAKES: Final = frozenset({EventType.TASK_QUEUED.value, EventType.TASK_CANCELLING.value})

log = logging.getLogger("mooring.dispatch")


@dataclass(frozen=True, slots=True)
class TaskPoll:
    """What an agent asks for in a poll."""

    node_id: str
    free: int
    wait_seconds: float
    running: frozenset[FencedTask] = frozenset()


@dataclass(frozen=True, slots=True)
class TaskPollAnswer:
    """What a poll is answered."""

    tasks: tuple[TaskEnvelope, ...] = ()
    cancel: tuple[FencedTask, ...] = ()
    lost: tuple[FencedTask, ...] = ()
    keys: tuple[PlatformKey, ...] = ()


@dataclass(frozen=True, slots=True)
class UndeliveredTask:
    """A task that was claimed for a poll that is gone, for the next poll of its node."""

    envelope: TaskEnvelope
    until: float  # by the loop's clock: later the lease may be lost


@dataclass(frozen=True, slots=True)
class SigningKeys:
    """What tasks are signed with, and what an agent is to believe."""

    signer: TaskSigner
    audience: str
    keys: tuple[PlatformKey, ...]


class WaitingAgent:
    """One agent that waits."""

    __slots__ = ("answer", "ask")

    def __init__(self, ask: TaskPoll, answer: "asyncio.Future[TaskPollAnswer]") -> None:
        self.ask = ask
        self.answer = answer

    def give(self, given: TaskPollAnswer) -> bool:
        """Answer, unless that was done."""
        if self.answer.done():
            return False
        self.answer.set_result(given)
        return True


@dataclass(slots=True)
class _CancellationNotice:
    """Which cancellations a node was told of, and when."""

    at: dict[FencedTask, float] = field(default_factory=dict)


class TaskDispatcher:
    """One per process."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._polls: dict[str, WaitingAgent] = {}
        self._queued: set[str] = set()  # the nodes that had something queued at the last look
        self._unlooked = False  # something was heard while nobody waited
        self._claiming: set[str] = set()  # the nodes for which a claim is under way
        self._passed_over: set[str] = set()  # those of them for which another look found something meanwhile
        self._kept: dict[str, list[UndeliveredTask]] = {}
        self._told: dict[str, _CancellationNotice] = {}
        self._renewals: dict[str, WaitingAgent] = {}
        self._hint = asyncio.Event()
        self._renew_hint = asyncio.Event()
        self._signing: SigningKeys | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    @property
    def waiting(self) -> int:
        """How many agents wait."""
        return len(self._polls)

    async def __aenter__(self) -> "TaskDispatcher":
        """Begin to look."""
        hub = self._services.hub
        hub.on_commit(self._heard)
        hub.on_event(self._seen)
        hub.on_hint(self._hinted)
        hub.on_close(self.release)
        self._tasks = [
            asyncio.create_task(self._kept_up("claims", self._claim_loop)),
            asyncio.create_task(self._kept_up("leases", self._renew_loop)),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Answer every poll, then end."""
        self.release()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def release(self) -> None:
        """The process stops: no poll keeps waiting."""
        self._closed = True
        for poll in list(self._polls.values()):
            poll.give(TaskPollAnswer())

    async def poll(self, ask: TaskPoll, gone: list[Callable[[], object]] | None = None) -> TaskPollAnswer:
        """Wait for something to do; the empty answer when the time is over, or the agent has hung up."""
        loop = asyncio.get_running_loop()
        if self._closed:
            return TaskPollAnswer()
        poll = WaitingAgent(ask, loop.create_future())
        if gone is not None:
            gone.append(partial(poll.give, TaskPollAnswer()))  # nothing is claimed for an agent that cannot be answered
        earlier, self._polls[ask.node_id] = self._polls.get(ask.node_id), poll
        if earlier is not None:
            earlier.give(TaskPollAnswer())
        self._begin(poll, loop.time())
        timer = loop.call_later(ask.wait_seconds, poll.give, TaskPollAnswer())
        try:
            given = await poll.answer
        finally:
            timer.cancel()
            if self._polls.get(ask.node_id) is poll:
                del self._polls[ask.node_id]
            if self._renewals.get(ask.node_id) is poll:
                del self._renewals[ask.node_id]
        return given

    def wake(self) -> None:
        """There may be something to hand out."""
        self._hint.set()

    # What a poll begins with -----------------------------------------------------------------------------------------

    def _begin(self, poll: WaitingAgent, now: float) -> None:
        ask = poll.ask
        kept = [each.envelope for each in self._kept.pop(ask.node_id, ()) if each.until > now]
        if kept:
            poll.give(self._given(tasks=tuple(kept)))
            return
        if ask.running:
            self._renewals[ask.node_id] = poll
            self._renew_hint.set()
        if ask.free and (self._unlooked or ask.node_id in self._queued):
            self._hint.set()

    def _given(self, **parts: Any) -> TaskPollAnswer:
        keys = () if self._signing is None else self._signing.keys
        return TaskPollAnswer(keys=keys, **parts)

    # Hints -----------------------------------------------------------------------------------------------------------

    def _heard(self, event_type: str) -> None:
        if event_type in WAKES:
            self._hint.set()
        elif event_type == EventType.PLATFORM_KEY_ROTATED:
            self._signing = None

    def _seen(self, event: Event) -> None:
        self._heard(event.type)

    def _hinted(self, subject_id: str) -> None:
        """A task that leaves no event was made, here or in another process."""
        if subject_id.startswith(f"{Prefix.TASK}_"):
            self._hint.set()

    async def _kept_up(self, name: str, loop: Callable[[], Any]) -> None:
        """Agents wait for as long as the process lives: a loop that fails says why and goes on."""
        while True:
            try:
                await loop()
            except Refusal as refusal:
                log.warning("%s cannot be looked after now: %s", name, refusal.detail)
            except Exception:
                log.exception("looking after %s failed; going on", name)
            await asyncio.sleep(RETRY_SECONDS)

    # Claims ----------------------------------------------------------------------------------------------------------

    async def _claim_loop(self) -> None:
        rounds: set[asyncio.Task[None]] = set()
        try:
            while True:
                await _either(self._hint, LOOK_SECONDS)
                self._hint.clear()
                self._unlooked = not self._polls
                if self._polls:
                    rounds.add(asyncio.create_task(self.hand_out()))
                await asyncio.sleep(LOOK_GAP_SECONDS)
                if len(rounds) >= ROUNDS_MAX:
                    await asyncio.wait(rounds, return_when=asyncio.FIRST_COMPLETED)
                over = {each for each in rounds if each.done()}
                rounds -= over
                for each in over:
                    each.result()  # what it raised ends the loop, which begins again
        except asyncio.CancelledError:
            for each in rounds:
                each.cancel()
            raise
        finally:
            await asyncio.gather(*rounds, return_exceptions=True)  # one that failed cuts no other short

    async def hand_out(self) -> None:
        """Look once, and hand out what is there for those who wait."""
        looked = await task_claim.read_queue(self._services.database)
        self._queued = set(looked.queued)
        for node_id, held in looked.cancelling.items():
            poll = self._polls.get(node_id)
            if poll is not None:
                self._tell(poll, held, ())
        ready = [
            poll
            for poll in (self._polls.get(node_id) for node_id in looked.queued)
            if poll is not None and poll.ask.free and not poll.answer.done()
        ]
        self._passed_over |= looked.queued & self._claiming
        ready = [poll for poll in ready if poll.ask.node_id not in self._claiming]
        nodes = {poll.ask.node_id for poll in ready}
        self._claiming |= nodes
        try:
            for first in range(0, len(ready), NODES_MAX):
                await self._claim_for(ready[first : first + NODES_MAX])
        finally:
            self._claiming -= nodes
            again = self._passed_over & nodes
            if again:  # what was found meanwhile may have come after the claim
                self._passed_over -= again
                self._hint.set()

    async def _claim_for(self, polls: Sequence[WaitingAgent]) -> None:
        signing = await self._ready_to_sign()
        now = self._services.clock.now()
        lease = self._services.settings.task_lease_seconds
        wanted = [(poll.ask.node_id, min(poll.ask.free, TASKS_MAX)) for poll in polls]
        claimed = await task_claim.claim(self._services.database, wanted, now, now + timedelta(seconds=lease))
        taken = Counter(each.task.node_id for each in claimed)
        self._queued -= {node_id for node_id, free in wanted if taken[node_id] < free}
        if not claimed:
            return
        naming = [each.task.id for each in claimed if secret_names(each.task.arguments)]
        grants = await task_claim.grants(self._services.database, naming, now) if naming else {}
        by_node: dict[str, list[TaskEnvelope]] = {}
        for each in claimed:
            envelope = self._envelope(signing, each, grants.get(each.task.id, ()))
            by_node.setdefault(each.task.node_id, []).append(envelope)
        until = asyncio.get_running_loop().time() + lease / 2
        for node_id, envelopes in by_node.items():
            poll = self._polls.get(node_id)
            if poll is None or poll.answer.done():
                self._kept.setdefault(node_id, []).extend(UndeliveredTask(each, until) for each in envelopes)
            else:
                poll.give(self._given(tasks=tuple(envelopes)))

    async def _ready_to_sign(self) -> SigningKeys:
        """The key is unsealed once, and again after a rotation."""
        if self._signing is None:
            services = self._services
            found = await platform_keys.signing_pair(services.database, TASK_SIGNING)
            if found is None:
                raise Refusal(Code.TEMPORARILY_UNAVAILABLE, "the platform has no key that signs tasks yet")
            key, sealed = found
            chain = await platform_keys.chain(services.database, TASK_SIGNING)
            announced = tuple(each for each in chain if each.signed_by is not None)[-KEYS_TOLD_MAX:]
            signer = TaskSigner(key.id, services.secrets.unseal(sealed))
            self._signing = SigningKeys(signer, await task_audience(services), announced)
        return self._signing

    def _envelope(self, signing: SigningKeys, claimed: ClaimedTask, grants: Iterable[SecretGrant]) -> TaskEnvelope:
        task = claimed.task
        sealed = [secret for secret in (self._sealed(claimed, grant) for grant in grants) if secret is not None]
        return signing.signer.sign(payload_of(task, signing.audience, self._services.clock.now(), sealed))

    def _sealed(self, claimed: ClaimedTask, grant: SecretGrant) -> SealedSecret | None:
        """The secret for this node, task and purpose; without it the task goes all the same, and its agent says so."""
        task = claimed.task
        value = self._value(task.id, grant)
        if value is None:
            return None
        info = sealing_info(task.node_id, task.id, grant.purpose, grant.name)
        return seal_to_node(claimed.sealing_key, info, (grant.name, grant.purpose), value)

    def _value(self, task_id: str, grant: SecretGrant) -> bytes | None:
        if grant.sealed is not None:
            try:
                return self._services.secrets.unseal(grant.sealed)
            except CannotUnseal as error:
                log.error("the secret %s of task %s does not open: %s", grant.name, task_id, error)
                return None
        registry = self._services.artifacts.own
        if registry is None or grant.repository is None:
            log.error("task %s is granted a repository, and this platform has no registry", task_id)
            return None
        return registry.issuer.issue(task_id, [RepositoryAccess(grant.repository, ("pull",))]).token.encode()

    # Leases and cancellations ----------------------------------------------------------------------------------------

    async def _renew_loop(self) -> None:
        while True:
            await self._renew_hint.wait()
            await asyncio.sleep(RENEW_GAP_SECONDS)  # those who come meanwhile go into the same statement
            self._renew_hint.clear()
            polls, self._renewals = self._renewals, {}
            try:
                await self.renew(list(polls.values()))
            except BaseException:
                self._renewals = {**polls, **self._renewals}
                self._renew_hint.set()
                raise

    async def renew(self, polls: Sequence[WaitingAgent]) -> None:
        """Renew what these polls hold, in one statement, and tell each what it has lost or is asked to end."""
        held = [(poll.ask.node_id, each) for poll in polls for each in poll.ask.running]
        now = self._services.clock.now()
        lease = self._services.settings.task_lease_seconds
        stale_before = now + timedelta(seconds=lease * 0.75)
        rows = await task_claim.renew(self._services.database, held, stale_before, now + timedelta(seconds=lease))
        lost: dict[str, list[FencedTask]] = {}
        cancel: dict[str, list[FencedTask]] = {}
        for node_id, each, status in rows:
            if status is None:
                lost.setdefault(node_id, []).append(each)
            elif status == TaskState.CANCELLING:
                cancel.setdefault(node_id, []).append(each)
        for poll in polls:
            node_id = poll.ask.node_id
            self._tell(poll, cancel.get(node_id, ()), lost.get(node_id, ()))

    def _tell(self, poll: WaitingAgent, cancel: Sequence[FencedTask], lost: Sequence[FencedTask]) -> None:
        """Answer a poll when there is something to tell it that it was not told a moment ago."""
        told = (
            self._told.setdefault(poll.ask.node_id, _CancellationNotice())
            if cancel
            else self._told.get(poll.ask.node_id)
        )
        now = asyncio.get_running_loop().time()
        fresh = [each for each in cancel if told is None or told.at.get(each, 0.0) < now - TELL_AGAIN_SECONDS]
        if not fresh and not lost:
            return
        if poll.give(self._given(cancel=tuple(cancel), lost=tuple(lost))) and told is not None:
            told.at = dict.fromkeys(cancel, now)


async def _either(hint: asyncio.Event, seconds: float) -> None:
    """Wait for the hint, or for as long."""
    try:
        async with asyncio.timeout(seconds):
            await hint.wait()
    except TimeoutError:
        return
