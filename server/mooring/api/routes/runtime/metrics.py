"""Endpoints for the metrics of GPUs: of an instance, and of a node."""

from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.fleet.slot_metric import MetricsQuery, SlotMetricsListView, metrics_view
from mooring.commands.kernel.lookup import require
from mooring.commands.runtime import instance as commands
from mooring.core.fleet.slot_metric import metric_range, wanted_series
from mooring.core.kernel.permissions import Scope
from mooring.core.runtime.instance import InstanceRef
from mooring.storage.fleet import node as nodes
from mooring.storage.fleet import slot_metric as node_metrics
from mooring.storage.runtime import instance_metric


@route_in(
    (Scope.PROJECT,),
    "GET",
    "/app-instances/{instance_id}/metrics",
    RouteSpec("instance_metrics", "get", "instance.read", answer=SlotMetricsListView, family=True),
)
async def get_instance_metrics(request: RequestContext, instance_id: str, query: MetricsQuery) -> SlotMetricsListView:
    """Read what the GPUs of an instance did: utilisation, memory, power, temperature and errors by the minute.

    Each GPU is shown for the time in which a member of the instance had it. Minutes are kept for 30 days, unless the
    platform is set up otherwise.
    """
    ref = InstanceRef(str(request.place.project_id), instance_id)
    await commands.find(request.services, request.acting, ref)
    names = wanted_series(query.series)
    wanted = metric_range(query.since, query.until, query.step, request.context.now)
    points = await instance_metric.of_instance(request.services.database, request.acting, ref, wanted)
    return metrics_view(wanted, points, names)


@route_in(
    (Scope.PLATFORM,),
    "GET",
    "/nodes/{node_id}/metrics",
    RouteSpec("node_metrics", "get", "node.read", answer=SlotMetricsListView),
)
async def get_node_metrics(request: RequestContext, node_id: str, query: MetricsQuery) -> SlotMetricsListView:
    """Read what the GPUs of a node did, under whatever allocation; it does not say which."""
    database = request.services.database
    require(await nodes.find(database, node_id, acting=request.acting), "node")
    names = wanted_series(query.series)
    wanted = metric_range(query.since, query.until, query.step, request.context.now)
    return metrics_view(wanted, await node_metrics.of_node(database, request.acting, node_id, wanted), names)
