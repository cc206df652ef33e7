"""Shows whom a loss of trust affects, before it is asked for.

A revocation is final, and removing a signer key may end the trust in what runs. So these commands read the impact
first, say it in words, and ask for confirmation like commands that delete something.
"""

from collections.abc import Mapping
from typing import Any, Final

from mooring_cli import output
from mooring_cli.invocation import Invocation

IMPACT_OF: Final[Mapping[str, str]] = {
    "revoke_platform_artifact": "get_platform_artifact_impact",
    "revoke_tenant_artifact": "get_tenant_artifact_impact",
    "revoke_project_artifact": "get_project_artifact_impact",
    "remove_platform_signer_key": "get_platform_signer_key_impact",
    "remove_tenant_signer_key": "get_tenant_signer_key_impact",
}
"""Operation → the one that reads what it would affect."""
NAMES_MAX: Final = 10
WORDS: Final = {
    "notify": "its project is notified",
    "refuse": "restarts, repairs and actions are refused",
    "drain": "its members are drained",
    "stop": "it is stopped",
}
"""What a reaction means for one instance."""


def show(invocation: Invocation, operation: str, path: Mapping[str, str]) -> None:
    """Read what the operation would affect, and say it on stderr."""
    impact = invocation.call(IMPACT_OF[operation], dict(path), {}, None)
    for line in lines_of(impact):
        output.note(line)


def lines_of(impact: Mapping[str, Any]) -> list[str]:
    """The blast radius in words."""
    counts, reactions = impact["counts"], impact["reactions"]
    running = sum(reactions.values())
    if not running and not counts["instances"]:
        return ["Nothing runs it."]
    where = f"in {_many(counts['projects'], 'project')} of {_many(counts['tenants'], 'tenant')}"
    lines = []
    if "members" in counts:
        held = f"{_many(counts['instances'], 'instance')} with {_many(counts['members'], 'member')} {where}"
        lines.append(f"Held by {held}; needed by {_many(counts['versions'], 'version')}.")
        lines.append(f"{_many(running, 'instance')} run it now." if running != 1 else "1 instance runs it now.")
    else:
        verb = "loses its" if running == 1 else "lose their"
        lines.append(f"{_many(running, 'instance')} {where} {verb} trust.")
    for name, meaning in WORDS.items():
        if reactions.get(name):
            lines.append(f"  {name}: {_many(reactions[name], 'instance')}; {meaning}")
    names = [str(each["name"]) for each in impact["instances"]]
    if names:
        more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
        lines.append(f"  {', '.join(names[:NAMES_MAX])}{more}")
    return lines


def _many(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
