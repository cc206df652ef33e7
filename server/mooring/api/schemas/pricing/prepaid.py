"""Request and response bodies for tenants that pay in advance."""

from typing import Annotated

from msgspec import Meta

from mooring.api.schemas.catalog.app import Reason
from mooring.api.schemas.kernel.fields import Revision, Shown, Strict, Time
from mooring.api.schemas.pricing.quota import Currency
from mooring.commands.pricing.prepaid import BalanceStanding
from mooring.core.pricing.prepaid import BalanceLevel, PrepaidAccount, level_of
from mooring.core.pricing.price import AMOUNT_MAX
from mooring.core.pricing.rating import MICRO
from mooring.core.pricing.spending import up


class PutPrepaid(Strict):
    """The currency in which a tenant pays in advance, and from where on its balance is low."""

    currency: Currency
    low_minor: Annotated[int, Meta(ge=0, le=AMOUNT_MAX, description="In minor units of the currency.")]
    reason: Reason
    revision: Revision | None = None


class PrepaidView(Shown):
    """A tenant that pays in advance."""

    id: str
    tenant_id: str
    currency: str
    low_minor: int
    updated_at: Time
    revision: int
    etag: str


class BalanceView(Shown):
    """What a tenant that pays in advance has left; amounts in minor units."""

    tenant_id: str
    prepaid: Annotated[bool, Meta(description="Whether the tenant pays in advance; otherwise nothing is limited.")]
    currency: str | None
    low_minor: int | None
    level: Annotated[BalanceLevel | None, Meta(description="`low` or `depleted`; null if neither.")]
    paid_minor: int
    charged_minor: Annotated[int, Meta(description="What is booked in the ledger.")]
    estimated_minor: Annotated[int, Meta(description="What running clocks show since the last booked hour.")]
    held_minor: Annotated[int, Meta(description="What launches reserved and clocks have not used yet.")]
    available_minor: Annotated[int, Meta(description="What a launch may still reserve.")]


def prepaid_view(account: PrepaidAccount) -> PrepaidView:
    return PrepaidView(
        id=account.id,
        tenant_id=account.tenant_id,
        currency=account.currency,
        low_minor=account.low_minor,
        updated_at=account.updated_at,
        revision=account.revision,
        etag=str(account.revision),
    )


def balance_view(standing: BalanceStanding) -> BalanceView:
    account, balance = standing.account, standing.balance
    used = up(balance.charged_micro + balance.accrued_micro + standing.held_micro)
    return BalanceView(
        tenant_id=standing.tenant_id,
        prepaid=account is not None,
        currency=None if account is None else account.currency,
        low_minor=None if account is None else account.low_minor,
        level=None if account is None else level_of(account, balance.left_micro),
        paid_minor=balance.paid_micro // MICRO,
        charged_minor=up(balance.charged_micro),
        estimated_minor=up(balance.accrued_micro),
        held_minor=up(standing.held_micro),
        available_minor=balance.paid_micro // MICRO - used,
    )
