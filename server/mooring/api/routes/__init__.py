"""All endpoints: importing this package declares them."""

from mooring.api.route import ROUTES
from mooring.api.routes import access, membership, project, record, reference, service_account, tenant, user, webhook

__all__ = [
    "ROUTES",
    "access",
    "membership",
    "project",
    "record",
    "reference",
    "service_account",
    "tenant",
    "user",
    "webhook",
]
