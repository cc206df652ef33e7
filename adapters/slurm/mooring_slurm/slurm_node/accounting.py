"""Verbs for users and accounts: users of the sandbox, Slurm accounts, their database, and the gate.

Accounts are never deleted and added again, and a job is accepted only when the controller knows its user's association.
So no job ever waits for a missing account (`InvalidAccount`).
"""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import signal
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

from .nodes import all_jobs
from .parsing import OVER, Job
from .slurm_commands import Deadline, SlurmCommands, VerbFailed, await_port, code_of, read_input, sentence_of

OWN_ACCOUNT = "project"
JOBS_OF_ATTACHED = 2_500
"""The most open jobs of one attached project; the controller has room for four times as many in total."""
FIRST_UID, LAST_UID = 1_000, 65_000
NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
NOTHING_NEW = ("Nothing new added", "already exists", "Nothing modified", "Nothing deleted")
MARK = "associations"
"""The file below `state` that exists when the accounting knows this cluster; the controller starts only then."""
Answer = dict[str, Any]


def serve_database(slurm: SlurmCommands) -> Answer:
    """Create the database if it does not exist, and become the database server."""
    install_database(slurm)
    os.execvpe("mariadbd", ["mariadbd", f"--defaults-file={slurm.below('etc', 'mariadb.conf')}"], slurm.environment)


def install_database(slurm: SlurmCommands) -> Answer:
    """Create the system tables; an incomplete directory has no mark and is created again."""
    mark = slurm.below("database", "made")
    if os.path.exists(mark):
        return {"made": False}
    slurm.ask("rm", "-rf", slurm.below("database", "data"))
    defaults = slurm.below("etc", "mariadb.conf")
    slurm.ask(
        "mariadb-install-db",
        f"--defaults-file={defaults}",
        "--user=root",
        "--skip-test-db",
        "--skip-name-resolve",
        "--auth-root-authentication-method=socket",
    )
    _touch(mark)
    return {"made": True}


def await_database(slurm: SlurmCommands, seconds: float) -> Answer:
    """Wait until the database answers; its service creates and runs it."""
    defaults = slurm.below("etc", "mariadb.conf")
    last_error = [""]

    def look() -> bool | None:
        if not os.path.exists(slurm.below("run", "mariadb.socket")):
            last_error[0] = "its socket does not exist"
            return None
        done = slurm.say("mariadb", f"--defaults-file={defaults}", "-e", "select 1")
        last_error[0] = sentence_of(done)
        return True if done.returncode == 0 else None

    Deadline(seconds).wait(look, lambda: f"the database does not answer: {last_error[0]}")
    return {"database": "up"}


def gate(slurm: SlurmCommands, given: dict[str, Any], seconds: float) -> Answer:
    """Open the cluster for jobs: register users, wait for the controller, then check that it knows the users."""
    deadline = Deadline(seconds)
    users = [_word(each) for each in given.get("users", [])]
    accounting = bool(given.get("accounting"))
    attached = [_word(each) for each in given.get("accounts", [])] if accounting else []
    make_submission_directories(slurm, [*users, *attached])
    if accounting:
        cluster = _word(given["cluster"])
        if cluster not in _await_accounting(slurm, deadline):
            _ensure(slurm, "cluster", [cluster])
        made = _associate(slurm, {OWN_ACCOUNT: users, **{name: [name] for name in attached}})
        _bound(slurm, [each for each in attached if each in made], JOBS_OF_ATTACHED)
        users += attached
        _touch(slurm.below("state", MARK))
    slurm.await_controller(deadline)
    states = _partitions(slurm, deadline)
    missing = _unknown(slurm, users) if accounting else []
    if missing:
        for name in states:
            slurm.ask("scontrol", "update", f"partitionname={name}", "state=inactive")
        deadline.wait(
            lambda: None if _unknown(slurm, users) else True,
            lambda: f"the controller does not know {', '.join(_unknown(slurm, users))}",
        )
    for name, state in _partitions(slurm, deadline).items():
        if state != "up":
            slurm.ask("scontrol", "update", f"partitionname={name}", "state=up")
    version = slurm.ask("sinfo", "--version").split()[-1]
    return {"version": version, "accounting": accounting}


