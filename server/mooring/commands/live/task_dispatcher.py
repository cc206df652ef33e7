"""Gives tasks to agents: every poll of an agent waits here, and a waiting poll costs only memory.

One loop reads whether anything is queued: after a commit in this process, after an event of another process, and from
time to time by itself, so that a hint lost in a crash delays a task but never loses it. It claims the tasks of all
waiting agents in one statement, each agent's in turn of their tenants, signs them, and answers the polls. A few such
rounds may overlap, each for other nodes: a slow disk delays only the nodes whose claim it writes. A second loop renews
the leases that polls name, in batches, and reports which of them the agents have lost.

Only the newest poll of a node counts: an older one returns at once, empty. A task that was claimed for a poll that is
gone waits for the next poll of that node. When an answer is lost on its way, or this process dies before it sends it,
the lease expires and the task is offered again under a higher fence: no task is ever in two answers with one fence.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final

from mooring.commands.identity.platform_key import task_audience
from mooring.commands.live.registry_login import RegistryLogins
from mooring.commands.services import Services
from mooring.core.fleet.task import TaskState
from mooring.core.fleet.task_envelope import SealedSecret, TaskEnvelope, payload_of, sealing_info
from mooring.core.fleet.task_family import secret_names
from mooring.core.identity.platform_key import TASK_SIGNING, PlatformKey, root_announcement
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event import Event
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.gateways.registry.registry_token import RepositoryAccess
from mooring.gateways.secrets import CannotUnseal
from mooring.gateways.signing.signatures import sign
from mooring.gateways.signing.task_signing import TaskSigner, seal_to_node
from mooring.storage.fleet import task_claim
from mooring.storage.fleet.task_claim import ClaimedTask, FencedTask, NodeRoom, SecretGrant, TaskLease
from mooring.storage.identity import platform_key as platform_keys

POLL_SECONDS: Final = 2.0
ROUND_GAP_SECONDS: Final = 0.01
"""The least time between two rounds, so that one round serves everything that was committed meanwhile."""
ROUNDS_MAX: Final = 4
"""The most rounds that run at once."""
RENEW_GAP_SECONDS: Final = 0.1
RETRY_SECONDS: Final = 0.5
NODES_MAX: Final = 500
"""The most nodes in one claim statement."""
TASKS_MAX: Final = 64
"""The most tasks in one answer."""
ANNOUNCED_KEYS_MAX: Final = 8
SIGNING_KEYS_SECONDS: Final = 60.0
"""How long the signing key is used without reading it again; nodes accept a retired key for longer than that."""
ANNOUNCED_PER_SECOND: Final = 500
"""How many waiting polls are answered per second after a rotation; each agent then polls again."""
CANCEL_REPEAT_SECONDS: Final = 30.0
WAKES: Final = frozenset({EventType.TASK_QUEUED.value, EventType.TASK_CANCELLING.value})

log = logging.getLogger("mooring.dispatch")


@dataclass(frozen=True, slots=True)
class TaskPoll:
    """A poll of an agent: how many tasks it takes, and those that it is running."""

    node_id: str
    free: int
    wait_seconds: float
    running: frozenset[FencedTask] = frozenset()


@dataclass(frozen=True, slots=True)
class TaskPollAnswer:
    tasks: tuple[TaskEnvelope, ...] = ()
    cancel: tuple[FencedTask, ...] = ()
    lost: tuple[FencedTask, ...] = ()
    keys: tuple[PlatformKey, ...] = ()
    root: "SignedRootKey | None" = None


@dataclass(frozen=True, slots=True)
class SignedRootKey:
    """The public half of the operator's root key, as the current key announces it to nodes that have none."""

    public_key: bytes
    signed_by: str
    signature: bytes


@dataclass(frozen=True, slots=True)
class UndeliveredTask:
    """A task that was claimed for a poll that is gone; it waits for the next poll of its node."""

    envelope: TaskEnvelope
    until: float  # by the event loop's clock: after that the lease may be lost


