"""Commands on SKUs: an admin creates and changes the price list."""

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.fleet.sku import Sku, SkuChange, SkuSpec, create_sku, update_sku
from mooring.storage.fleet import sku as skus


async def create(work: Work[Sku], spec: SkuSpec) -> Answered:
    return await work.execute(
        lambda: skus.count(work.database, work.acting), lambda count: create_sku(work.context, spec, count)
    )


async def update(work: Work[Sku], sku_id: str, change: SkuChange, revision_expected: int | None) -> Answered:
    async def load() -> Sku:
        return require(await skus.find(work.database, work.acting, sku_id), "SKU")

    return await work.execute(load, lambda sku: update_sku(work.context, sku, change, revision_expected))
