"""Bodies of the search over names and ids."""

from typing import Annotated

import msgspec
from msgspec import Meta

from mooring.api.schemas.kernel.fields import Shown
from mooring.core.records.search import HITS_MAX, SearchHit, SearchKind

SearchText = Annotated[
    str,
    Meta(
        max_length=100,
        pattern="^[^\\u0000-\\u001f]*$",
        description="How a name, an id or an artifact's digest begins; without it nothing is found.",
    ),
]


class SearchQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to search for."""

    q: SearchText = ""
    limit: Annotated[int, Meta(ge=1, le=HITS_MAX, description="Maximum number of hits.")] = HITS_MAX


class SearchHitView(Shown):
    """Something that the caller may read and whose name, id or digest begins like the text."""

    kind: SearchKind
    id: str
    name: Annotated[str, Meta(description="The name; of a user the e-mail address, of an artifact the digest.")]
    detail: Annotated[str, Meta(description="What tells it from others: its app, SKU, region, location or title.")]
    status: str | None
    project_id: str | None
    ended: Annotated[bool, Meta(description="Stopped, released, retired or disabled; it stays readable.")]


def search_hit_view(hit: SearchHit) -> SearchHitView:
    return SearchHitView(
        kind=hit.kind,
        id=hit.id,
        name=hit.name,
        detail=hit.detail,
        status=hit.status,
        project_id=hit.project_id,
        ended=hit.ended,
    )
