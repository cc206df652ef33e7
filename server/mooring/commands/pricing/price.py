"""The command that adds a price."""

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.pricing.price import Item, Price, PriceSpec, create_price
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.pricing import price as prices


async def create(work: Work[Price], spec: PriceSpec) -> Answered:
    async def load() -> None:
        if spec.item is Item.SKU:  # every SKU has a price from its first day on
            known = await prices.of_items(work.database, PLATFORM, Item.SKU, [spec.item_key])
            require(next(iter(known), None), "sku")

    return await work.execute(load, lambda _: create_price(work.context, spec))
