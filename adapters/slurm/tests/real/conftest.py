"""Real Slurm in real namespaces: only root can create them, and the packages have to be installed."""

import os
import shutil
from pathlib import Path

import pytest

PROGRAMS = ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "squeue")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip these tests with the reason if they cannot run."""
    here = Path(__file__).parent
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    for item in items:
        if not item.path.is_relative_to(here):
            continue
        item.add_marker(pytest.mark.real_part("slurm"))
        if os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="only root can make namespaces"))
        elif missing:
            item.add_marker(pytest.mark.skip(reason=f"not installed: {', '.join(missing)}"))
