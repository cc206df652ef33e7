"""Commands on SKUs."""

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.fleet.sku import Sku, SkuChange, SkuSpec, create_sku, update_sku
from mooring.storage.fleet import sku as skus


async def create(work: Work[Sku], spec: SkuSpec) -> Answered:
    """Offer a kind of capacity."""
    return await work.execute(
        lambda: skus.count(work.database, work.acting), lambda there: create_sku(work.context, spec, there)
    )


async def update(work: Work[Sku], sku_id: str, change: SkuChange, revision_seen: int | None) -> Answered:
    """Change what is offered, or what it costs."""

    async def load() -> Sku:
        return require(await skus.find(work.database, work.acting, sku_id), "SKU")

    return await work.execute(load, lambda seen: update_sku(work.context, seen, change, revision_seen))