@dataclass(frozen=True, slots=True)
class SigningKeys:
    """The key that signs tasks, and the keys to announce to agents."""

    signer: TaskSigner
    audience: str
    keys: tuple[PlatformKey, ...]
    root: SignedRootKey | None
    until: float  # by the event loop's clock: a replica that missed the event of a rotation reads the keys again


class WaitingAgent:
    """A poll that waits for its answer."""

    __slots__ = ("answer", "poll")

    def __init__(self, poll: TaskPoll, answer: "asyncio.Future[TaskPollAnswer]") -> None:
        self.poll = poll
        self.answer = answer

    def resolve(self, answer: TaskPollAnswer) -> bool:
        """Answer the poll; False when it was answered before."""
        if self.answer.done():
            return False
        self.answer.set_result(answer)
        return True


@dataclass(slots=True)
class _CancellationNotice:
    """Which cancellations a node was sent, and when."""

    at: dict[FencedTask, float] = field(default_factory=dict)


class TaskDispatcher:
    """All waiting polls of this process, and the loops that answer them."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._waiting: dict[str, WaitingAgent] = {}  # by node
        self._queued: set[str] = set()  # nodes that had queued tasks at the last read
        self._unread = False  # a hint came while no agent waited
        self._claiming: set[str] = set()  # nodes for which a claim is running
        self._passed_over: set[str] = set()  # those of them for which another round found something meanwhile
        self._undelivered: dict[str, list[UndeliveredTask]] = {}
        self._notices: dict[str, _CancellationNotice] = {}
        self._renewals: dict[str, WaitingAgent] = {}
        self._hint = asyncio.Event()
        self._renew_hint = asyncio.Event()
        self._signing: SigningKeys | None = None
        self._announced = ""  # the key of which the waiting polls know
        self._tasks: list[asyncio.Task[None]] = []
        self._logins = RegistryLogins(services.artifacts)
        self._closed = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def __aenter__(self) -> "TaskDispatcher":
        hub = self._services.hub
        hub.on_commit(self._on_commit)
        hub.on_event(self._on_event)
        hub.on_hint(self._on_hint)
        hub.on_close(self.release)
        self._tasks = [
            asyncio.create_task(self._run_forever("claims", self._claim_loop)),
            asyncio.create_task(self._run_forever("leases", self._renew_loop)),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._logins.close()

    def release(self) -> None:
        """Answer every waiting poll: the process stops."""
        self._closed = True
        for waiting in list(self._waiting.values()):
            waiting.resolve(TaskPollAnswer())

    async def poll(self, poll: TaskPoll, gone: list[Callable[[], object]] | None = None) -> TaskPollAnswer:
        """Wait for tasks; the answer is empty when the time is over, or the agent has hung up."""
        loop = asyncio.get_running_loop()
        if self._closed:
            return TaskPollAnswer()
        waiting = WaitingAgent(poll, loop.create_future())
        if gone is not None:
            gone.append(partial(waiting.resolve, TaskPollAnswer()))  # claim nothing for an agent that has hung up
        earlier, self._waiting[poll.node_id] = self._waiting.get(poll.node_id), waiting
        if earlier is not None:
            earlier.resolve(TaskPollAnswer())
        self._begin(waiting, loop.time())
        timer = loop.call_later(poll.wait_seconds, self._time_out, waiting)
        try:
            return await waiting.answer
        finally:
            timer.cancel()
            if self._waiting.get(poll.node_id) is waiting:
                del self._waiting[poll.node_id]
            if self._renewals.get(poll.node_id) is waiting:
                del self._renewals[poll.node_id]

    def _time_out(self, waiting: WaitingAgent) -> None:
        """Answer without a task; an idle node learns this way that a key was retired."""
        waiting.resolve(self._answer())

    def wake(self) -> None:
        self._hint.set()

    # The start of a poll ---------------------------------------------------------------------------------------------

    def _begin(self, waiting: WaitingAgent, now: float) -> None:
        poll = waiting.poll
        undelivered = [each.envelope for each in self._undelivered.pop(poll.node_id, ()) if each.until > now]
        if undelivered:
            waiting.resolve(self._answer(tasks=tuple(undelivered)))
            return
        if poll.running:
            self._renewals[poll.node_id] = waiting
            self._renew_hint.set()
        if poll.free and (self._unread or poll.node_id in self._queued):
            self._hint.set()

    def _answer(self, **parts: Any) -> TaskPollAnswer:
        if self._signing is None:
            return TaskPollAnswer(**parts)
        return TaskPollAnswer(keys=self._signing.keys, root=self._signing.root, **parts)

    # Hints -----------------------------------------------------------------------------------------------------------

    def _on_commit(self, event_type: str) -> None:
        if event_type in WAKES or (event_type == EventType.TASK_FINISHED and self._queued):
            self._hint.set()  # the end of one task makes room for others of its allocation and tenant
        elif event_type == EventType.PLATFORM_KEY_ROTATED:
            self._signing = None
            self._announced = self._announced or "the one before"
            self._hint.set()  # the next round reads the keys for the polls that wait

    def _on_event(self, event: Event) -> None:
        self._on_commit(event.type)

    def _on_hint(self, subject_id: str) -> None:
        """A task without an event was created or has ended, here or in another process."""
        if subject_id.startswith(f"{Prefix.TASK}_"):
            self._hint.set()

    async def _run_forever(self, name: str, loop: Callable[[], Any]) -> None:
        """Run a loop as long as the process lives; after a failure it starts again."""
        while True:
            try:
                await loop()
            except Refusal as refusal:
                log.warning("cannot process %s now; retrying in %.1f s: %s", name, RETRY_SECONDS, refusal.detail)
            except Exception:
                log.exception("failed to process %s; retrying in %.1f s", name, RETRY_SECONDS)
            await asyncio.sleep(RETRY_SECONDS)

    # Claims ----------------------------------------------------------------------------------------------------------

    async def _claim_loop(self) -> None:
        rounds: set[asyncio.Task[None]] = set()
        try:
            while True:
                await _either(self._hint, POLL_SECONDS)
                self._hint.clear()
                self._unread = not self._waiting
                if self._waiting:
                    rounds.add(asyncio.create_task(self.hand_out()))
                await asyncio.sleep(ROUND_GAP_SECONDS)
                if len(rounds) >= ROUNDS_MAX:
                    await asyncio.wait(rounds, return_when=asyncio.FIRST_COMPLETED)
                finished = {each for each in rounds if each.done()}
                rounds -= finished
                for each in finished:
                    each.result()  # an error ends this loop, and `_run_forever` starts it again
        except asyncio.CancelledError:
            for each in rounds:
                each.cancel()
            raise
        finally:
            await asyncio.gather(*rounds, return_exceptions=True)  # a failed round does not cancel the others

    async def hand_out(self) -> None:
        """Make one round: read the queue, and answer the waiting agents."""
        await self._signing_keys()
        queue = await task_claim.read_queue(self._services.database)
        self._queued = set(queue.queued)
        for node_id, held in queue.cancelling.items():
            waiting = self._waiting.get(node_id)
            if waiting is not None:
                self._notify(waiting, held, ())
        ready = [
            waiting
            for waiting in (self._waiting.get(node_id) for node_id in queue.queued)
            if waiting is not None and not waiting.answer.done()
        ]
        self._passed_over |= queue.queued & self._claiming
        ready = [waiting for waiting in ready if waiting.poll.node_id not in self._claiming]
        nodes = {waiting.poll.node_id for waiting in ready}
        self._claiming |= nodes
        try:
            for first in range(0, len(ready), NODES_MAX):
                await self._claim_for(ready[first : first + NODES_MAX])
        finally:
            self._claiming -= nodes
            again = self._passed_over & nodes
            if again:  # it may have been queued after the claim
                self._passed_over -= again
                self._hint.set()

    async def _claim_for(self, agents: Sequence[WaitingAgent]) -> None:
        signing = await self._signing_keys()
        now = self._services.clock.now()
        lease = self._services.settings.task_lease_seconds
        wanted = [NodeRoom(each.poll.node_id, min(each.poll.free, TASKS_MAX)) for each in agents]
        claimed = await task_claim.claim(self._services.database, wanted, now, now + timedelta(seconds=lease))
        # A node that got nothing may have tasks that wait for the end of others: it stays, until the next read.
        self._queued -= {each.task.node_id for each in claimed if not each.more}
        if not claimed:
            return
        naming = [each.task.id for each in claimed if secret_names(each.task.arguments)]
        grants = await task_claim.grants(self._services.database, naming, now) if naming else {}
        by_node: dict[str, list[TaskEnvelope]] = {}
        until = asyncio.get_running_loop().time() + lease / 2
        for each in claimed:
            granted = grants.get(each.task.id, [])
            if any(grant.source is not None for grant in granted):
                self._logins.start(each.task, granted, partial(self._log_in_and_deliver, signing, each, until))
                continue
            by_node.setdefault(each.task.node_id, []).append(self._envelope(signing, each, granted))
        for node_id, envelopes in by_node.items():
            self._deliver(node_id, envelopes, until)

    def _log_in_and_deliver(
        self, signing: SigningKeys, claimed: ClaimedTask, until: float, grants: Sequence[SecretGrant]
    ) -> None:
        """Deliver a task after the attempt to get its registry tokens; without them if it failed."""
        self._deliver(claimed.task.node_id, [self._envelope(signing, claimed, grants)], until)

    def _deliver(self, node_id: str, envelopes: Sequence[TaskEnvelope], until: float) -> None:
        waiting = self._waiting.get(node_id)
        if waiting is None or waiting.answer.done():
            self._undelivered.setdefault(node_id, []).extend(UndeliveredTask(each, until) for each in envelopes)
        else:
            waiting.resolve(self._answer(tasks=tuple(envelopes)))

    async def _signing_keys(self) -> SigningKeys:
        """The signing key, which is unsealed after each rotation, and again from time to time."""
        now = asyncio.get_running_loop().time()
        if self._signing is None or self._signing.until <= now:
            services = self._services
            found = await platform_keys.signing_pair(services.database, TASK_SIGNING)
            if found is None:
                raise Refusal(Code.TEMPORARILY_UNAVAILABLE, "the platform has no key that signs tasks yet")
            key, sealed = found
            chain = await platform_keys.chain(services.database, TASK_SIGNING)
            private, audience = services.secrets.unseal(sealed), await task_audience(services)
            root = _signed_root(services.settings.root_key_bytes, audience, key.id, private)
            self._signing = SigningKeys(
                TaskSigner(key.id, private), audience, announced_keys(chain), root, now + SIGNING_KEYS_SECONDS
            )
            self._announce(key.id)
        return self._signing

    def _announce(self, key_id: str) -> None:
        """After a rotation, answer the polls that wait, a few at a time: idle nodes learn of the new key at once."""
        before, self._announced = self._announced, key_id
        if before in ("", key_id):
            return
        loop = asyncio.get_running_loop()
        for index, waiting in enumerate(self._waiting.values()):
            loop.call_later(index / ANNOUNCED_PER_SECOND, self._time_out, waiting)

    def _envelope(self, signing: SigningKeys, claimed: ClaimedTask, grants: Iterable[SecretGrant]) -> TaskEnvelope:
        task = claimed.task
        sealed = [secret for secret in (self._sealed(claimed, grant) for grant in grants) if secret is not None]
        return signing.signer.sign(payload_of(task, signing.audience, self._services.clock.now(), sealed))

    def _sealed(self, claimed: ClaimedTask, grant: SecretGrant) -> SealedSecret | None:
        """The secret for this node, task and purpose; without it the task is sent anyway, and its agent fails it."""
        task = claimed.task
        value = self._value(task.id, grant)
        if value is None:
            return None
        info = sealing_info(task.node_id, task.id, grant.purpose, grant.name)
        return seal_to_node(claimed.sealing_key, info, value, name=grant.name, purpose=grant.purpose)

    def _value(self, task_id: str, grant: SecretGrant) -> bytes | None:
        if grant.source is not None:
            return grant.value
        if grant.sealed is not None:
            try:
                return self._services.secrets.unseal(grant.sealed)
            except CannotUnseal as error:
                log.error(
                    "cannot unseal the secret %s of task %s; sending the task without it: %s",
                    grant.name,
                    task_id,
                    error,
                )
                return None
        registry = self._services.artifacts.own
        if registry is None or grant.repository is None:
            log.error(
                "task %s has a grant for a repository, but the platform has no registry; sending it without a token",
                task_id,
            )
            return None
        return registry.issuer.issue(task_id, [RepositoryAccess(grant.repository, ("pull",))]).token.encode()

    # Leases and cancellations ----------------------------------------------------------------------------------------

    async def _renew_loop(self) -> None:
        while True:
            await self._renew_hint.wait()
            await asyncio.sleep(RENEW_GAP_SECONDS)  # polls that come meanwhile go into the same statement
            self._renew_hint.clear()
            polls, self._renewals = self._renewals, {}
            try:
                await self.renew(list(polls.values()))
            except BaseException:
                self._renewals = {**polls, **self._renewals}
                self._renew_hint.set()
                raise

    async def renew(self, agents: Sequence[WaitingAgent]) -> None:
        """Renew what these agents hold in one statement, and answer those that lost a task or have to stop one."""
        held = [TaskLease(waiting.poll.node_id, each) for waiting in agents for each in waiting.poll.running]
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
        for waiting in agents:
            node_id = waiting.poll.node_id
            self._notify(waiting, cancel.get(node_id, ()), lost.get(node_id, ()))

    def _notify(self, waiting: WaitingAgent, cancel: Sequence[FencedTask], lost: Sequence[FencedTask]) -> None:
        """Answer a poll, unless it was sent the same cancellations a moment ago and has lost nothing."""
        node_id = waiting.poll.node_id
        notice = self._notices.setdefault(node_id, _CancellationNotice()) if cancel else self._notices.get(node_id)
        now = asyncio.get_running_loop().time()
        fresh = [each for each in cancel if notice is None or notice.at.get(each, 0.0) < now - CANCEL_REPEAT_SECONDS]
        if not fresh and not lost:
            return
        if waiting.resolve(self._answer(cancel=tuple(cancel), lost=tuple(lost))) and notice is not None:
            notice.at = dict.fromkeys(cancel, now)


def announced_keys(chain: Sequence[PlatformKey]) -> tuple[PlatformKey, ...]:
    """The newest keys of the chain, and the newest one that the root key signed; an agent reads the whole chain."""
    newest = [each for each in chain if each.signed_by is not None][-ANNOUNCED_KEYS_MAX:]
    vouched = [each for each in chain if each.root_signature is not None][-1:]
    return tuple([each for each in vouched if each not in newest] + newest)


def _signed_root(root_key: bytes | None, audience: str, key_id: str, private: bytes) -> SignedRootKey | None:
    if root_key is None:
        return None
    return SignedRootKey(root_key, key_id, sign(private, root_announcement(audience, root_key)))


async def _either(hint: asyncio.Event, seconds: float) -> None:
    """Wait for the hint, at most for `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await hint.wait()
    except TimeoutError:
        return
