"""The ended attempts of jobs, each returned once, from where the caller left off.

The controller runs its `etc/job_over` whenever an attempt of a job ends, also before a restart: the script appends a
line to `log/ended`, which outlives the controller's memory of the job (`MinJobAge`). For a controller that was started
before this file existed, the jobs in its memory are returned, with their last attempts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from typing import Any

from .parsing import Job, gpus_of, moment
from .slurm_commands import SlurmCommands

ENDED_MAX, ENDED_BYTES = 500, 16_000
READ_BYTES, KNOWN_BYTES, LINE_BYTES_MAX = 262_144, 4_194_304, 4_096
SETTLED_SECONDS = 2
"""A job that ends right now may not be in the list yet, so the next look begins this much earlier."""
AT = "at:"
"""The prefix of a position in the file; a position in the controller's memory is a time."""
COLUMNS = (
    "node_count",
    "tasks",
    "tres_alloc_str",
    "tres_per_job",
    "tres_per_node",
    "tres_per_socket",
    "tres_per_task",
)
"""The columns of `squeue` in a line; none of them is freely named by users."""
LINE = re.compile(
    r"(?P<id>\d+) (?P<start>\d+) (?P<end>\d+) (?P<state>[A-Z_]+) (?P<account>[A-Za-z0-9._-]+)(?P<rest>(?: .*)?)"
)


def ended_since(slurm: SlurmCommands, jobs: list[Job], after: str | None, now: int) -> tuple[list[Job], str, bool]:
    """The attempts that ended after a mark, the next mark, and whether there are more."""
    if slurm.setting("JobCompType") != "jobcomp/script":
        return ended_jobs(jobs, after, now)
    path = slurm.below("log", "ended")
    if after is not None and after.startswith(AT):
        file_id, _, offset = after.removeprefix(AT).partition(":")
        return _from_file(path, int(offset) if file_id == _file_id(path) else 0)
    known = {(each["id"], each["started_at"]) for _, each in _lines(path, 0, KNOWN_BYTES) if each is not None}
    older = [job for job in jobs if (job["id"], job.get("started_at")) not in known]
    shown, until, more = ended_jobs(older, after, now)
    if more or shown:
        return shown, until if more else f"{AT}-:0", True
    return _from_file(path, 0)


def _from_file(path: str, offset: int) -> tuple[list[Job], str, bool]:
    """Read attempts from the file's lines, as many as fit into an answer; malformed lines are skipped."""
    lines = _lines(path, offset, READ_BYTES)
    attempts = [(end, each) for end, each in lines if each is not None]
    shown, more = fitted([each for _, each in attempts], ENDED_MAX, ENDED_BYTES)
    reached = lines[-1][0] if lines and not more else attempts[len(shown) - 1][0] if shown else offset
    return shown, f"{AT}{_file_id(path)}:{reached}", more or reached < _size(path)


def _file_id(path: str) -> str:
    """Identifies the file by its first line: a new controller starts a new file."""
    try:
        with open(path, "rb") as file:
            first = file.readline(LINE_BYTES_MAX)
    except FileNotFoundError:
        return "-"
    return hashlib.sha256(first).hexdigest()[:12] if first.endswith(b"\n") else "-"


def _lines(path: str, offset: int, most: int) -> list[tuple[int, Job | None]]:
    """The complete lines from an offset on, each with its end; None for a malformed one."""
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            piece = file.read(most)
    except FileNotFoundError:
        return []
    found: list[tuple[int, Job | None]] = []
    for line in piece.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break  # it is still being written, or the rest is read the next time
        offset += len(line)
        found.append((offset, attempt_of(line.decode("utf-8", "replace").rstrip("\n"))))
    return found


def attempt_of(line: str) -> Job | None:
    """Parse the line of one attempt; its start identifies it."""
    match = LINE.fullmatch(line)
    if match is None:
        return None
    raw = dict(zip(COLUMNS, match["rest"].split(), strict=False))
    job: Job = {
        "id": match["id"],
        "account": None if match["account"] == "-" else match["account"],
        "state": match["state"],
        "started_at": moment(match["start"]),
        "ended_at": moment(match["end"]),
        "gpus": gpus_of({name: "" if value == "N/A" else value for name, value in raw.items()}),
    }
    return {name: value for name, value in job.items() if value is not None}


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def ended_jobs(jobs: list[Job], after: str | None, now: int) -> tuple[list[Job], str, bool]:
    """The jobs that ended after a mark, oldest first, and the next mark, which is opaque to the caller."""
    over = [job for job in jobs if job.get("ended_at") and job.get("started_at")]
    over.sort(key=_mark)
    begun = _read_mark(after)
    wanted = [job for job in over if _mark(job) > begun]
    shown, more = fitted(
        [{k: v for k, v in job.items() if k not in ("name", "key")} for job in wanted], ENDED_MAX, ENDED_BYTES
    )
    if more and shown:
        last = _mark(shown[-1])
        return shown, f"{last[0]}/{last[1]}", True
    settled = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now - SETTLED_SECONDS))
    return shown, f"{max(settled, begun[0])}/0", False


def _mark(job: Job) -> tuple[str, int]:
    return job["ended_at"], int(job["id"])


def _read_mark(text: str | None) -> tuple[str, int]:
    moment, _, number = (text or "").partition("/")
    return moment, int(number) if number.isdigit() else 0


def fitted(found: list[dict[str, Any]], most: int, most_bytes: int) -> tuple[list[dict[str, Any]], bool]:
    """As many items as fit into an answer, and whether there are more."""
    kept: list[dict[str, Any]] = []
    for each in found[:most]:
        most_bytes -= len(json.dumps(each)) + 2
        if most_bytes < 0:
            break
        kept.append(each)
    return kept, len(kept) < len(found)
