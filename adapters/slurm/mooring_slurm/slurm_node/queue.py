"""Verbs for jobs: submit once per key, list, show, cancel, and read output."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pwd
import re
import stat
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

from .job_completions import fitted
from .nodes import JOBS_MAX, _running_first, all_jobs
from .parsing import COMMENT, OVER, Job, array_of, is_named, tasks_in
from .slurm_commands import Deadline, SlurmCommands, VerbFailed, code_of, read_input, sentence_of

OUTPUT_BYTES_MAX = 32_768
LIST_BYTES = 55_000
ENTRY_MAX = 4_096
LOCK_SECONDS = 5.0
"""How long a submission waits for another one of the same user."""
Answer = dict[str, Any]

WORDS = (
    ("name", "--job-name="),
    ("partition", "--partition="),
    ("nodes", "--nodes="),
    ("cpus", "--cpus-per-task="),
    ("memory_mib", "--mem="),
    ("gpus", "--gpus-per-node="),
    ("array", "--array="),
    ("minutes", "--time="),
    ("account", "--account="),
)


def submit(slurm: SlurmCommands, given: dict[str, Any]) -> Answer:
    """Submit a script, once per key; the job belongs to the user who runs this program.

    The job's number is stored in a file; if the program is killed before that, it finds the job by its comment.
    """
    key, script = str(given.get("key") or ""), given.get("script")
    if not re.fullmatch(r"[A-Za-z0-9._:-]{1,120}", key):
        raise VerbFailed("usage", "a key must have 1 to 120 letters, digits and . _ : -")
    if not isinstance(script, str) or not script.startswith("#!"):
        raise VerbFailed("usage", "a script must begin with #!")
    user = pwd.getpwuid(os.getuid())
    slurm.environment |= {
        "HOME": user.pw_dir,
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "SHELL": user.pw_shell,
    }
    place = slurm.below("submits", user.pw_name)
    entry = f"{place}/{hashlib.sha256(key.encode()).hexdigest()}"
    digest = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()
    with _locked(place):
        job_id = _known(slurm, entry, key, digest, user.pw_name)
        if job_id is not None:
            return {"job_id": job_id, "repeated": True}
        words = [f"{word}{given[name]}" for name, word in WORDS if given.get(name) not in (None, "", 0)]
        chdir = given.get("directory") or user.pw_dir
        words[:0] = ["--parsable", "--no-requeue", f"--comment={COMMENT}{key}", f"--chdir={chdir}", "--export=ALL"]
        done = slurm.first_line("sbatch", *words, text=script)
        job_id = done.stdout.strip().partition(";")[0]
        if not job_id.isdigit():
            code = code_of(done.stderr)
            raise VerbFailed("job_refused" if code == "slurm_refused" else code, f"sbatch: {sentence_of(done)}")
        _write(entry, {"job_id": job_id, "digest": digest})
    return {"job_id": job_id, "repeated": False}


class _locked:
    """Allows one submission of a user at a time, so that a key is not used twice concurrently."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __enter__(self) -> None:
        try:
            self.file = os.open(f"{self.place}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            raise VerbFailed("not_ready", "this user may not submit jobs: the cluster does not know them") from None
        Deadline(LOCK_SECONDS).wait(self._take, lambda: "another submission of this user is in progress")

    def _take(self) -> bool | None:
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        return True

    def __exit__(self, *_: object) -> None:
        os.close(self.file)


def _known(slurm: SlurmCommands, entry: str, key: str, digest: str, user: str) -> str | None:
    """The number of the job that was already submitted with this key."""
    kept = _kept(entry)
    if kept is None:
        found = [job for job in all_jobs(slurm) if job.get("key") == key and job.get("user") == user]
        if not found:
            return None
        first = str(found[0].get("array") or found[0]["id"]).partition("_")[0]
        _write(entry, {"job_id": first, "digest": digest})
        return first
    if kept["digest"] != digest:
        raise VerbFailed("key_reused", f"the key {key} belongs to another submission, job {kept['job_id']}")
    return str(kept["job_id"])


def _kept(entry: str) -> dict[str, Any] | None:
    """Read a stored submission. The user controls the file: a pipe must not block, and invalid content is ignored."""
    try:
        with open(os.open(entry, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8") as file:
            kept = json.loads(file.read(ENTRY_MAX))
    except (FileNotFoundError, ValueError):
        return None
    return kept if isinstance(kept, dict) and {"job_id", "digest"} <= set(kept) else None


def _write(path: str, value: dict[str, str]) -> None:
    new = f"{path}.new"
    if os.path.lexists(new):  # left by a killed program
        os.unlink(new)
    with open(new, "x", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(new, path)


def jobs(slurm: SlurmCommands, given: Namespace) -> Answer:
    """Pending, running and recently ended jobs: running ones first, then the newest ended ones."""
    account, user, state = given.account, given.user, given.state
    found = [
        job
        for job in all_jobs(slurm)
        if account in (None, job.get("account")) and user in (None, job.get("user")) and state in (None, job["state"])
    ]
    alive = sorted((job for job in found if job["state"] not in OVER), key=_running_first)
    over = sorted((job for job in found if job["state"] in OVER), key=lambda job: -int(job["id"]))
    counts: dict[str, int] = {}
    for job in found:
        counts[job["state"]] = counts.get(job["state"], 0) + 1
    listed, more = fitted(alive + over, min(max(given.limit, 1), JOBS_MAX), LIST_BYTES)
    return {"jobs": listed, "job_counts": counts, "truncated": more}


def job(slurm: SlurmCommands, wanted: str, account: str | None) -> Answer:
    """One job; for an array also its tasks by number, and a summary."""
    named = [each for each in all_jobs(slurm) if is_named(each, wanted) and account in (None, each.get("account"))]
    # The last task of an array has the array's number; the number means the whole array.
    arrays = {_array_of(each) for each in named if wanted == _array_of(each)}
    found = [each for each in named if _array_of(each) in arrays] if arrays else named
    if not found:
        raise VerbFailed("not_found", f"there is no job {wanted}, or it ended long ago")
    first = next((each for each in found if wanted in (each["id"], each.get("array"))), found[0])
    answer: Answer = {"job": first}
    if arrays:
        found.sort(key=lambda each: (tasks_in(each) or [0])[0])
        answer["array"] = array_of(found)
    if len(found) > 1:
        answer["tasks"], answer["truncated"] = fitted(found, JOBS_MAX, LIST_BYTES - len(json.dumps(answer)))
    return answer


def _array_of(job: Job) -> str:
    return str(job.get("array", "")).partition("_")[0]


def cancel(slurm: SlurmCommands, wanted: str, account: str | None) -> Answer:
    """Cancel a job; an ended one is not changed."""
    found = job(slurm, wanted, account)
    array = found.get("array")
    if found["job"]["state"] not in OVER if array is None else array["over_count"] < array["task_count"]:
        slurm.ask("scancel", wanted)
    return job(slurm, wanted, account)


def output(slurm: SlurmCommands, wanted: str, stream: str, offset: int, most: int) -> Answer:
    """Read a job's output from an offset on; this runs as the job's user, with that user's permissions."""
    known = job(slurm, wanted, None)
    found: Job = known["job"]
    if known.get("array", {}).get("task_count", 1) > 1:
        raise VerbFailed(
            "array", f"{wanted} is an array, and each of its tasks writes its own file: name one, such as {wanted}_0"
        )
    shown = slurm.ask("scontrol", "show", "job", wanted)
    field = "StdOut" if stream == "out" else "StdErr"
    path = re.search(rf"(?m)^   {field}=(.+)$", shown)
    if path is None:
        raise VerbFailed("no_output", f"job {wanted} has no output file")
    over = found["state"] in OVER
    try:
        with open(os.open(path[1], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # a pipe would block this program
                raise VerbFailed("no_output", f"{path[1]} is not a regular file")
            size = os.fstat(file.fileno()).st_size
            file.seek(min(offset, size))
            piece = file.read(min(most, OUTPUT_BYTES_MAX))
    except FileNotFoundError:
        if not over:
            return {"text": "", "offset": 0, "end": False, "size": 0}
        raise VerbFailed("no_output", f"{path[1]} is not on this node") from None
    except OSError as error:
        raise VerbFailed("no_output", f"{path[1]} cannot be read: {error.strerror}") from None
    text, taken = _whole_characters(piece)
    while len(json.dumps(text)) > LIST_BYTES:  # non-ASCII characters take more room in an answer
        piece = piece[: len(piece) // 2]
        text, taken = _whole_characters(piece)
    reached = min(offset, size) + taken
    return {"text": text, "offset": reached, "end": over and reached >= size, "size": size}


def _whole_characters(piece: bytes) -> tuple[str, int]:
    """The text up to the last complete character, and its length in bytes; invalid bytes are replaced.

    At least one byte is always consumed, so that repeated reads reach the end.
    """
    for cut in range(min(4, len(piece))):
        try:
            part = piece[: len(piece) - cut]
            return part.decode("utf-8").replace("\x00", "\ufffd"), len(part)
        except UnicodeDecodeError as error:
            if error.end < len(piece) - cut:
                break
    return piece.decode("utf-8", "replace").replace("\x00", "\ufffd"), len(piece)


def _wanted(given: Namespace) -> str:
    wanted = str(given.job or "")
    parts = wanted.split("_")
    if len(parts) > 2 or not all(part.isdigit() for part in parts):
        raise VerbFailed("usage", "--job must name a job, such as 12 or 12_3")
    return wanted


VERBS: Mapping[str, Callable[[SlurmCommands, Namespace], Answer]] = {
    "submit": lambda slurm, given: submit(slurm, read_input()),
    "jobs": lambda slurm, given: jobs(slurm, given),
    "job": lambda slurm, given: job(slurm, _wanted(given), given.account),
    "cancel": lambda slurm, given: cancel(slurm, _wanted(given), given.account),
    "output": lambda slurm, given: output(slurm, _wanted(given), given.stream, given.offset, given.bytes),
}
