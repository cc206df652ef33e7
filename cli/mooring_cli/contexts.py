"""Contexts: which server, as whom, and in which tenant and project.

They live in one JSON file below the user's configuration directory, readable by the user alone, for it holds
personal access tokens. It is written whole and put in place by a rename, so that nobody ever reads half of
it. A file that others may read is refused, not repaired: whoever opened it should know that the tokens may
be known.
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
    """The file of contexts cannot be used as it is."""


@dataclass(frozen=True, slots=True)
class Context:
    """One way to work with a server. The token is never shown."""

    name: str
    url: str = DEFAULT_URL
    tenant: str | None = None
    project: str | None = None
    email: str | None = None
    token: str | None = field(default=None, repr=False)
    token_id: str | None = None
    token_expires_at: str | None = None

    def shown(self) -> dict[str, Any]:
        """What may be printed."""
        fields = asdict(self)
        fields["signed_in"] = fields.pop("token") is not None
        return fields


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts and the name of the current one."""

    current: str | None = None
    by_name: dict[str, Context] = field(default_factory=dict)

    def with_context(self, context: Context, *, use: bool) -> "Contexts":
        """With this context added or replaced."""
        current = context.name if use or self.current is None else self.current
        return Contexts(current, {**self.by_name, context.name: context})

    def without(self, name: str) -> "Contexts":
        """Without the context of this name."""
        left = {key: value for key, value in self.by_name.items() if key != name}
        return Contexts(None if self.current == name else self.current, left)

    def using(self, name: str) -> "Contexts":
        """With another current context."""
        return replace(self, current=name)


def contexts_file(environment: dict[str, str]) -> Path:
    """Where the contexts are kept."""
    configured = environment.get("XDG_CONFIG_HOME")
    home = Path(configured) if configured else Path(environment.get("HOME") or os.path.expanduser("~")) / ".config"
    return home / "mooring" / "contexts.json"


def load(path: Path) -> Contexts:
    """The contexts of a file; none where there is no file."""
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
            f"{path} holds tokens and others may read it (mode {mode:04o}); revoke them if that may have happened, "
            f"then run: chmod 600 {path}"
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
    """Write the contexts, for the user's eyes only."""
    import tempfile  # only here: it is slow to import, and most runs only read

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
