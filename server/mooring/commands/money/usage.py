"""The command that stores the usage an adapter reports for its instance."""

from collections.abc import Sequence

from mooring.commands.kernel.work import Answered, Work
from mooring.commands.runtime.adapter import ClaimRef, pinned_manifest, require_claim
from mooring.core.money.usage import UsageContext, UsageReport, store_usage
from mooring.storage.money import usage as usages
from mooring.storage.pricing import meter as meters
from mooring.storage.pricing import price as prices
from mooring.storage.runtime import attachment as attachments


async def report_usage(work: Work[tuple[int, int]], claimed: ClaimRef, reported: Sequence[UsageReport]) -> Answered:
    attached = sorted({each.attached_project_id for each in reported if each.attached_project_id is not None})

    async def load() -> UsageContext:
        claim, now = await require_claim(work.database, work.acting, claimed)
        return UsageContext(
            claim,
            now,
            await pinned_manifest(work, now),
            await usages.named(work.database, work.acting, now.id, [each.record_id for each in reported]),
            await attachments.attached_projects(work.database, work.acting, now.id, attached),
            await meters.of_app(work.database, work.acting, now.app_slug),
            await prices.of_app(work.database, work.acting, now.app_slug),
        )

    return await work.execute(load, lambda loaded: store_usage(work.context, loaded, reported))
