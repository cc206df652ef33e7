"""Endpoints for nodes, enrolment tokens, and the keys that sign tasks."""

from functools import partial

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.fleet.enrolment import (
    CreateEnrolmentToken,
    EnrolmentTokenCreated,
    EnrolmentTokenView,
    enrolment_token_created,
    enrolment_token_view,
    plan_of,
)
from mooring.api.schemas.fleet.node import (
    CordonNode,
    InstallKey,
    LabelNode,
    NodeDetail,
    NodeQuery,
    NodeView,
    PlatformKeyView,
    PreparedKeyView,
    RejectNode,
    RetireNode,
    WriteOffNode,
    node_detail,
    node_view,
    platform_key_view,
    prepared_key_view,
)
from mooring.api.wait import WaitQuery, waited
from mooring.commands.fleet import enrolment as enrolment_commands
from mooring.commands.fleet import node as commands
from mooring.commands.fleet import node_approval as approval_commands
from mooring.commands.identity import platform_key as key_commands
from mooring.commands.identity.platform_key import task_audience
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.fleet.node import Node, WriteOff
from mooring.core.fleet.task_envelope import decode
from mooring.core.identity.platform_key import TASK_SIGNING
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.gateways.passwords import new_enrolment_token
from mooring.storage.fleet import enrolment as enrolment_tokens
from mooring.storage.fleet import node as nodes
from mooring.storage.fleet import slot as slots
from mooring.storage.fleet.node import NodeFilter, NodeUsageCounts
from mooring.storage.identity import platform_key as platform_keys

HERE = (Scope.PLATFORM,)
NODES = "/nodes"
ONE = NODES + "/{node_id}"
TOKENS = NODES + "/enrolment-tokens"
KEYS = "/task-signing-keys"


@route_in(HERE, "GET", NODES, RouteSpec("node", "list", "node.read", answer=Page[NodeView]))
async def list_nodes(request: RequestContext, query: NodeQuery) -> Page[NodeView]:
    """List nodes, by status, region or reachability."""
    database, wanted = request.services.database, NodeFilter(query.status, query.region, query.reachable)
    rows = await nodes.page(database, request.acting, wanted, page_window(query, "node"))
    counted = await nodes.counts(database, request.acting, [row.id for row in rows])
    return page(
        rows,
        query,
        "node",
        lambda row: node_view(request.caller.authority, row, counted.get(row.id, NodeUsageCounts())),
    )


@route_in(HERE, "GET", ONE, RouteSpec("node", "get", "node.read", answer=NodeDetail))
async def get_node(request: RequestContext, node_id: str, query: WaitQuery) -> NodeDetail:
    """Read a node with its slots, its inventory and its health, and why it takes no new allocations, if so."""
    return await waited(request, query, node_id, lambda: _detail(request, node_id))


@route_in(
    HERE,
    "POST",
    ONE + "/drain",
    RouteSpec(
        "node", "drain", "node.operate", answer=NodeView, errors=(Code.ILLEGAL_TRANSITION,), instead=("node.drain",)
    ),
)
async def drain_node(request: RequestContext, node_id: str) -> Answered:
    """Take no new allocations on a node; it is drained when the last one is released."""
    return await commands.drain(await _work(request, node_id), node_id)


@route_in(
    HERE,
    "POST",
    ONE + "/resume",
    RouteSpec(
        "node", "resume", "node.operate", answer=NodeView, errors=(Code.ILLEGAL_TRANSITION,), instead=("node.drain",)
    ),
)
async def resume_node(request: RequestContext, node_id: str) -> Answered:
    """Put a draining or drained node back to work."""
    return await commands.resume(await _work(request, node_id), node_id)


@route_in(
    HERE,
    "POST",
    ONE + "/cordon",
    RouteSpec("node", "cordon", "node.operate", answer=NodeView, errors=(Code.CONFLICT,)),
)
async def cordon_node(request: RequestContext, node_id: str, body: CordonNode) -> Answered:
    """Take no new allocations on a node, while what is on it goes on; its state stays. Repeating it changes nothing."""
    return await commands.cordon(await _work(request, node_id), node_id, body.reason)


