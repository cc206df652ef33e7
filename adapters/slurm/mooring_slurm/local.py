"""What `mooring up --try` must know to run this adapter beside the node of its machine."""

from typing import Any, Final

LOCAL: Final[dict[str, Any]] = {
    "app": "slurm",
    "needs": ["slurmctld", "slurmd", "srun", "munged"],
    "host": "namespace",
    "bundle": ["bundle", "{apps}", "--key-file", "{key}"],
}
