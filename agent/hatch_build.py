"""Puts `mooring-init` into the wheel, which is therefore one for this machine's architecture."""

import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent))
import build_init


class InitProgramHook(BuildHookInterface[Any]):
    """An editable install needs nothing from here: `make set-up` builds the program in place."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return
        build_init.build()
        build_data["artifacts"].append("mooring_agent/sandbox_init/mooring-init")
        build_data["pure_python"] = False
        # It is linked statically: it needs a kernel and an architecture, and no Python or C library of a version.
        build_data["tag"] = f"py3-none-{_platform()}"


def _platform() -> str:
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
