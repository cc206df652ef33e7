"""Commands on users, done by admins and by the users themselves."""

from dataclasses import replace

from mooring.commands.identity.tenant import one_time
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.identity.user import (
    User,
    UserChange,
    change_user,
    check_password_form,
    create_user,
    require_reach,
    set_password,
)
from mooring.core.kernel.decision import Decision
from mooring.core.kernel.errors import Code, Refusal
from mooring.storage.identity import user as users


async def create(work: Work[User], who: tuple[str, str], code: str) -> Answered:
    """Make a user of the tenant (or platform) that the work acts for; `who` is e-mail address and display name."""

    async def load() -> None:
        return None

    return await work.execute(
        load, lambda _: create_user(work.context, work.acting.tenant_id, who, one_time(work, code))
    )


async def change(work: Work[User], user_id: str, how: UserChange, code: str | None = None) -> Answered:
    """Disable, enable or reset a user; a reset comes with a new one-time code."""

    async def load() -> User:
        user = require(await users.find(work.database, work.acting, user_id), "user")
        if how is UserChange.RESET:
            require_reach(work.authority, await users.roles(work.database, work.acting, user_id))
        return user

    fresh = None if code is None else one_time(work, code)
    return await work.execute(load, lambda user: change_user(work.context, user, how, fresh))


async def change_own_password(work: Work[User], current: str, wanted: str) -> Answered:
    """The user's own new password, against the current one."""
    check_password_form(wanted)
    passwords = work.services.passwords

    async def load() -> tuple[User, str]:
        user = require(await users.find(work.database, work.acting, work.context.actor.id), "user")
        if not await passwords.verify(user.password_hash, current):
            raise Refusal(Code.SIGN_IN_REFUSED, "the current password is not right")
        return user, await passwords.hash(wanted)

    def decide(seen: tuple[User, str]) -> Decision[User]:
        # Hashing took its time: a token that was made meanwhile, by whoever had the old password, ends as well.
        return set_password(replace(work.context, now=work.services.clock.now()), *seen)

    return await work.execute(load, decide)
