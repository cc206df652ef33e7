"""Validation of text fields: slugs, display names, remarks, reasons, e-mail addresses.

Every noun uses the same rules. The core checks them first, and the database's constraints check them again.
"""

import re
import unicodedata
from typing import Final

from mooring.core.kernel.errors import Code, Refusal

SLUG_PATTERN: Final = "^[a-z][a-z0-9-]{1,38}[a-z0-9]$"
EMAIL_PATTERN: Final = r"^[^@\s\x00-\x1f\x7f]{1,64}@[^@\s\x00-\x1f\x7f]{1,189}$"
_SLUG: Final = re.compile(SLUG_PATTERN)
_EMAIL: Final = re.compile(EMAIL_PATTERN)


def invalid(path: str, detail: str) -> Refusal:
    """The refusal of one field of a request; `detail` says what a valid value looks like."""
    return Refusal(Code.VALIDATION_FAILED, f"{path}: {detail}", {"path": path})


def slug(text: str, path: str = "slug") -> str:
    """A name for URLs and the command line."""
    if not _SLUG.fullmatch(text):
        raise invalid(
            path,
            "3 to 40 lower-case letters, digits and hyphens, beginning with a letter, not ending with a hyphen",
        )
    return text


def display_name(text: str, path: str = "display_name", longest: int = 200) -> str:
    """A name that people read: any printable text of one line."""
    name = text.strip()
    if not 1 <= len(name) <= longest:
        raise invalid(path, f"1 to {longest} characters")
    return _printable(name, path)


def remark(text: str, path: str, longest: int = 500) -> str:
    """A remark that people read; it may be empty."""
    if len(text) > longest:
        raise invalid(path, f"at most {longest} characters")
    return _printable(text.strip(), path)


def reason(text: str, path: str = "reason") -> str:
    """The reason that a person gives for an exceptional action."""
    stated = text.strip()
    if not 10 <= len(stated) <= 1000:
        raise invalid(path, "10 to 1000 characters that say why")
    return _printable(stated, path)


def email(text: str, path: str = "email") -> str:
    """An e-mail address in lower case, because it identifies a user within a tenant."""
    address = text.strip().lower()
    if not _EMAIL.fullmatch(address):
        raise invalid(path, "an e-mail address such as name@example.org")
    return _printable(address, path)


def _printable(text: str, path: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    for character in text:
        if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}:
            raise invalid(path, f"the character U+{ord(character):04X} is not printable")
    return text
