"""Endpoints for the operator's view across tenants: counts, health, failures by app, capacity."""

from datetime import timedelta

import msgspec

from mooring.api.page import Page
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.records.overview import AppOverviewQuery, AppOverviewView, CapacityOverviewView, OverviewView
from mooring.core.kernel.permissions import Scope
from mooring.storage.records import overview

HERE = (Scope.PLATFORM,)
PATH = "/overview"


@route_in(HERE, "GET", PATH, RouteSpec("overview", "get", "overview.read", answer=OverviewView))
async def get_overview(request: RequestContext) -> OverviewView:
    """Count what is on the platform, over all tenants, by state; nothing says whose it is."""
    found = await overview.counts(request.services.database, request.acting)
    return msgspec.convert(found, OverviewView, from_attributes=True)


@route_in(HERE, "GET", PATH + "/apps", RouteSpec("app_overview", "list", "overview.read", answer=Page[AppOverviewView]))
async def list_app_overviews(request: RequestContext, query: AppOverviewQuery) -> Page[AppOverviewView]:
    """Count the instances of each app by state and health, and its failures of the last hours by code."""
    since = request.services.clock.now() - timedelta(hours=query.hours)
    rows = await overview.by_app(request.services.database, since, request.acting)
    return Page(items=[msgspec.convert(each, AppOverviewView, from_attributes=True) for each in rows])


@route_in(
    HERE,
    "GET",
    PATH + "/capacity",
    RouteSpec("capacity_overview", "list", "overview.read", answer=Page[CapacityOverviewView]),
)
async def list_capacity_overviews(request: RequestContext) -> Page[CapacityOverviewView]:
    """Count the slots of each region and GPU model: all, free, claimed, and blocked by what a teardown left."""
    rows = await overview.capacity(request.services.database, request.acting)
    return Page(items=[msgspec.convert(each, CapacityOverviewView, from_attributes=True) for each in rows])
