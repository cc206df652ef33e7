"""Real namespaces, created by root on the machine that runs the tests."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.tests.support.namespace_sandboxes import left_of
from mooring_agent.hosts.namespace import NamespaceHost

ROOT_ONLY = "only root can make namespaces with a range of users, mounts and devices"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip everything here without root."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.real_part("namespaces"))
            if os.geteuid() != 0:
                item.add_marker(pytest.mark.skip(reason=ROOT_ONLY))


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[NamespaceHost]:
    """A host with a state of its own; whatever a test leaves is destroyed, and must be gone.

    Uid ranges come from the machine's own registry, because other tests create sandboxes at the same time.
    """
    made = NamespaceHost(tmp_path / "state", "nod_test")
    yield made
    for allocation_id in made.store.allocations():
        await made.destroy(allocation_id)
    assert left_of(made) == []
