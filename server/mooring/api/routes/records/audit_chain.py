"""Endpoints of the audit trail's hash chain: what an auditor needs to verify it without trusting the platform."""

from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.records.audit_chain import (
    AuditChainView,
    AuditLinkPage,
    AuditLinkQuery,
    chain_view,
    link_page,
)
from mooring.core.identity.platform_key import TASK_SIGNING
from mooring.core.kernel.permissions import Scope
from mooring.storage.identity import platform_key as platform_keys
from mooring.storage.records import audit_chain as chains

PLACES = (Scope.PLATFORM, Scope.TENANT)


@route_in(PLACES, "GET", "/audit/chain", RouteSpec("audit_chain", "get", "audit.read", answer=AuditChainView))
async def get_audit_chain(request: RequestContext) -> AuditChainView:
    """Read the state of the audit trail's hash chain, with the keys that sign it."""
    database = request.services.database
    request.tools.chain_reads.take(request.acting.tenant_id or "platform")
    keys = await platform_keys.chain(database, TASK_SIGNING)
    return chain_view(await chains.state(database, request.acting), keys)


@route_in(PLACES, "GET", "/audit/links", RouteSpec("audit_link", "list", "audit.read", answer=AuditLinkPage))
async def list_audit_links(request: RequestContext, query: AuditLinkQuery) -> AuditLinkPage:
    """Read the audit trail in the order of its hash chain, oldest first, with the hash of each row."""
    rows = await chains.links(request.services.database, request.acting, query.after, query.limit + 1)
    return link_page(rows, query.limit)
