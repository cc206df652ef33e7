"""Commands on apps."""

from mooring.commands.found import found
from mooring.commands.work import Answered, Work
from mooring.core.app import App, AppCard, create_app, update_app
from mooring.storage import app as apps


async def create(work: Work[App], slug: str, category: str, card: AppCard) -> Answered:
    """Register an app."""

    async def load() -> None:
        return None

    return await work.execute(load, lambda _: create_app(work.context, work.acting.tenant_id, slug, category, card))


async def update(work: Work[App], app_id: str, wish: dict[str, str | None], revision_seen: int | None) -> Answered:
    """Change an app's card; what is not given stays."""

    async def load() -> App:
        return found(await apps.find(work.database, work.acting, app_id), "app")

    def card(app: App) -> AppCard:
        kept = {"display_name": app.display_name, "description": app.description, "icon": app.icon}
        return AppCard(**(kept | {name: value for name, value in wish.items() if value is not None}))

    return await work.execute(load, lambda app: update_app(work.context, app, card(app), revision_seen))
