"""The rows of FOCUS as Parquet, in row groups of a bounded size; needs the extra `mooring-cli[parquet]`."""

from collections.abc import Iterable
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import click

from mooring_cli.statement_focus import NUMBERS, TIMES, Row, columns

GROUP_ROWS = 10_000
DIGITS, DECIMALS = 38, 12


def write_parquet(found: Iterable[Row], target: Path, version: str) -> None:
    """Write one file; costs and quantities are decimals of twelve places, never floats."""
    try:
        import pyarrow  # type: ignore[import-untyped]
        from pyarrow import parquet
    except ImportError as error:
        raise click.UsageError("Parquet needs pyarrow: pip install 'mooring-cli[parquet]'") from error
    names, rows = columns(version), iter(found)
    kinds = {name: pyarrow.decimal128(DIGITS, DECIMALS) for name in NUMBERS}
    kinds |= {name: pyarrow.timestamp("us", tz="UTC") for name in TIMES}
    schema = pyarrow.schema([(name, kinds.get(name, pyarrow.string())) for name in names])
    with parquet.ParquetWriter(target, schema, compression="zstd") as writer:
        while group := list(islice(rows, GROUP_ROWS)):
            filled = [{name: _value(name, row.get(name)) for name in names} for row in group]
            writer.write_table(pyarrow.Table.from_pylist(filled, schema=schema))


def _value(name: str, value: Any) -> Any:
    return Decimal(value) if name in NUMBERS and isinstance(value, int) else value
