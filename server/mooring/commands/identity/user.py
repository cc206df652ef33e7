"""Use cases for users: what admins do with them, and what they do themselves."""

from dataclasses import dataclass, replace

from mooring.commands.identity.password import require_strong
from mooring.commands.identity.tenant import one_time
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.identity.user import (
    User,
    UserChange,
    UserSpec,
    change_user,
    create_user,
    end_other_sessions,
    require_reach,
    set_password,
)
from mooring.core.kernel.decision import Decision, Remove
from mooring.core.kernel.errors import Code, Refusal
from mooring.storage.identity import passkey as passkeys
from mooring.storage.identity import user as users


async def create(work: Work[User], spec: UserSpec, code: str) -> Answered:
    """Create a user of the tenant (or the platform) that the work acts for, with a one-time sign-in code."""

    async def load() -> None:
        return None

    return await work.execute(
        load, lambda _: create_user(work.context, work.acting.tenant_id, spec, one_time(work, code))
    )


async def change(work: Work[User], user_id: str, how: UserChange, code: str | None = None) -> Answered:
    """Disable, enable or reset a user; a reset needs a new one-time code."""

    async def load() -> tuple[User, list[Remove]]:
        user = require(await users.find(work.database, work.acting, user_id), "user")
        if how is not UserChange.RESET:
            return user, []
        require_reach(work.authority, await users.roles(work.database, work.acting, user_id))
        return user, await passkeys.removals(work.database, work.acting, user_id)

    new_code = None if code is None else one_time(work, code)
    return await work.execute(load, lambda loaded: change_user(work.context, loaded[0], how, new_code, loaded[1]))


async def end_own_other_sessions(work: Work[User]) -> Answered:
    """End every session of the caller except the one that asks."""

    async def load() -> User:
        return require(await users.find(work.database, work.acting, work.context.actor.id), "user")

    return await work.execute(load, lambda user: end_other_sessions(work.context, user))


@dataclass(frozen=True, slots=True)
class _NewPassword:
    """A user whose current password was right, and the hash of the new one."""

    user: User
    password_hash: str


async def change_own_password(work: Work[User], current: str, wanted: str) -> Answered:
    """Change the caller's own password, after checking the current one."""
    passwords = work.services.passwords

    async def load() -> _NewPassword:
        user = require(await users.find(work.database, work.acting, work.context.actor.id), "user")
        if not await passwords.verify(user.password_hash, current):
            raise Refusal(Code.SIGN_IN_REFUSED, "the current password is wrong")
        await require_strong(work.services, wanted, user.email, user.display_name)
        return _NewPassword(user, await passwords.hash(wanted))

    def decide(new: _NewPassword) -> Decision[User]:
        # Hashing takes time: a token that somebody made with the old password in the meantime must become invalid too.
        context = replace(work.context, now=work.services.clock.now())
        return set_password(context, new.user, new.password_hash)

    return await work.execute(load, decide)
