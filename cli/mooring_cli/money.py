"""Amounts as people read them: the API counts in 10⁻⁶ of a currency's minor unit, such as a cent."""

from decimal import ROUND_HALF_UP, Decimal, localcontext

MICRO_DIGITS = 6
WITHOUT_DECIMALS = "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX VND VUV XAF XOF XPF"
WITH_THREE = "BHD IQD JOD KWD LYD OMR TND"
DECIMALS = {code: number for number, codes in ((0, WITHOUT_DECIMALS), (3, WITH_THREE)) for code in codes.split()}
"""How many decimals a currency has; two, if it is not listed (ISO 4217)."""
PRECISION = 60


def minor_digits(currency: str | None) -> int:
    return DECIMALS.get(currency or "", 2)


def exact(micro: int, currency: str | None) -> Decimal:
    """The amount in the currency's major unit, to the last digit."""
    with localcontext() as context:
        context.prec = PRECISION
        return Decimal(micro).scaleb(-MICRO_DIGITS - minor_digits(currency))


def text(micro: int | None, currency: str | None) -> str:
    """An amount such as `12.34 EUR`; one below the smallest coin is shown as less than that."""
    if micro is None:
        return ""
    coin = Decimal(1).scaleb(-minor_digits(currency))
    with localcontext() as context:
        context.prec = PRECISION
        rounded = exact(micro, currency).quantize(coin, ROUND_HALF_UP)
    if micro and not rounded:
        return f"{'<' if micro > 0 else '>-'}{coin} {currency or ''}".strip()
    return f"{rounded:,f} {currency or ''}".strip()


def quantity(micro: int) -> str:
    """A quantity of 10⁻⁶ units in plain notation, without zeros at the end."""
    shown = f"{Decimal(micro).scaleb(-MICRO_DIGITS):,f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown
