"""Which documents of a row are stored sealed, and what of them stays readable.

A sealed document is a JSON object with the ciphertext under `$sealed`. Parts that queries need, and that are not
secret, stand beside it in the clear. Documents without `$sealed` are from before the sealing, and are read as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

SEALED: Final = "$sealed"
TASK_ARGUMENTS: Final = "task_arguments"
INSTANCE_CONFIG: Final = "instance_config"
OPERATION_REQUEST: Final = "operation_request"


class DocumentCipher(Protocol):
    """Seals small documents with one data key; `bound` names the row, so that a moved ciphertext does not open."""

    @property
    def key_id(self) -> str: ...

    def seal(self, plain: bytes, bound: str) -> bytes: ...

    def open(self, sealed: bytes, bound: str) -> bytes: ...


@dataclass(frozen=True, slots=True)
class SealedColumn:
    """A column with a sealed document; without `readable`, every key but the input stays readable."""

    name: str
    purpose: str
    readable: tuple[str, ...] | None = ()

    def needs_seal(self, document: Mapping[str, Any]) -> bool:
        """An operation's request is sealed when its input has a `writeOnly` value."""
        return self.readable is not None or "hidden" in document

    def readable_part(self, document: Mapping[str, Any]) -> dict[str, Any]:
        if self.readable is None:
            return {name: value for name, value in document.items() if name != "input"}
        return {name: document[name] for name in self.readable if name in document}


SEALED_COLUMNS: Final[Mapping[str, SealedColumn]] = {
    # Queries look for a service's name, the endpoint that it declares, and tunnels to ports, which run no command.
    "task": SealedColumn("arguments", TASK_ARGUMENTS, ("name", "endpoint", "ports")),
    "instance": SealedColumn("config_secrets", INSTANCE_CONFIG),
    "operation": SealedColumn("request", OPERATION_REQUEST, None),
}


def bound_to(purpose: str, tenant_id: Any, id: Any) -> str:
    return f"{purpose}|{tenant_id or ''}|{id}"
