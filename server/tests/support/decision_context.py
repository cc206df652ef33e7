"""What the tests of decisions begin with: an actor, a fixed moment, and ids that count up."""

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import count

from mooring.core.identity.caller import GrantedRole, bindings_of
from mooring.core.kernel.decision import Actor, DecisionContext, PrincipalKind
from mooring.core.kernel.ids import Minter, Prefix, encode
from mooring.core.kernel.permissions import Authority, authority_of

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def minter() -> Minter:
    """Makes ids of one moment, one after the other."""
    numbers = count(1)
    return lambda prefix: encode(prefix, 1_772_366_400_000, next(numbers).to_bytes(10))


_mint = minter()
TENANT, OTHER_TENANT = _mint(Prefix.TENANT), _mint(Prefix.TENANT)
PROJECT, OTHER_PROJECT = _mint(Prefix.PROJECT), _mint(Prefix.PROJECT)
USER, OTHER_USER = _mint(Prefix.USER), _mint(Prefix.USER)
ACCOUNT = _mint(Prefix.SERVICE_ACCOUNT)


def context(actor_id: str = USER, kind: PrincipalKind = PrincipalKind.USER) -> DecisionContext:
    """Somebody acts, now."""
    return DecisionContext(Actor(kind, actor_id), NOW, "cor_1", "a" * 32, minter())


def authority(
    *roles: tuple[str, str | None], tenant_id: str | None = TENANT, limit: Iterable[str] | None = None
) -> Authority:
    """What a user with these roles, each at a project or at none, holds."""
    bindings = bindings_of([GrantedRole(*each) for each in roles])
    return authority_of(tenant_id, bindings, None if limit is None else frozenset(limit))
