"""The rules for a new password."""

from mooring.commands.services import Services
from mooring.core.identity.user import check_password_form
from mooring.core.kernel import validation


async def require_strong(services: Services, password: str, email: str, name: str) -> None:
    """Refuse a password that is too short, contains the user's name, or is easy to guess.

    Estimating takes as long as hashing, so callers have proven who they are, and repetitions are counted.
    """
    check_password_form(password, email)
    weakness = await services.passwords.weakness(password, (email, *email.split("@"), *name.split()))
    if weakness is not None:
        raise validation.invalid(
            "new_password", f"too easy to guess: {weakness}. Choose another, such as four or more unrelated words"
        )
