"""Bodies of corrections by hand."""

from typing import Annotated

from msgspec import Meta

from mooring.api.schemas.kernel.fields import Shown, Strict, Time
from mooring.core.kernel.ids import Prefix, pattern
from mooring.core.money.correction import MICRO_MAX, Correction

TransactionId = Annotated[str, Meta(pattern=pattern(Prefix.LEDGER_TRANSACTION))]


class CreateCorrection(Strict):
    """What is corrected, by how much, and why."""

    transaction_id: Annotated[TransactionId, Meta(description="The charge, or an earlier correction.")]
    micro: Annotated[
        int,
        Meta(
            ge=-MICRO_MAX,
            le=MICRO_MAX,
            description="What the project owes more, in 10⁻⁶ minor unit; below 0: a credit.",
        ),
    ]
    reason: Annotated[str, Meta(min_length=10, max_length=1000)]


class CorrectionView(Shown):
    """A correction that is booked."""

    id: str
    tenant_id: str
    project_id: str
    corrects_id: str
    price_id: str
    currency: str
    hour: Time
    amount: Annotated[str, Meta(description="In 10⁻⁶ minor unit.")]
    reason: str
    corrected_by: str
    created_at: Time


def correction_view(made: Correction) -> CorrectionView:
    transaction = made.transaction
    return CorrectionView(
        id=transaction.id,
        tenant_id=transaction.tenant_id,
        project_id=transaction.project_id,
        corrects_id=transaction.corrects_id or "",
        price_id=transaction.price_id,
        currency=transaction.currency,
        hour=transaction.hour,
        amount=str(made.micro),
        reason=transaction.correction_reason or "",
        corrected_by=transaction.corrected_by or "",
        created_at=transaction.created_at,
    )
