"""The command that decides how a unit of an app is billed."""

from mooring.commands.kernel.work import Answered, Work
from mooring.core.pricing.meter import Meter, MeterSpec, set_meter
from mooring.core.pricing.price import Item, price_at
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.pricing import meter as meters
from mooring.storage.pricing import price as prices


async def put(work: Work[Meter], spec: MeterSpec) -> Answered:
    async def load() -> tuple[Meter | None, bool]:
        key = f"{spec.app_slug}/{spec.unit}"
        known = await prices.of_items(work.database, PLATFORM, Item.UNIT, [key])
        listed = price_at([each for each in known if each.tenant_id is None], "", work.context.now)
        return await meters.find(work.database, PLATFORM, spec.app_slug, spec.unit), listed is not None

    return await work.execute(load, lambda found: set_meter(work.context, spec, found[0], has_list_price=found[1]))
