"""All endpoints: importing this package declares them."""

from mooring.api.route import ROUTES
from mooring.api.routes.catalog import (
    app,
    artifact,
    artifact_check,
    artifact_source,
    catalog,
    entitlement,
    policy,
    registry_token,
)
from mooring.api.routes.fleet import (
    agent_certificate,
    agent_enrolment,
    agent_task,
    allocation,
    allocation_task,
    node,
    sku,
    task,
)
from mooring.api.routes.identity import (
    access,
    membership,
    project,
    project_secret,
    service_account,
    source_network,
    tenant,
    user,
    user_token,
)
from mooring.api.routes.kernel import reference
from mooring.api.routes.money import usage
from mooring.api.routes.records import audit_chain, record, replay, timeline, webhook
from mooring.api.routes.runtime import adapter, attachment, exec_recording, instance, member, member_log, visit, why

__all__ = [
    "ROUTES",
    "access",
    "adapter",
    "agent_certificate",
    "agent_enrolment",
    "agent_task",
    "allocation",
    "allocation_task",
    "app",
    "artifact",
    "artifact_check",
    "artifact_source",
    "attachment",
    "audit_chain",
    "catalog",
    "entitlement",
    "exec_recording",
    "instance",
    "member",
    "member_log",
    "membership",
    "node",
    "policy",
    "project",
    "project_secret",
    "record",
    "reference",
    "registry_token",
    "replay",
    "service_account",
    "sku",
    "source_network",
    "task",
    "tenant",
    "timeline",
    "usage",
    "user",
    "user_token",
    "visit",
    "webhook",
    "why",
]
