"""AppArmor for the programs in sandboxes, where the kernel enforces it.

The profile is loaded once by each agent, and tried: a profile that this kernel does not let a process enter would stop
every sandbox. What enforces it, or why nothing does, is in a sandbox's facts.
"""

import functools
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mooring_agent.hosts.namespace.sandbox_disk import find_program

NAME: Final = "mooring-sandbox"
PROFILE: Final = Path(__file__).with_name("mooring-sandbox.apparmor")
_SWITCH: Final = Path("/sys/module/apparmor/parameters/enabled")
_TRY: Final = f"printf 'changeprofile {NAME}' > /proc/self/attr/current && cat /proc/self/attr/current"
_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Confinement:
    """The profile that programs enter, or none and the reason."""

    profile: str
    reason: str = ""

    def describe(self) -> str:
        return self.profile or f"not enforced: {self.reason}"


@functools.cache
def load(switch: Path = _SWITCH) -> Confinement:
    """Load the profile; nothing is confined by it if the machine cannot."""
    try:
        is_enabled = switch.read_text().startswith("Y")
    except OSError:
        is_enabled = False
    if not is_enabled:
        return Confinement("", "this kernel has no AppArmor, or it is switched off")
    parser = find_program("apparmor_parser")
    if not parser:
        return Confinement("", "missing program: apparmor_parser")
    for words in ([parser, "--replace", "--skip-cache", str(PROFILE)], ["sh", "-c", _TRY]):
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as problem:
            return Confinement("", f"{words[0]}: {problem}")
        if done.returncode != 0:
            return Confinement("", f"the profile cannot be used: {done.stderr.strip()[-200:]}")
    return Confinement(NAME)
