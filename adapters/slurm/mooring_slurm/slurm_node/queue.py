"""Verbs about jobs: submit once under a key, list, one, cancel, and what a job wrote."""

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
"""How long a submission waits for another one of its user: who asks next waits behind it."""
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
    """Submit a script, once for each key; who runs this is whose job it is.

    The number is kept in a ledger; a program that was killed between the two finds its job by the comment again.
    """
    key, script = str(given.get("key") or ""), given.get("script")
    if not re.fullmatch(r"[A-Za-z0-9._:-]{1,120}", key):
        raise VerbFailed("usage", "a key has 1 to 120 letters, digits and . _ : -")
    if not isinstance(script, str) or not script.startswith("#!"):
        raise VerbFailed("usage", "a script begins with #!")
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
    """One submission of a user at a time, so that a key cannot be used twice at once."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __enter__(self) -> None:
        try:
            self.file = os.open(f"{self.place}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            raise VerbFailed("not_ready", "this user may not submit here: the cluster does not know him") from None
        Deadline(LOCK_SECONDS).wait(self._take, lambda: "another submission of this user is under way")

    def _take(self) -> bool | None:
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        return True

    def __exit__(self, *_: object) -> None:
        os.close(self.file)


def _known(slurm: SlurmCommands, entry: str, key: str, digest: str, user: str) -> str | None:
    """The number of the job that was submitted under this key before."""
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
    """An entry of the ledger. Its user can put anything there: a pipe is not waited at, and odd content is none."""
    try:
        with open(os.open(entry, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8") as file:
            kept = json.loads(file.read(ENTRY_MAX))
    except (FileNotFoundError, ValueError):
        return None
    return kept if isinstance(kept, dict) and {"job_id", "digest"} <= set(kept) else None


def _write(path: str, value: dict[str, str]) -> None:
    new = f"{path}.new"
    if os.path.lexists(new):  # of a program that was killed
        os.unlink(new)
    with open(new, "x", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(new, path)


def jobs(slurm: SlurmCommands, given: Namespace) -> Answer:
    """The jobs that wait, run and ended of late: those that run first, the newest of those that are over."""
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
    """One job; of an array its tasks too, by their numbers, and how it stands as a whole."""
    named = [each for each in all_jobs(slurm) if is_named(each, wanted) and account in (None, each.get("account"))]
    # The last task of an array has the number of the array: by that number the array is meant.
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
    """End a job, or take it out of the queue; one that is over stays as it is."""
    found = job(slurm, wanted, account)
    array = found.get("array")
    if found["job"]["state"] not in OVER if array is None else array["over_count"] < array["task_count"]:
        slurm.ask("scancel", wanted)
    return job(slurm, wanted, account)


def output(slurm: SlurmCommands, wanted: str, stream: str, offset: int, most: int) -> Answer:
    """What a job has written, from an offset on; this runs as the job's user, and reads what he may read."""
    known = job(slurm, wanted, None)
    found: Job = known["job"]
    if known.get("array", {}).get("task_count", 1) > 1:
        raise VerbFailed(
            "array", f"{wanted} is an array, and each of its tasks writes a file: say which, as {wanted}_0"
        )
    told = slurm.ask("scontrol", "show", "job", wanted)
    field = "StdOut" if stream == "out" else "StdErr"
    path = re.search(rf"(?m)^   {field}=(.+)$", told)
    if path is None:
        raise VerbFailed("no_output", f"job {wanted} writes no file")
    over = found["state"] in OVER
    try:
        with open(os.open(path[1], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # a pipe would hold up whoever asks here next
                raise VerbFailed("no_output", f"{path[1]} is no plain file")
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
    while len(json.dumps(text)) > LIST_BYTES:  # what is no plain letter takes more room in an answer
        piece = piece[: len(piece) // 2]
        text, taken = _whole_characters(piece)
    reached = min(offset, size) + taken
    return {"text": text, "offset": reached, "end": over and reached >= size, "size": size}


def _whole_characters(piece: bytes) -> tuple[str, int]:
    """Text up to the last whole character, and how many bytes that is; what is no text is shown as such.

    Of a piece something is always taken: whoever reads on comes to the end.
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
        raise VerbFailed("usage", "say which job: --job 12 or --job 12_3")
    return wanted


VERBS: Mapping[str, Callable[[SlurmCommands, Namespace], Answer]] = {
    "submit": lambda slurm, given: submit(slurm, read_input()),
    "jobs": lambda slurm, given: jobs(slurm, given),
    "job": lambda slurm, given: job(slurm, _wanted(given), given.account),
    "cancel": lambda slurm, given: cancel(slurm, _wanted(given), given.account),
    "output": lambda slurm, given: output(slurm, _wanted(given), given.stream, given.offset, given.bytes),
}
