"""The links of the audit trail: the bytes that are hashed are the JSON that auditors make of the exported row."""

import json
from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from mooring.core.records.audit import AuditRow
from mooring.core.records.audit_chain import canonical, document_of

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
DOCUMENTS = st.none() | st.dictionaries(TEXTS, VALUES, max_size=3)
NOW = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)


@st.composite
def rows(draw: st.DrawFn) -> AuditRow:
    values: dict[str, object] = {each.name: draw(st.none() | TEXTS) for each in fields(AuditRow)}
    zone = draw(st.sampled_from([UTC, timezone(timedelta(hours=-7))]))
    values |= {"before": draw(DOCUMENTS), "after": draw(DOCUMENTS), "count": draw(st.integers(1, 10**6))}
    return AuditRow(**{**values, "occurred_at": NOW.astimezone(zone)})  # type: ignore[arg-type]


@given(rows())
def test_the_hashed_bytes_are_the_exported_document_with_sorted_keys(row: AuditRow) -> None:
    document = json.dumps(document_of(row), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert canonical(row) == document.encode()