def _word(value: object) -> str:
    """Validate a name: sacctmgr would accept lists, and /etc/passwd has special characters."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise VerbFailed("usage", f"{value!r} is not a valid name of an account or a user")
    return value


def make_submission_directories(slurm: SlurmCommands, users: list[str]) -> None:
    """Create a directory for each user's submissions."""
    for name in users:
        user = _known_here(name)
        place = slurm.below("submits", name)
        if not os.path.isdir(place):
            os.mkdir(place, 0o700)
        os.chown(place, user.pw_uid, user.pw_gid)


def _partitions(slurm: SlurmCommands, deadline: Deadline) -> dict[str, str]:
    """Wait for the controller; returns the partitions and whether they accept jobs."""

    def look() -> dict[str, str] | None:
        done = slurm.say("sinfo", "-h", "-o", "%R|%a")
        if done.returncode == 0:
            return dict(line.split("|", 1) for line in done.stdout.splitlines() if "|" in line)
        if code_of(done.stderr) not in ("controller_down", "slurm_refused"):
            raise VerbFailed(code_of(done.stderr), f"sinfo: {sentence_of(done)}")
        return None

    return deadline.wait(look, lambda: "the controller does not answer")


def _unknown(slurm: SlurmCommands, users: list[str]) -> list[str]:
    """The users whose user id is not yet in the controller's list of associations."""
    associations = slurm.ask("scontrol", "--oneliner", "show", "assoc_mgr", f"users={','.join(users)}", "flags=assoc")
    return [name for name in users if f"UserName={name}({_known_here(name).pw_uid})" not in associations]


def _await_accounting(slurm: SlurmCommands, deadline: Deadline) -> set[str]:
    """Wait for the accounting daemon; returns the clusters that it knows."""
    address, port = slurm.setting("AccountingStorageHost") or "", int(slurm.setting("AccountingStoragePort") or 6819)
    await_port(address, port, deadline, "slurmdbd")

    def look() -> set[str] | None:
        done = slurm.say("sacctmgr", "-n", "-P", "list", "cluster", "format=cluster")
        return set(done.stdout.split()) if done.returncode == 0 else None

    return deadline.wait(look, lambda: "slurmdbd does not answer")


def _associate(slurm: SlurmCommands, wanted: Mapping[str, list[str]]) -> list[str]:
    """Create missing accounts and users; returns the new accounts."""
    known = _associations(slurm)
    if made := [each for each in wanted if (each, "") not in known]:
        _ensure(slurm, "account", made)
    for account, users in wanted.items():
        if missing := [each for each in users if (account, each) not in known]:
            _ensure(slurm, "user", missing, f"account={account}")
    return made


def _bound(slurm: SlurmCommands, accounts: list[str], jobs: int) -> None:
    """Limit the number of open jobs of these accounts."""
    if not accounts:
        return
    words = ("modify", "account", ",".join(accounts), "set", f"GrpSubmitJobs={jobs}")
    done = slurm.say("sacctmgr", "--immediate", *words)
    if done.returncode != 0 and not any(each in done.stdout + done.stderr for each in NOTHING_NEW):
        raise VerbFailed(code_of(done.stderr), f"sacctmgr: {sentence_of(done)}")


def _associations(slurm: SlurmCommands) -> set[tuple[str, str]]:
    """The existing accounts, with an empty user, and their users."""
    listed = slurm.ask("sacctmgr", "-n", "-P", "list", "associations", "format=account,user")
    return {(line.partition("|")[0], line.partition("|")[2]) for line in listed.split()}


def _ensure(slurm: SlurmCommands, noun: str, names: list[str], *words: str) -> None:
    """Add names to the accounting; existing ones are accepted."""
    done = slurm.say("sacctmgr", "--immediate", "add", noun, ",".join(names), *words)
    if done.returncode != 0 and not any(each in done.stdout + done.stderr for each in NOTHING_NEW):
        raise VerbFailed(code_of(done.stderr), f"sacctmgr: {sentence_of(done)}")


def account_add(slurm: SlurmCommands, given: dict[str, Any], seconds: float) -> Answer:
    """Create an account with its user, and wait until the user may submit jobs."""
    account, user = _word(given["account"]), _word(given["user"])
    make_submission_directories(slurm, [user])
    _associate(slurm, {account: [user]})
    _bound(slurm, [account], JOBS_OF_ATTACHED)
    Deadline(seconds).wait(
        lambda: None if _unknown(slurm, [user]) else True, lambda: f"the controller does not know {user} yet"
    )
    return {"account": account, "user": user}


