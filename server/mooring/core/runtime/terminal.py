"""Terminal: where people run commands in an app, such as a login shell with the app's tools.

It is an endpoint of the protocol `terminal`: it has no port but a member and a user. An adapter reports it for a
member, or the manifest declares it, and then it is at the first member that is up. A command there is a visit like any
other: it runs as a non-root user, in that member's part of its sandbox, and its arguments are in the audit trail.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mooring.core.catalog.manifest import Manifest
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.sandbox_user import is_root
from mooring.core.kernel.validation import invalid
from mooring.core.runtime.instance import Instance
from mooring.core.runtime.member import Member, MemberState

PROTOCOL: Final = "terminal"
DEFAULT_USER: Final = "app"
LOGIN_SHELL: Final = ("/bin/sh", "-c", "[ -x /bin/bash ] && exec /bin/bash -l; exec /bin/sh -l")
"""The command if the caller names none."""
OF_PORTS: Final = ("port", "path", "task_id")
OF_TERMINALS: Final = ("user", "directory", "environment")
UP: Final = (MemberState.READY, MemberState.DEGRADED)


@dataclass(frozen=True, slots=True)
class Terminal:
    """Where commands run, and as which user."""

    name: str
    user: str = DEFAULT_USER
    directory: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def check_endpoint(endpoint: Mapping[str, Any], path: str) -> None:
    """Refuse a port with a user, and a terminal with a port or with root as its user."""
    is_terminal = endpoint["protocol"] == PROTOCOL
    wrong = [each for each in (OF_PORTS if is_terminal else OF_TERMINALS) if endpoint.get(each) is not None]
    if wrong:
        raise invalid(f"{path}/{wrong[0]}", f"an endpoint of protocol {endpoint['protocol']} has no {wrong[0]}")
    if is_terminal and is_root(endpoint.get("user") or DEFAULT_USER):
        raise invalid(f"{path}/user", "must not be root: people run commands there")


def choose(
    instance: Instance, manifest: Manifest | None, members: Sequence[Member], name: str | None
) -> tuple[Terminal, Member]:
    """The named terminal, or the only one, and its member."""
    terminals = _reported(instance, members) or _declared(manifest, members)
    if not terminals:
        raise Refusal(Code.CONFLICT, f"{instance.name} has no terminal, or not yet: there is nowhere to run commands")
    if name is not None:
        terminals = [each for each in terminals if each[0].name == name]
        if not terminals:
            raise invalid("endpoint", f"{instance.name} has no terminal {name}")
    if len(terminals) > 1:
        names = ", ".join(sorted(each.name for each, _ in terminals))
        raise invalid("endpoint", f"must be one of {names}: {instance.name} has several terminals")
    terminal, member = terminals[0]
    if member is None or member.allocation_id is None:
        raise Refusal(Code.CONFLICT, f"no member of {instance.name} is up: there is nowhere to run a command yet")
    return terminal, member


def _reported(instance: Instance, members: Sequence[Member]) -> list[tuple[Terminal, Member | None]]:
    known = {each.id: each for each in members}
    return [
        (
            Terminal(
                each["name"], each.get("user", DEFAULT_USER), each.get("directory"), each.get("environment") or {}
            ),
            known.get(each.get("member_id", "")),
        )
        for each in instance.endpoints
        if each["protocol"] == PROTOCOL
    ]


def _declared(manifest: Manifest | None, members: Sequence[Member]) -> list[tuple[Terminal, Member | None]]:
    order = {each.key: number for number, each in enumerate(() if manifest is None else manifest.components)}
    running = [each for each in members if each.status in UP]
    up = sorted(running, key=lambda each: (order.get(each.component_key, 0), each.ordinal))
    return [
        (Terminal(each.name, each.user or DEFAULT_USER), up[0] if up else None)
        for each in (() if manifest is None else manifest.endpoints)
        if each.protocol == PROTOCOL
    ]
