"""What was planned for a machine, and whether what its agent reports fits that and what it reported before.

A node is not trusted about itself: an operator may state on the enrolment token what the machine must have, and each
report is compared with the best that the node reported before, its baseline. A difference is a finding; it stays until
the machine reports what it should, or an operator accepts what is there.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Final

from mooring.core.kernel import validation

GPU_COUNT_MAX: Final = 128
MODEL_MAX: Final = 100
NAME_PATTERN: Final = "^[a-z0-9*-]{1,64}$"
_NAME: Final = re.compile(NAME_PATTERN)
GPU_ID_FACT: Final = "gpu.{}.id"
"""The fact in which an agent reports the device behind an index."""
MACHINE_FACT: Final = "machine"
"""The fact by which an agent tells one machine from another."""
MEMORY_TOLERANCE: Final = 0.02
"""A kernel keeps more or less memory for itself after an update; less than this part is not a loss."""

Findings = list[dict[str, Any]]


class Approval(StrEnum):
    """Whether somebody must accept a machine before it gets work."""

    AUTOMATIC = "automatic"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class NodeExpectation:
    """What a machine must report; what is None is not compared."""

    gpu_model: str | None = None
    gpu_count: int | None = None
    name_pattern: str | None = None  # `*` stands for any characters

    def document(self) -> dict[str, Any] | None:
        return {name: value for name, value in asdict(self).items() if value is not None} or None


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What an enrolment token says about the machine that joins with it, beside region and labels."""

    approval: Approval = Approval.AUTOMATIC
    expects: NodeExpectation = NodeExpectation()


def check_plan(plan: NodePlan) -> NodePlan:
    expects = plan.expects
    if expects.gpu_model is not None:
        validation.display_name(expects.gpu_model, "expects.gpu_model", MODEL_MAX)
    if expects.name_pattern is not None and not _NAME.fullmatch(expects.name_pattern):
        raise validation.invalid("expects.name_pattern", "1 to 64 lower-case letters, digits, `-` and `*`")
    if expects.gpu_count is not None and not 0 <= expects.gpu_count <= GPU_COUNT_MAX:
        raise validation.invalid("expects.gpu_count", f"0 to {GPU_COUNT_MAX}")
    return plan


def unexpected(expects: Mapping[str, Any] | None, name: str, document: Mapping[str, Any]) -> Findings:
    """How a report differs from what the token of the machine said."""
    if not expects:
        return []
    found: Findings = []
    models = Counter(gpu["model"] for gpu in document["gpus"])
    model, count = expects.get("gpu_model"), expects.get("gpu_count")
    if model is not None and set(models) - {model}:
        found.append(_finding("unexpected_gpu_model", f"expected {model}, reports {', '.join(sorted(models))}"))
    if count is not None and models.total() != count:
        found.append(_finding("unexpected_gpu_count", f"expected {count} GPUs, reports {models.total()}"))
    pattern = expects.get("name_pattern")
    if pattern is not None and not fnmatchcase(name, pattern):
        found.append(_finding("unexpected_name", f"expected a name like {pattern}, it is {name}"))
    return found


def baseline_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """What later reports are compared with."""
    facts = document.get("facts", {})
    ids = {str(gpu["index"]): facts.get(GPU_ID_FACT.format(gpu["index"])) for gpu in document["gpus"]}
    return {
        "cpus": document["cpus"],
        "memory_bytes": document["memory_bytes"],
        "gpus": dict(sorted(Counter(gpu["model"] for gpu in document["gpus"]).items())),
        "gpu_ids": {index: device for index, device in ids.items() if device is not None},
        "machine": facts.get(MACHINE_FACT),
        "addresses": list(document.get("addresses", ())),
    }


def differences(before: Mapping[str, Any] | None, document: Mapping[str, Any]) -> Findings:
    """What a machine lost, and whether it is another one. What it gained is not a finding."""
    if before is None:
        return []
    now, found = baseline_of(document), []
    for model, count in before["gpus"].items():
        if now["gpus"].get(model, 0) < count:
            found.append(_finding("gpus_lost", f"had {count} of {model}, reports {now['gpus'].get(model, 0)}"))
    if now["cpus"] < before["cpus"]:
        found.append(_finding("cpus_lost", f"had {before['cpus']} CPUs, reports {now['cpus']}"))
    if now["memory_bytes"] < before["memory_bytes"] * (1 - MEMORY_TOLERANCE):
        found.append(_finding("memory_lost", f"had {before['memory_bytes']} bytes, reports {now['memory_bytes']}"))
    if None not in (before["machine"], now["machine"]) and before["machine"] != now["machine"]:
        found.append(_finding("machine_changed", "the agent's state and keys are now on another machine"))
    if before["addresses"] and now["addresses"] and not set(before["addresses"]) & set(now["addresses"]):
        detail = f"was reached at {', '.join(before['addresses'])}, reports {', '.join(now['addresses'])}"
        found.append(_finding("addresses_changed", detail))
    return found


def swapped_devices(before: Mapping[str, Any] | None, document: Mapping[str, Any], held: Sequence[int]) -> list[int]:
    """The held indexes behind which another device is reported than before."""
    if before is None:
        return []
    known, reported = before["gpu_ids"], baseline_of(document)["gpu_ids"]
    return [index for index in held if known.get(str(index), reported.get(str(index))) != reported.get(str(index))]


def _finding(code: str, detail: str) -> dict[str, Any]:
    return {"code": code, "detail": detail[:500]}
