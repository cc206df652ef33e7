"""Request and response bodies for payments and credits."""

from typing import Annotated

from msgspec import Meta

from mooring.api.schemas.catalog.app import Reason
from mooring.api.schemas.kernel.fields import Shown, Strict, Time
from mooring.api.schemas.pricing.quota import Currency
from mooring.core.money.charge import TransactionKind
from mooring.core.money.payment import Payment, PaymentSpec
from mooring.core.pricing.price import AMOUNT_MAX

PaymentKind = Annotated[
    str, Meta(pattern="^(payment|credit)$", description="`payment` (money came in) or `credit` (granted).")
]


class CreatePayment(Strict):
    """A payment or a credit of a tenant."""

    currency: Currency
    minor: Annotated[
        int,
        Meta(ge=-AMOUNT_MAX, le=AMOUNT_MAX, description="In minor units; negative for a refund."),
    ]
    reference: Annotated[
        str, Meta(min_length=1, max_length=200, description="Names the receipt elsewhere; booked once for each tenant.")
    ]
    reason: Reason
    kind: PaymentKind = "payment"


class PaymentView(Shown):
    """A booked payment or credit; it is never changed."""

    id: str
    tenant_id: str
    kind: PaymentKind
    currency: str
    minor: int
    reference: str
    reason: str
    created_by: str
    created_at: Time


def payment_spec(body: CreatePayment) -> PaymentSpec:
    return PaymentSpec(TransactionKind(body.kind), body.currency, body.minor, body.reference, body.reason)


def payment_view(payment: Payment) -> PaymentView:
    return PaymentView(**{name: getattr(payment, name) for name in Payment.__slots__})
