"""Search, purely: which hits are shown, where a caller may look, and what a text can mean."""

from mooring.core.kernel.permissions import authority_of
from mooring.core.records.search import HITS_MAX, SearchHit, SearchKind, chosen, reach, search_range


def test_exact_hits_come_first_then_one_of_each_kind_and_ended_ones_last() -> None:
    def hit(kind: SearchKind, name: str, *, ended: bool = False) -> SearchHit:
        return SearchHit(kind, f"{kind}_{name}", name, "", None, None, ended)

    hits = [hit(SearchKind.INSTANCE, f"a{number}") for number in range(HITS_MAX)]
    hits += [hit(SearchKind.ALLOCATION, "a"), hit(SearchKind.APP, "ab"), hit(SearchKind.NODE, "ac", ended=True)]
    shown = chosen(hits, "A")
    assert [each.name for each in shown[:4]] == ["a", "a0", "ab", "a1"]
    assert len(shown) == HITS_MAX
    assert "ac" not in [each.name for each in shown]
    nobody = authority_of(None, [])
    assert all(reach(nobody, kind).is_empty for kind in SearchKind)
    assert search_range(SearchKind.INSTANCE, "alc_0") is search_range(SearchKind.ARTIFACT, "ab") is None