@route_in(HERE, "POST", ONE + "/uncordon", RouteSpec("node", "uncordon", "node.operate", answer=NodeView))
async def uncordon_node(request: RequestContext, node_id: str) -> Answered:
    """Let a cordoned node take new allocations again; repeating it changes nothing."""
    return await commands.uncordon(await _work(request, node_id), node_id)


@route_in(
    HERE,
    "POST",
    ONE + "/label",
    RouteSpec("node", "label", "node.operate", answer=NodeView, errors=(Code.CONFLICT,)),
)
async def label_node(request: RequestContext, node_id: str, body: LabelNode) -> Answered:
    """Set and remove labels of a node; labels that are not named stay."""
    return await commands.label(await _work(request, node_id), node_id, body.labels)


@route_in(
    HERE,
    "POST",
    ONE + "/approve",
    RouteSpec("node", "approve", "node.approve", answer=NodeView, errors=(Code.ILLEGAL_TRANSITION,)),
)
async def approve_node(request: RequestContext, node_id: str) -> Answered:
    """Accept a machine that waits for approval, as it reports itself; it takes work from now on."""
    return await approval_commands.approve(await _work(request, node_id), node_id)


@route_in(
    HERE,
    "POST",
    ONE + "/reject",
    RouteSpec("node", "reject", "node.approve", answer=NodeView, errors=(Code.ILLEGAL_TRANSITION,)),
)
async def reject_node(request: RequestContext, node_id: str, body: RejectNode) -> Answered:
    """Refuse a machine that waits for approval, for good, and revoke its key."""
    return await approval_commands.reject(await _work(request, node_id), node_id, body.reason)


@route_in(
    HERE,
    "POST",
    ONE + "/acknowledge",
    RouteSpec("node", "acknowledge", "node.approve", answer=NodeView, errors=(Code.ILLEGAL_TRANSITION,)),
)
async def acknowledge_node(request: RequestContext, node_id: str) -> Answered:
    """Accept what a node reports now as what it has; findings about GPUs in use stay."""
    return await approval_commands.acknowledge(await _work(request, node_id), node_id)


@route_in(
    HERE,
    "POST",
    ONE + "/retire",
    RouteSpec("node", "retire", "node.retire", answer=NodeView, errors=(Code.ILLEGAL_TRANSITION, Code.NOT_EMPTY)),
)
async def retire_node(request: RequestContext, node_id: str, body: RetireNode) -> Answered:
    """Retire an empty node for good and revoke its key."""
    return await commands.retire(await _work(request, node_id), node_id, body.reason)


@route_in(
    HERE,
    "POST",
    ONE + "/write-off",
    RouteSpec("node", "write_off", "teardown.write_off", answer=NodeView, errors=(Code.ILLEGAL_TRANSITION,)),
)
async def write_off_node(request: RequestContext, node_id: str, body: WriteOffNode) -> Answered:
    """Give up a machine that is lost for good, with everything on it.

    The node is retired, its key is revoked, and its slots are never used again. Its allocations end without a receipt,
    as written off, which their tenants can see. If the machine comes back it enrols as a new node, and its agent sweeps
    it first.
    """
    stated = WriteOff(body.reason, body.may_be_left)
    return await commands.write_off(await _work(request, node_id), node_id, stated)


async def _work(request: RequestContext, node_id: str) -> Work[Node]:
    counted = await nodes.counts(request.services.database, request.acting, [node_id])
    return request.work(lambda node: node_view(request.caller.authority, node, counted.get(node_id, NodeUsageCounts())))


async def _detail(request: RequestContext, node_id: str) -> NodeDetail:
    database = request.services.database
    node = require(await nodes.find(database, node_id, acting=request.acting), "node")
    counted = await nodes.counts(database, request.acting, [node_id])
    held = await slots.of_node(database, request.acting, node_id)
    return node_detail(request.caller.authority, node, held, counted[node_id])


