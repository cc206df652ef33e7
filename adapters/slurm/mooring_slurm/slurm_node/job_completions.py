"""What jobs used: every attempt that ended, told once, from where the caller left off.

The controller runs its `etc/job_over` when an attempt of a job ends, also of one that is begun anew: it writes a line
into `log/ended`, which outlives the controller's memory of the job (`MinJobAge`). Where a controller was started before
there was such a file, the jobs that it remembers are told, which are those of their last attempts.
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
"""A job that ends in this very moment may not be in the list yet: the next look begins that much earlier."""
AT = "at:"
"""How a mark in the file begins; one in the controller's memory is a time."""
COLUMNS = (
    "node_count",
    "tasks",
    "tres_alloc_str",
    "tres_per_job",
    "tres_per_node",
    "tres_per_socket",
    "tres_per_task",
)
"""What `squeue` told of the job, in words of a line: nothing that a user names as he likes is among them."""
LINE = re.compile(
    r"(?P<id>\d+) (?P<start>\d+) (?P<end>\d+) (?P<state>[A-Z_]+) (?P<account>[A-Za-z0-9._-]+)(?P<rest>(?: .*)?)"
)


def ended_since(slurm: SlurmCommands, jobs: list[Job], after: str | None, now: int) -> tuple[list[Job], str, bool]:
    """The attempts that ended after a mark, the mark to go on from, and whether there are more."""
    if slurm.setting("JobCompType") != "jobcomp/script":
        return ended_jobs(jobs, after, now)
    path = slurm.below("log", "ended")
    if after is not None and after.startswith(AT):
        whose, _, offset = after.removeprefix(AT).partition(":")
        return _from_file(path, int(offset) if whose == _whose(path) else 0)
    known = {(each["id"], each["started_at"]) for _, each in _lines(path, 0, KNOWN_BYTES) if each is not None}
    older = [job for job in jobs if (job["id"], job.get("started_at")) not in known]
    shown, until, more = ended_jobs(older, after, now)
    if more or shown:
        return shown, until if more else f"{AT}-:0", True
    return _from_file(path, 0)


def _from_file(path: str, offset: int) -> tuple[list[Job], str, bool]:
    """What lines tell of attempts, as many as may be told; what tells nothing is passed over."""
    lines = _lines(path, offset, READ_BYTES)
    told = [(end, each) for end, each in lines if each is not None]
    shown, more = fitted([each for _, each in told], ENDED_MAX, ENDED_BYTES)
    reached = lines[-1][0] if lines and not more else told[len(shown) - 1][0] if shown else offset
    return shown, f"{AT}{_whose(path)}:{reached}", more or reached < _size(path)


def _whose(path: str) -> str:
    """Which file it is, by its first line: another controller begins another one."""
    try:
        with open(path, "rb") as file:
            first = file.readline(LINE_BYTES_MAX)
    except FileNotFoundError:
        return "-"
    return hashlib.sha256(first).hexdigest()[:12] if first.endswith(b"\n") else "-"


def _lines(path: str, offset: int, most: int) -> list[tuple[int, Job | None]]:
    """The whole lines from an offset on, each with where it ends; None for one that tells nothing."""
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            piece = file.read(most)
    except FileNotFoundError:
        return []
    found: list[tuple[int, Job | None]] = []
    for line in piece.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break  # the rest of it is being written, or is read the next time
        offset += len(line)
        found.append((offset, attempt_of(line.decode("utf-8", "replace").rstrip("\n"))))
    return found


def attempt_of(line: str) -> Job | None:
    """One attempt of a job, as its line tells it; an attempt is known by its begin."""
    told = LINE.fullmatch(line)
    if told is None:
        return None
    raw = dict(zip(COLUMNS, told["rest"].split(), strict=False))
    job: Job = {
        "id": told["id"],
        "account": None if told["account"] == "-" else told["account"],
        "state": told["state"],
        "started_at": moment(told["start"]),
        "ended_at": moment(told["end"]),
        "gpus": gpus_of({name: "" if value == "N/A" else value for name, value in raw.items()}),
    }
    return {name: value for name, value in job.items() if value is not None}


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def ended_jobs(jobs: list[Job], after: str | None, now: int) -> tuple[list[Job], str, bool]:
    """The jobs that ended after a mark, oldest first, and the mark to go on from, which is opaque to the caller."""
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
    """As many as may be told, and whether there are more."""
    kept: list[dict[str, Any]] = []
    for each in found[:most]:
        most_bytes -= len(json.dumps(each)) + 2
        if most_bytes < 0:
            break
        kept.append(each)
    return kept, len(kept) < len(found)
