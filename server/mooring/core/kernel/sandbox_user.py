"""Users inside a sandbox: the syntax of their names, and the test for root."""

from typing import Final

USER_PATTERN: Final = "^([a-z_][a-z0-9_-]{0,31}|[0-9]{1,5}(:[0-9]{1,5})?)$"


def is_root(user: str) -> bool:
    """Whether this names root: by name, by uid 0 or by gid 0. Only the sandbox knows the uid of other names."""
    return user == "root" or any(part.lstrip("0") == "" for part in user.split(":"))
