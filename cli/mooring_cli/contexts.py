"""Contexts: the server, tenant, project and token to work with.

They are stored in one JSON file in the user's configuration directory, readable only by the user, because it holds
personal access tokens. It is replaced by a rename, so nobody reads half of it. A file that others can read is
refused, not repaired: its owner should know that the tokens may have leaked.
"""

import json
import os
import stat
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

DEFAULT_URL = "http://127.0.0.1:7420"
DEFAULT_NAME = "default"


class ContextsUnusable(Exception):
    """The file of contexts cannot be used."""


@dataclass(frozen=True, slots=True)
class Context:
    """A server with its tenant, project and token. The token is never shown."""

    name: str
    url: str = DEFAULT_URL
    tenant: str | None = None
    project: str | None = None
    email: str | None = None
    token: str | None = field(default=None, repr=False)
    token_id: str | None = None
    token_expires_at: str | None = None
    ca_file: str | None = None

    def shown(self) -> dict[str, Any]:
        """The fields that may be printed."""
        fields = asdict(self)
        fields["signed_in"] = fields.pop("token") is not None
        return fields


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts and the name of the current one."""

    current: str | None = None
    by_name: dict[str, Context] = field(default_factory=dict)

    def with_context(self, context: Context, *, use: bool) -> "Contexts":
        """A copy with this context added or replaced."""
        current = context.name if use or self.current is None else self.current
        return Contexts(current, {**self.by_name, context.name: context})

    def without(self, name: str) -> "Contexts":
        """A copy without this context."""
        left = {key: value for key, value in self.by_name.items() if key != name}
        return Contexts(None if self.current == name else self.current, left)

    def using(self, name: str) -> "Contexts":
        """A copy with another current context."""
        return replace(self, current=name)


def contexts_file(environment: dict[str, str]) -> Path:
    configured = environment.get("XDG_CONFIG_HOME")
    home = Path(configured) if configured else Path(environment.get("HOME") or os.path.expanduser("~")) / ".config"
    return home / "mooring" / "contexts.json"


def load(path: Path) -> Contexts:
    """The contexts in a file; none if there is no file."""
    try:
        with path.open(encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = json.load(file)
    except FileNotFoundError:
        return Contexts()
    except (OSError, ValueError) as error:
        raise ContextsUnusable(f"{path} cannot be read: {error}") from error
    if mode & 0o077:
        raise ContextsUnusable(
            f"{path} holds tokens and other users can read it (mode {mode:04o}); revoke them if somebody may have read "
            f"it, then run: chmod 600 {path}"
        )
    try:
        known = set(Context.__dataclass_fields__)
        by_name = {
            name: Context(**{"name": name, **{key: value for key, value in fields.items() if key in known}})
            for name, fields in content["contexts"].items()
        }
        return Contexts(content.get("current"), by_name)
    except (KeyError, TypeError, AttributeError) as error:
        raise ContextsUnusable(f"{path} is not a file of contexts; move it away and sign in again") from error


def save(path: Path, contexts: Contexts) -> None:
    """Write the contexts, readable only by the user."""
    import tempfile  # imported here because it is slow to import, and most runs only read

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = {
        "current": contexts.current,
        "contexts": {name: asdict(context) for name, context in contexts.by_name.items()},
    }
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".contexts-")  # made with mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
