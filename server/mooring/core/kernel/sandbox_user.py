"""Users inside a sandbox: how one is named, and who counts as root."""

from typing import Final

USER_PATTERN: Final = "^([a-z_][a-z0-9_-]{0,31}|[0-9]{1,5}(:[0-9]{1,5})?)$"


def is_root(user: str) -> bool:
    """Whether a user is root by his name or his number, or of root's group; who a name is, only the sandbox knows."""
    return user == "root" or any(part.lstrip("0") == "" for part in user.split(":"))
