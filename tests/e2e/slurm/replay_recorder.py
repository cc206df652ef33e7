"""Reads an instance again and again while it changes, and compares every moment with its replay afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from threading import Event, Thread

from mooring_sdk import Client
from tests.e2e.slurm.cluster import SlurmTenant

LOOK_SECONDS = 0.02
STATES_MAX = 500


class ReplayRecorder:
    """The states that were read live, by the moment of the last transition before them.

    A reading counts only if no transition came while it was made: then it is the state after the last one.
    """

    def __init__(self, tenant: SlurmTenant, instance_id: str, url: str) -> None:
        self._at = (tenant.project_id, instance_id)
        self._client = Client(url, token=tenant.token)
        self._over = Event()
        self.live: dict[datetime, dict[str, str]] = {}

    def record(self) -> None:
        """Read until it is over."""
        while not self._over.wait(LOOK_SECONDS):
            before = self.moments()
            states = self._states()
            if self.moments() == before:
                self.live[before[-1]] = states

    def end(self) -> None:
        self._over.set()

    def moments(self) -> list[datetime]:
        """When the instance, its members and operations changed."""
        return [each.at for each in self._client.list_instance_transitions(*self._at, limit=STATES_MAX).items]

    def differences(self) -> list[str]:
        """The moments whose replay is not what was read then."""
        found = []
        for at, states in self.live.items():
            then = self._client.replay_instance(*self._at, at=at)
            replayed = {each.id: str(each.status) for each in (then.instance, *then.members, *then.operations)}
            if replayed != states:
                found.append(f"{at}: {sorted(replayed.items() ^ states.items())}")
        return found

    def _states(self) -> dict[str, str]:
        instance = self._client.get_instance(*self._at)
        members = self._client.list_members(*self._at, limit=STATES_MAX).items
        operations = self._client.list_operations(*self._at, limit=STATES_MAX).items
        states = {instance.id: str(instance.status)}
        states |= {each.id: str(each.status) for each in members}
        return states | {each.id: str(each.status) for each in operations}


@contextmanager
def recorded(tenant: SlurmTenant, instance_id: str, url: str) -> Iterator[ReplayRecorder]:
    """Record while the block runs."""
    recorder = ReplayRecorder(tenant, instance_id, url)
    thread = Thread(target=recorder.record, daemon=True)
    thread.start()
    try:
        yield recorder
    finally:
        recorder.end()
        thread.join(60)
