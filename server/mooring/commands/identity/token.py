"""Use cases of a person's own tokens, of those of users for admins, and of break-glass."""

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.identity.break_glass import BreakGlassEntry, open_break_glass
from mooring.core.identity.token import (
    PERSONAL_TOKENS_MAX,
    FreshToken,
    PersonalTokenSpec,
    Token,
    issue,
    personal_token,
    revoke_token,
    token_maker,
)
from mooring.core.kernel.decision import Decision
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.permissions import Role
from mooring.gateways.passwords import digest
from mooring.storage.identity import tenant as tenants
from mooring.storage.identity import token as tokens


async def create_personal(
    work: Work[Token], secret: str, spec: PersonalTokenSpec, user_agent: str | None = None
) -> Answered:
    """Create a personal access token for the caller, with at most the actions that the caller has."""
    user_id = work.context.actor.id

    async def load() -> int:
        return await tokens.count_personal(work.database, work.acting, user_id, work.context.now)

    def decide(token_count: int) -> Decision[Token]:
        if token_count >= PERSONAL_TOKENS_MAX:
            raise Refusal(
                Code.LIMIT_REACHED,
                f"a user has at most {PERSONAL_TOKENS_MAX} tokens",
                {"limit": PERSONAL_TOKENS_MAX},
            )
        maker = token_maker(work.origin.remote_address, user_agent)
        fresh = FreshToken(work.context.mint(Prefix.TOKEN), digest(secret), maker)
        token = personal_token(
            work.context,
            fresh,
            spec,
            user_id=user_id,
            tenant_id=work.acting.tenant_id,
            limit=work.authority.limit,
        )
        return issue(token, fresh, action="token.create")

    return await work.execute(load, decide)


async def revoke(work: Work[Token], token_id: str) -> Answered:
    async def load() -> Token:
        return require(await tokens.find_own(work.database, work.acting, token_id, work.context.actor.id), "token")

    return await work.execute(load, lambda token: revoke_token(work.context, token))


async def revoke_of_user(work: Work[Token], token_id: str) -> Answered:
    """Revoke a session or a personal token of a user of the tenant, or of the platform, as an admin."""

    async def load() -> Token:
        return require(await tokens.find_of_users(work.database, work.acting, token_id), "token")

    return await work.execute(load, lambda token: revoke_token(work.context, token, action="user_token.revoke"))


async def enter(work: Work[BreakGlassEntry], secret: str, tenant_id: str, role: Role, reason: str) -> Answered:
    async def load() -> None:
        require(await tenants.find(work.database, work.acting, tenant_id), "tenant")

    def decide(_: None) -> Decision[BreakGlassEntry]:
        fresh = FreshToken(work.context.mint(Prefix.TOKEN), digest(secret))
        return open_break_glass(work.context, tenant_id, role, reason, fresh, limit=work.authority.limit)

    return await work.execute(load, decide)
