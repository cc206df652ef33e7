"""Secrets of containers: environment variables whose values do not outlive the container.

podman writes a container's environment into its database, where deleted values can still be read from the file. So a
secret is not part of the container's configuration: it is one of podman's own secrets, of which the database holds only
the name. The values are in a directory below /run that only root can read, and enter the environment when the container
starts. They are removed with the container, and again by every teardown.

Names begin with the allocation, so that secrets left by a killed agent are found by their owner.
"""

import hashlib
from dataclasses import dataclass
from typing import Final

from mooring_agent.containers.podman import Podman
from mooring_agent.hosts.contract import HostFailure, Owner, Resource
from mooring_agent.tasks import arguments as task_arguments
from mooring_agent.tasks.handlers import TaskContext, secret_text

BYTES_MAX: Final = 500_000
DIGITS: Final = 8


@dataclass(frozen=True, slots=True)
class ContainerSecrets:
    """The podman secrets of this agent's containers."""

    podman: Podman

    async def options(self, context: TaskContext, arguments: task_arguments.ContainerLaunch) -> list[str]:
        """Store the secrets of a container that is about to be created; returns podman's options for them."""
        options: list[str] = []
        place = f"{_owner_prefix(context.owner)}.{_digest(arguments.name)}"
        for number, (variable, name) in enumerate(sorted(arguments.environment_secrets.items())):
            value = secret_text(context, name).encode()
            if len(value) > BYTES_MAX:
                raise HostFailure("too_large", f"the secret {name!r} is larger than {BYTES_MAX} bytes")
            if not value:  # podman stores no empty secret, and there is nothing to hide
                options += ["--env", f"{variable}="]
                continue
            secret_name = f"{place}.{number}"
            await self.podman.try_call("secret", "rm", secret_name)  # left by an interrupted launch
            driver_options = f"path={self.podman.secrets}"
            await self.podman.call(
                "secret", "create", "--driver", "file", "--driver-opts", driver_options, secret_name, "-", stdin=value
            )
            options += ["--secret", f"{secret_name},type=env,target={variable}"]
        return options

    async def remove_for_container(self, owner: Owner, name: str) -> list[Resource]:
        return await self._remove(f"{_owner_prefix(owner)}.{_digest(name)}.")

    async def remove(self, owner: Owner) -> list[Resource]:
        """Remove the secrets of all containers of an owner; without a label, those of the whole allocation."""
        return await self._remove(f"{_owner_prefix(owner)}." if owner.label else f"{owner.allocation_id}.")

    async def allocations(self) -> list[str]:
        return sorted({name.partition(".")[0] for name in await self._names()})

    async def _names(self) -> list[str]:
        return (await self.podman.call("secret", "ls", "--format", "{{.Name}}")).split()

    async def _remove(self, beginning: str) -> list[Resource]:
        found = [name for name in await self._names() if name.startswith(beginning)]
        if found:
            await self.podman.call("secret", "rm", *found)
        return [Resource("secrets", name) for name in found]


def _owner_prefix(owner: Owner) -> str:
    return f"{owner.allocation_id}.{_digest(owner.label or '')}"


def _digest(text: str) -> str:
    """A short name that podman accepts: an owner's label alone may be as long as podman allows."""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
