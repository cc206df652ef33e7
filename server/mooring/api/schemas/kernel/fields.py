"""Field types that several bodies and views share, and the parent classes of bodies and views."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from mooring.core.kernel.ids import Prefix, pattern
from mooring.core.kernel.permissions import Authority, Place
from mooring.core.kernel.validation import EMAIL_PATTERN, SLUG_PATTERN

Slug = Annotated[
    str, Meta(pattern=SLUG_PATTERN, min_length=3, max_length=40, description="A name for URLs and the command line.")
]
DisplayName = Annotated[str, Meta(min_length=1, max_length=200, description="A name that people read.")]
Email = Annotated[str, Meta(min_length=3, max_length=254, pattern=EMAIL_PATTERN, description="An e-mail address.")]
Password = Annotated[str, Meta(min_length=1, max_length=200)]
NewPassword = Annotated[
    str, Meta(min_length=12, max_length=200, description="At least 12 characters, and not easy to guess.")
]
Revision = Annotated[
    int, Meta(ge=0, le=2**62, description="The revision that the caller read; refused when there is a newer one.")
]
Description = Annotated[str, Meta(max_length=500)]
UserId = Annotated[str, Meta(pattern=pattern(Prefix.USER))]
TenantId = Annotated[str, Meta(pattern=pattern(Prefix.TENANT))]
ActionKey = Annotated[str, Meta(min_length=3, max_length=150, pattern=r"^[a-z0-9_.\-]+$")]
PublicKey = Annotated[
    str,
    Meta(
        min_length=43,
        max_length=44,
        pattern="^[A-Za-z0-9+/_-]{43}=?$",
        description="The 32 bytes of an Ed25519 public key, in base64.",
    ),
]
OneTimeCode = Annotated[str, Meta(description="The code for the first sign-in; it is shown only once.")]

Time = Annotated[datetime, Meta(tz=True)]


class Strict(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A request body; unknown fields are refused and not ignored."""


class Shown(msgspec.Struct, kw_only=True):
    """A response body."""


def allowed(authority: Authority, place: Place, actions: Iterable[str]) -> list[str]:
    """The actions of this list that the caller may do at this place, sorted."""
    held = authority.at(place)
    return sorted(action for action in actions if action in held)