@route_in(
    HERE,
    "GET",
    TOKENS,
    RouteSpec("enrolment_token", "list", "node.enrol", answer=Page[EnrolmentTokenView]),
)
async def list_enrolment_tokens(request: RequestContext, query: PageQuery) -> Page[EnrolmentTokenView]:
    """List enrolment tokens, without their secrets."""
    window = page_window(query, "enrolment_token")
    rows = await enrolment_tokens.page(request.services.database, request.acting, window)
    return page(rows, query, "enrolment_token", partial(enrolment_token_view, request.caller.authority))


@route_in(
    HERE,
    "POST",
    TOKENS,
    RouteSpec(
        "enrolment_token",
        "create",
        "node.enrol",
        201,
        EnrolmentTokenCreated,
        one_time_secret=True,
        errors=(Code.LIMIT_REACHED,),
    ),
)
async def create_enrolment_token(request: RequestContext, body: CreateEnrolmentToken) -> Answered:
    """Create a token with which one machine may enrol within fifteen minutes; it is shown only once."""
    secret = new_enrolment_token()
    work = request.work(partial(enrolment_token_created, request.caller.authority, secret=secret))
    return await enrolment_commands.create_token(work, secret, body.region, body.labels, plan=plan_of(body))


@route_in(
    HERE,
    "DELETE",
    TOKENS + "/{enrolment_token_id}",
    RouteSpec("enrolment_token", "revoke", "node.enrol", answer=EnrolmentTokenView, errors=(Code.CONFLICT,)),
)
async def revoke_enrolment_token(request: RequestContext, enrolment_token_id: str) -> Answered:
    """Revoke a token that was not used."""
    work = request.work(partial(enrolment_token_view, request.caller.authority))
    return await enrolment_commands.revoke_token(work, enrolment_token_id)


@route_in(HERE, "GET", KEYS, RouteSpec("task_signing_key", "list", "platform_key.read", answer=Page[PlatformKeyView]))
async def list_task_signing_keys(request: RequestContext) -> Page[PlatformKeyView]:
    """List the present and former task signing keys, the newest one last."""
    keys = await platform_keys.chain(request.services.database, TASK_SIGNING, acting=request.acting)
    return Page(items=[platform_key_view(key) for key in keys])


@route_in(
    HERE,
    "POST",
    KEYS + "/rotate",
    RouteSpec("task_signing_key", "rotate", "platform_key.rotate", 201, PlatformKeyView, errors=(Code.LIMIT_REACHED,)),
)
async def rotate_task_signing_key(request: RequestContext) -> Answered:
    """Sign tasks with a new key from now on; nodes trust it because the last key signed it.

    The last key is retired: its private half is deleted, and nodes refuse what it signs after five minutes.
    """
    return await key_commands.rotate(request.work(platform_key_view))


@route_in(
    HERE,
    "POST",
    KEYS + "/prepare",
    RouteSpec(
        "task_signing_key",
        "prepare",
        "platform_key.rotate",
        201,
        PreparedKeyView,
        errors=(Code.LIMIT_REACHED, Code.ROOT_KEY_MISSING),
    ),
)
async def prepare_task_signing_key(request: RequestContext) -> Answered:
    """Create a key for the offline root key to sign; it replaces one that was prepared before.

    Sign `document` with `mooring root-key sign`, and put the key into use with the signature.
    """
    view = partial(prepared_key_view, await task_audience(request.services))
    return await key_commands.prepare(request.work(view))


@route_in(
    HERE,
    "POST",
    KEYS + "/install",
    RouteSpec(
        "task_signing_key",
        "install",
        "platform_key.rotate",
        201,
        PlatformKeyView,
        errors=(Code.LIMIT_REACHED, Code.ROOT_KEY_MISSING, Code.SIGNATURE_KEY_UNKNOWN),
    ),
)
async def install_task_signing_key(request: RequestContext, body: InstallKey) -> Answered:
    """Put the prepared key into use with the root key's signature.

    Nodes that pinned the root key trust this key and no other at once, whatever the keys before it signed.
    """
    return await key_commands.install(request.work(platform_key_view), body.key_id, decode(body.root_signature))
