"""All endpoints: importing this package declares them."""

from mooring.api.route import ROUTES
from mooring.api.routes import (
    access,
    app,
    artifact,
    artifact_check,
    artifact_source,
    catalog,
    entitlement,
    membership,
    policy,
    project,
    record,
    reference,
    registry,
    service_account,
    tenant,
    user,
    webhook,
)

__all__ = [
    "ROUTES",
    "access",
    "app",
    "artifact",
    "artifact_check",
    "artifact_source",
    "catalog",
    "entitlement",
    "membership",
    "policy",
    "project",
    "record",
    "reference",
    "registry",
    "service_account",
    "tenant",
    "user",
    "webhook",
]
