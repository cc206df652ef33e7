"""A worker's daemon starts when its controller listens, or after a while in any case."""

import subprocess
from pathlib import Path

import pytest

from mooring_slurm.daemons import BEGINS, CONTROLLER_SECONDS, with_controller
from mooring_slurm.slurm_node.nodes import DAEMON_SECONDS

ANSWERS = {
    "at once": "exit 0",
    "at the third time": 'echo >> "$0.asked"; [ "$(wc -l < "$0.asked")" -ge 3 ]',
    "never": "exit 1",
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
def test_a_daemon_starts_when_its_controller_answers_or_after_a_while(tmp_path: Path, answer: str) -> None:
    for name, text in (("scontrol", answer), ("slurmd", 'echo "$0 $*"')):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        program.chmod(0o755)
    words = ["sh", "-c", with_controller(1 if answer == ANSWERS["never"] else 600), "slurmd", "-N", "hpc worker"]
    path = f"{tmp_path}:/usr/bin:/bin"
    done = subprocess.run(words, env={"PATH": path}, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"{BEGINS}\n{tmp_path}/slurmd -N hpc worker\n"


def test_who_looks_for_a_workers_daemon_waits_longer_than_it_waits_for_its_controller() -> None:
    assert CONTROLLER_SECONDS + 2 < DAEMON_SECONDS  # the last ping may take two
