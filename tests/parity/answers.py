"""An answer of either platform in comparable form: ids become the names that a history gave them, times disappear.

Everything else that the contract promises stays. Keys are compared too, so that an adapter that reads a field of the
real platform finds it in the suite.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

TIMES: Final = frozenset(
    {"now", "created_at", "finished_at", "expires_at", "deadline_at", "phase_deadline_at", "started_at", "ended_at"}
)
OF_THE_PLACE: Final = frozenset(
    {"etag", "cursor", "lease_seconds", "correlation_id", "trace_id", "allocation", "pin", "previous_pin", "target_pin"}
    | {"tenant_id", "project_id", "version_id", "requested_by", "owner", "since", "manifest", "target_manifest"}
    | {"name", "app_slug", "topology", "config", "runtime_backend", "last_operation_id", "cancel_reason"}
)
"""What differs because the two platforms have other nodes, versions and people; only its presence is compared."""
NAMED: Final = frozenset({"", "steps", "endpoints"})
"""Lists whose parts have a name that the adapter chose, which is compared."""


@dataclass(frozen=True, slots=True)
class PlatformAnswer:
    """The status and the body of a response; of a refusal only its code counts."""

    status: int
    body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def code(self) -> str | None:
        return None if self.status < 400 else str(self.body.get("code"))


def comparable(answer: PlatformAnswer, names: Mapping[str, str]) -> dict[str, Any]:
    """The answer without what has to differ; `names` has the history's name of each id."""
    if answer.status >= 400:
        return {"status": answer.status, "code": answer.code, "retryable": answer.body.get("retryable")}
    return {"status": answer.status, "body": _plain(answer.body, names, "")}


def _plain(value: Any, names: Mapping[str, str], inside: str) -> Any:
    if isinstance(value, dict):
        return {key: _of_key(key, each, names, inside) for key, each in sorted(value.items())}
    if isinstance(value, list):
        parts = [_plain(each, names, inside) for each in value]
        return sorted(parts, key=repr) if inside in ("members", "tasks", "operations") else parts
    return names.get(value, value) if isinstance(value, str) else value


def _of_key(key: str, value: Any, names: Mapping[str, str], inside: str) -> Any:
    if key in TIMES:
        return value is not None
    if key in OF_THE_PLACE and not (key == "name" and inside in NAMED):
        return "…"
    if key == "request":
        return "…"  # what people asked for, in their words; the suite's scenarios read it
    if key == "refusal" and value is not None:
        return {"code": value["code"], "retryable": value["retryable"]}
    return _plain(value, names, key)


def differences(simulated: Any, real: Any, path: str = "") -> list[str]:
    """Each place where the two differ, as lines for a person."""
    if isinstance(simulated, dict) and isinstance(real, dict):
        found = []
        for key in sorted({*simulated, *real}):
            here = f"{path}/{key}"
            if key not in simulated or key not in real:
                where = "real platform" if key in real else "simulated platform"
                found.append(f"{here}: only the {where} has it")
            else:
                found += differences(simulated[key], real[key], here)
        return found
    if isinstance(simulated, list) and isinstance(real, list) and len(simulated) == len(real):
        pairs = zip(simulated, real, strict=True)
        return [
            line for number, (one, other) in enumerate(pairs) for line in differences(one, other, f"{path}/{number}")
        ]
    return [] if simulated == real else [f"{path}: simulated {simulated!r}, real {real!r}"]
