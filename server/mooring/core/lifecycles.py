"""Every lifecycle of Mooring, in the order of the docs.

Importing this module checks all tables. A new lifecycle is added only here: the generated page, the rows that seed the
database, and the tests of every cell use `LIFECYCLES`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from mooring.core.catalog.artifact_check import ARTIFACT_CHECK
from mooring.core.catalog.promotion_lifecycle import PROMOTION
from mooring.core.catalog.trust_lifecycle import TRUST
from mooring.core.fleet.allocation import ALLOCATION
from mooring.core.fleet.node import NODE
from mooring.core.fleet.task import TASK
from mooring.core.identity.service_account import SERVICE_ACCOUNT
from mooring.core.kernel.lifecycle import AnyLifecycle
from mooring.core.money.statement import STATEMENT
from mooring.core.runtime.attachment import ATTACHMENT
from mooring.core.runtime.instance import INSTANCE
from mooring.core.runtime.member import MEMBER
from mooring.core.runtime.operation import OPERATION

LIFECYCLES: tuple[AnyLifecycle, ...] = (
    PROMOTION,
    TRUST,
    ARTIFACT_CHECK,
    ALLOCATION,
    INSTANCE,
    MEMBER,
    OPERATION,
    TASK,
    NODE,
    SERVICE_ACCOUNT,
    ATTACHMENT,
    STATEMENT,
)


class DuplicateLifecycle(Exception):
    """Two lifecycles have the same name, so that a stored row could mean either."""

    def __init__(self, name: str):
        self.name = name
        super().__init__(f"two lifecycles have the name {name!r}")


class UnknownLifecycle(LookupError):
    """No lifecycle has this name."""

    def __init__(self, name: str, known: tuple[str, ...]):
        self.name, self.known = name, known
        super().__init__(f"there is no lifecycle {name!r}; there are {', '.join(known)}")


def index_by_name(machines: tuple[AnyLifecycle, ...]) -> Mapping[str, AnyLifecycle]:
    """The lifecycles by name; raises DuplicateLifecycle."""
    index: dict[str, AnyLifecycle] = {}
    for machine in machines:
        if machine.name in index:
            raise DuplicateLifecycle(machine.name)
        index[machine.name] = machine
    return MappingProxyType(index)


_BY_NAME = index_by_name(LIFECYCLES)


def by_name(name: str) -> AnyLifecycle:
    """The lifecycle of this name; raises UnknownLifecycle."""
    machine = _BY_NAME.get(name)
    if machine is None:
        raise UnknownLifecycle(name, tuple(_BY_NAME))
    return machine
