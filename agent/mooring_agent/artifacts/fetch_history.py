"""What each allocation has fetched, so that a result tells a tenant only about its own fetches.

The cache is shared by all tenants of the machine. "It was here already" would tell one of them that another one uses
the same model or image, so an allocation hears it only of what it fetched itself. The history is kept in memory: after
a restart of the agent, the first fetch of each allocation counts as new again.
"""

from typing import Final

DIGESTS_MAX: Final = 2_000
"""Per allocation; the oldest are forgotten first."""


class FetchHistory:
    def __init__(self) -> None:
        self._digests: dict[str, dict[str, None]] = {}

    def has(self, allocation_id: str, digest: str) -> bool:
        return digest in self._digests.get(allocation_id, ())

    def add(self, allocation_id: str, *digests: str) -> None:
        known = self._digests.setdefault(allocation_id, {})
        for digest in digests:
            known[digest] = None
            if len(known) > DIGESTS_MAX:
                del known[next(iter(known))]

    def forget(self, allocation_id: str) -> None:
        self._digests.pop(allocation_id, None)

    def keep_only(self, allocation_ids: set[str]) -> None:
        """Forget allocations that no longer exist."""
        for gone in self._digests.keys() - allocation_ids:
            self.forget(gone)
