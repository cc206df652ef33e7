"""Amounts as people read them: the API counts in 10⁻⁶ of a currency's minor unit."""

from decimal import Decimal, localcontext

MICRO_DIGITS = 6
MINOR_DIGITS = {
    **dict.fromkeys(
        (
            "BIF",
            "CLP",
            "DJF",
            "GNF",
            "ISK",
            "JPY",
            "KMF",
            "KRW",
            "PYG",
            "RWF",
            "UGX",
            "VND",
            "VUV",
            "XAF",
            "XOF",
            "XPF",
        ),
        0,
    ),
    **dict.fromkeys(("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"), 3),
}
"""How many decimals a currency has, where these are not two (ISO 4217)."""
PRECISION = 60


def minor_digits(currency: str | None) -> int:
    return MINOR_DIGITS.get(currency or "", 2)


def exact(micro: int, currency: str | None) -> Decimal:
    """The amount in the currency's major unit, to the last digit."""
    with localcontext() as context:
        context.prec = PRECISION
        return Decimal(micro).scaleb(-MICRO_DIGITS - minor_digits(currency))


def money(micro: int | None, currency: str | None) -> str:
    """An amount as `12.34 EUR`, rounded half to even; the exact one is in the JSON."""
    if micro is None:
        return ""
    with localcontext() as context:
        context.prec = PRECISION
        shown = exact(micro, currency).quantize(Decimal(1).scaleb(-minor_digits(currency)))
    return f"{shown:,f} {currency or ''}".strip()


def quantity(micro: int) -> str:
    """A quantity of 10⁻⁶ units in plain notation, without zeros at the end."""
    text = f"{Decimal(micro).scaleb(-MICRO_DIGITS):,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
