"""Use cases for apps: registering, changing, and setting the key of the adapter."""

from mooring.commands.kernel.apply import apply_once
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.catalog.app import App, AppCard, create_app, former_keys, set_adapter_key, update_app
from mooring.core.catalog.operator_account import OperatorKeys, rekey_operator
from mooring.storage.catalog import app as apps
from mooring.storage.catalog import workload_adapter as workload_adapters
from mooring.storage.identity import service_account as accounts
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.kernel.page_window import PageWindow

BATCH = 200
"""How many operator accounts are read at a time."""


async def create(work: Work[App], slug: str, category: str, card: AppCard) -> Answered:
    async def load() -> None:
        return None

    return await work.execute(load, lambda _: create_app(work.context, work.acting.tenant_id, slug, category, card))


async def update(work: Work[App], app_id: str, changes: dict[str, str | None], revision_seen: int | None) -> Answered:
    """Change an app's card; fields that are None stay unchanged."""

    async def load() -> App:
        return require(await apps.find(work.database, work.acting, app_id), "app")

    def card(app: App) -> AppCard:
        current = {"display_name": app.display_name, "description": app.description, "icon": app.icon}
        return AppCard(**(current | {name: value for name, value in changes.items() if value is not None}))

    return await work.execute(load, lambda app: update_app(work.context, app, card(app), revision_seen))


async def set_key(work: Work[App], app_id: str, public_key: bytes | None, *, keep_previous: bool) -> Answered:
    """Set the key of the adapter that serves an app, and give it to the existing operator accounts.

    The app's own row is changed first, so that accounts created in the meantime get the new key. Then the accounts
    follow in batches; each is compared with the desired state, so a request repeated after a crash continues the work.
    """
    loaded: list[App] = []

    async def load() -> App:
        loaded.append(require(await apps.find(work.database, work.acting, app_id), "app"))
        return loaded[-1]

    answered = await work.execute(load, lambda app: set_adapter_key(work.context, app, public_key))
    old = former_keys(loaded[-1], public_key, keep_previous=keep_previous)
    workload = await workload_adapters.find(work.database)
    if workload is not None and public_key is not None:  # the app has an adapter of its own now
        old += [each for each in workload.known_keys if each != public_key]
    after = ""
    while True:
        now = await apps.find(work.database, work.acting, app_id)
        if now is None or now.adapter_key != public_key:
            return answered  # another request has set another key since, and updates the accounts itself
        listed = await accounts.unkeyed(
            work.database, PLATFORM, app_id, new_key=public_key, old_keys=old, window=PageWindow(after, BATCH)
        )
        for account, keys in listed:
            decision = rekey_operator(work.context, OperatorKeys(account, keys), public_key, old)
            if decision.writes:
                # Where somebody changed the account's keys meanwhile, a repeat of the request finds it.
                await apply_once(work.services, PLATFORM, work.context, decision, origin=work.origin)
        if len(listed) < BATCH:
            return answered
        after = listed[-1][0].id
