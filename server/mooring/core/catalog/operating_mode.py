"""Who runs an app's control plane, and for whom: `operating_mode` × `control_plane_scope`.

Only some pairs make sense, and one of those is not offered yet. The table is used for manifests (what the app
supports) and for instances (what the launcher chose).
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class OperatingMode(StrEnum):
    """Who runs the control plane."""

    TENANT_DEDICATED = "tenant_dedicated"
    PLATFORM_MANAGED = "platform_managed"


class ControlPlaneScope(StrEnum):
    """Whom the control plane serves."""

    PROJECT = "project"
    TENANT = "tenant"
    PLATFORM = "platform"


Mode = tuple[OperatingMode, ControlPlaneScope]

DEFAULT_MODE: Final[Mode] = (OperatingMode.TENANT_DEDICATED, ControlPlaneScope.PROJECT)
MODES: Final[Mapping[Mode, str]] = {
    DEFAULT_MODE: "one control plane for one project, run in the tenant's own capacity",
    (
        OperatingMode.TENANT_DEDICATED,
        ControlPlaneScope.TENANT,
    ): "one control plane that the tenant's projects attach to",
    (OperatingMode.PLATFORM_MANAGED, ControlPlaneScope.PLATFORM): "one control plane of the platform for many tenants",
}
"""The pairs that make sense, and what each means."""

NOT_OFFERED: Final = frozenset({(OperatingMode.PLATFORM_MANAGED, ControlPlaneScope.PLATFORM)})
"""Pairs that make sense, but that no instance may use yet."""


def why_incoherent(mode: Mode) -> str | None:
    """Why this pair makes no sense; None when it does."""
    if mode in MODES:
        return None
    scopes = " or ".join(scope for operating_mode, scope in MODES if operating_mode is mode[0])
    return f"{mode[0]} has a control plane of scope {scopes}, not {mode[1]}"