def account_close(slurm: SlurmCommands, given: dict[str, Any], end_jobs: bool) -> Answer:
    """Close an account for new jobs; its jobs continue, or are cancelled."""
    account = _word(given["account"])
    _bound(slurm, [account], 0)
    waiting = [job["id"] for job in _open(slurm, account)]
    if end_jobs and waiting:
        slurm.ask("scancel", f"--account={account}")
    return {"jobs": [job["id"] for job in _open(slurm, account)][:500]}


def account_remove(slurm: SlurmCommands, given: dict[str, Any]) -> Answer:
    """Remove an account and its user; refused while it has jobs."""
    account, user = _word(given["account"]), _word(given["user"])
    jobs = [job["id"] for job in _open(slurm, account)][:500]
    if jobs:
        raise VerbFailed("busy", f"{account} still has jobs: {', '.join(jobs[:20])}", jobs=jobs)
    known = _associations(slurm)
    if (account, user) in known:
        others = any(name == user and each != account for each, name in known)
        slurm.ask("sacctmgr", "--immediate", "delete", "user", user, *([f"account={account}"] if others else []))
    if (account, "") in known:
        slurm.ask("sacctmgr", "--immediate", "delete", "account", account)
    return {"removed": (account, "") in known}


def _open(slurm: SlurmCommands, account: str) -> list[Job]:
    return [job for job in all_jobs(slurm) if job.get("account") == account and job["state"] not in OVER]


def users(given: dict[str, Any]) -> Answer:
    """Create users of this sandbox, each with the same user id on every member and a private home."""
    made: list[str] = []
    for each in given.get("users", []):
        name, uid = _word(each["name"]), int(each["uid"])
        if not FIRST_UID <= uid <= LAST_UID:
            raise VerbFailed("usage", f"{name}: the user id must be between {FIRST_UID} and {LAST_UID}")
        found = _user(name, uid, made)
        if found.pw_uid != uid:
            raise VerbFailed("user_differs", f"{name} has the user id {found.pw_uid} here instead of {uid}")
        os.makedirs(found.pw_dir, 0o700, exist_ok=True)
        os.chown(found.pw_dir, uid, found.pw_gid)
        os.chmod(found.pw_dir, 0o700)  # users may belong to different projects, and jobs write their output there
    return {"made": made}


def user_end(given: dict[str, Any]) -> Answer:
    """Kill all processes of a user here, including those that outlived their job and that Slurm does not know.

    The signal is sent as that user to all processes it may reach at once, so that nothing new can start meanwhile.
    """
    name = _word(given["user"])
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        return {"user": name}
    if user.pw_uid < FIRST_UID:
        raise VerbFailed("usage", f"{name} is a system user")
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
            os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            os._exit(0)  # no processes
        except BaseException:  # noqa: BLE001 - the parent reports it; the child must not continue
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        raise VerbFailed("not_ended", f"the processes of {name} could not be killed")
    return {"user": name}


def _touch(path: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        os.fsync(file.fileno())


def _known_here(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise VerbFailed("no_user", f"there is no user {name} in this sandbox") from None


def _user(name: str, uid: int, made: list[str]) -> pwd.struct_passwd:
    """Find or create a user, under a lock that the members of one sandbox share."""
    with open("/etc/passwd", "a", encoding="utf-8") as users, open("/etc/group", "a", encoding="utf-8") as groups:
        fcntl.flock(users, fcntl.LOCK_EX)
        try:
            return pwd.getpwnam(name)
        except KeyError:
            groups.write(f"{name}:x:{uid}:\n")
            groups.flush()
            users.write(f"{name}:x:{uid}:{uid}::/home/{name}:/bin/sh\n")
            users.flush()
            os.fsync(users.fileno())
            made.append(name)
            return pwd.getpwnam(name)


VERBS: Mapping[str, Callable[[SlurmCommands, Namespace], Answer]] = {
    "serve-database": lambda slurm, given: serve_database(slurm),
    "database": lambda slurm, given: await_database(slurm, given.seconds or 60.0),
    "gate": lambda slurm, given: gate(slurm, read_input(), given.seconds or 60.0),
    "account-add": lambda slurm, given: account_add(slurm, read_input(), given.seconds or 30.0),
    "account-close": lambda slurm, given: account_close(slurm, read_input(), given.cancel),
    "account-remove": lambda slurm, given: account_remove(slurm, read_input()),
    "users": lambda slurm, given: users(read_input()),
    "user-end": lambda slurm, given: user_end(read_input()),
}
