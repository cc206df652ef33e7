"""`mooring slurm`: work with the queue and the nodes of a cluster, through the app's actions.

It is a plug-in of the command line that is installed with this adapter. Everything goes through the public API, with
the caller's own permissions. Interactive commands use the cluster's terminal, where `srun`, `sbatch`, `squeue` and
`sacct` are the tools that Slurm's users know. An attached project names its attachment instead of an instance, and sees
only its own jobs.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from mooring_cli import output
from mooring_cli.commands import confirm
from mooring_cli.exec_command import run_at
from mooring_cli.invocation import current
from mooring_cli.main import MooringGroup
from mooring_slurm.cli_cluster import ClusterClient, ClusterRefused, JobTimeType, MemoryType, is_over, named
from mooring_slurm.slurm_node.parsing import WAITING

QUEUE: Final = (
    "id",
    "array",
    "name",
    "user",
    "account",
    "partition",
    "state",
    "nodes",
    "gpus",
    "submitted_at",
    "why_text",
)
NODES: Final = ("name", "state", "reason", "jobs", "cpus", "gpus", "version", "responding")
SCRIPT_BYTES_MAX: Final = 49_152
FOLLOW_SECONDS: Final = 2.0
EXIT_MAX: Final = 255

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group(cls=MooringGroup, no_args_is_help=True)
def slurm() -> None:
    """Work with a Slurm cluster: its queue, its nodes, and a shell.

    INSTANCE is the cluster's name or id. A project that is attached to another project's cluster gives --attachment ID
    instead.
    """


def of_cluster(metavar: str) -> Callable[[Command], Command]:
    """The arguments and options that select a cluster."""

    def decorated(command: Command) -> Command:
        for decorate in (
            click.option("--attachment", metavar="ID", help="Use this attachment instead of an instance."),
            click.option("--project", metavar="NAME", help="The project's id or slug."),
            click.argument("words", nargs=-1, metavar=metavar),
        ):
            command = decorate(command)
        return command

    return decorated


@slurm.command()
@of_cluster("INSTANCE SCRIPT")
@click.option("--name", metavar="NAME", help="The job's name.")
@click.option("--user", metavar="NAME", help="One of the cluster's users. [default: the first]")
@click.option("--partition", metavar="NAME", help="The partition. [default: the cluster's]")
@click.option("--nodes", type=click.IntRange(1, 1024), help="Number of nodes.")
@click.option("--cpus", type=click.IntRange(1, 1024), help="Cores per task.")
@click.option("--gpus", type=click.IntRange(0, 64), help="GPUs per node.")
@click.option(
    "--memory", "memory_mib", type=MemoryType(), metavar="4G", help="MemoryType for each node: 500M, 4G, or MiB."
)
@click.option("--time", "minutes", type=JobTimeType(), metavar="1:30:00", help="Time limit: minutes, H:MM:SS or D-H.")
@click.option("--array", metavar="0-9%2", help="Submit a job array, such as 0-9 or 1,3,5.")
@click.option("--directory", metavar="DIR", help="Working directory, also of its output. [default: the user's home]")
@click.option("--key", metavar="KEY", help="Your own key: submitting again with it returns the same job.")
@click.option(
    "--wait/--no-wait",
    "waits",
    default=False,
    help="Wait until the job, or every task of an array, has ended, and exit with its exit code.",
)
def submit(
    *, words: tuple[str, ...], project: str | None, attachment: str | None, waits: bool, **given: Any
) -> int | None:
    """Submit a batch script: a file, or - for stdin."""
    cluster, (file,) = found(words, ("SCRIPT",), project, attachment)
    request = {"script": read_script(file)} | {name: value for name, value in given.items() if value is not None}
    made = cluster.act("queue.submit", request)
    job = str(made["job_id"])
    if cluster.form != "table":
        output.show(cluster.form, {"id": job, **made})
    elif made.get("repeated"):
        output.note(f"Job {job} was already submitted with this key.")
    else:
        click.echo(f"Submitted batch job {output.plain(job)}")
    return waited_for(cluster, job) if waits else None


@slurm.command()
@of_cluster("INSTANCE")
@click.option("--job", metavar="ID", help="Only this job; for an array, its tasks.")
@click.option("--user", metavar="NAME", help="Only jobs of this user.")
@click.option("--state", metavar="STATE", help="Only jobs in this state: pending, running, failed and so on.")
@click.option("--limit", type=click.IntRange(1, 200), help="The most jobs to show.")
@click.option("--follow", is_flag=True, help="Show the queue again whenever it changes, until interrupted.")
def queue(
    *, words: tuple[str, ...], project: str | None, attachment: str | None, job: str | None, follow: bool, **given: Any
) -> None:
    """Show the queue: pending, running and recently ended jobs, and why jobs are pending."""
    cluster, _ = found(words, (), project, attachment)
    chosen = {name: value for name, value in given.items() if value is not None}
    if job and chosen:
        raise click.UsageError("--job selects one job and cannot be combined with --user, --state or --limit")
    if "state" in chosen:
        chosen["state"] = str(chosen["state"]).upper()
    before: Any = None
    for seen in looks(follow):
        answer = cluster.act("queue.read", {"job_id": job} if job else chosen)
        if answer != before:
            show_queue(cluster, answer, again=seen > 0)
        before = answer


@slurm.command()
@of_cluster("INSTANCE JOB")
@click.option(
    "--wait/--no-wait",
    "waits",
    default=False,
    help="Wait until the job, or every task of an array, has ended, and exit with its exit code.",
)
def job(*, words: tuple[str, ...], project: str | None, attachment: str | None, waits: bool) -> int | None:
    """Show a job: its state, where it runs, and why it is pending."""
    cluster, (number,) = found(words, ("JOB",), project, attachment)
    if waits:
        return waited_for(cluster, number)
    answer = one_job(cluster, number)
    if "array" not in answer:
        output.show(cluster.form, answer["jobs"][0])
    elif cluster.form != "table":
        output.show(cluster.form, as_array(number, answer))
    else:
        show_queue(cluster, answer, again=False)
        output.note(f"Job {number}: {progress(answer['array'])}.")
    return None


@slurm.command("output")
@of_cluster("INSTANCE JOB")
@click.option("--stderr", is_flag=True, help="Show its standard error, if that is a separate file.")
@click.option("--follow", is_flag=True, help="Wait until the job starts, and follow its output until it ends.")
def output_(*, words: tuple[str, ...], project: str | None, attachment: str | None, stderr: bool, follow: bool) -> None:
    """Show the output of a batch job."""
    cluster, (number,) = found(words, ("JOB",), project, attachment)
    if follow:  # an array with several tasks is refused at once, without waiting
        awaited(cluster, number, lambda answer: len_of(answer) > 1 or str(answer["jobs"][0]["state"]) not in WAITING)
    stream, whole, offset = "err" if stderr else "out", [], 0
    while True:
        piece = cluster.act("queue.output", {"job_id": number, "stream": stream, "offset": offset})
        whole.append(str(piece["text"]))
        if cluster.form == "table":
            show_piece(whole[-1])
        offset = int(piece["offset"])
        is_all = offset >= int(piece["size"])
        if piece["end"] or (is_all and not follow):
            break
        if is_all:
            time.sleep(FOLLOW_SECONDS)
    text = "".join(whole)
    if cluster.form != "table":
        output.show(cluster.form, {"id": number, "stream": stream, "text": text})
    elif not text:
        output.note(f"Job {number} has written nothing{'' if follow else ' yet'}.")


@slurm.command()
@of_cluster("INSTANCE JOB")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def cancel(*, words: tuple[str, ...], project: str | None, attachment: str | None, yes: bool) -> None:
    """Cancel a job, or a whole array if no task of it is named."""
    cluster, (number,) = found(words, ("JOB",), project, attachment)
    if sys.stdin.isatty():
        confirm(cluster.invocation, f"cancel job {number}", yes)
    show_one(cluster, cluster.act("queue.cancel", {"job_id": number}).get("job", {"id": number}))


@slurm.command()
@of_cluster("INSTANCE")
def nodes(*, words: tuple[str, ...], project: str | None, attachment: str | None) -> None:
    """Show the nodes as Slurm sees them."""
    cluster, _ = found(words, (), project, attachment)
    rows = cluster.act("node.read", {})["nodes"]
    if cluster.form != "table":
        output.show(cluster.form, rows)
    elif not rows:
        output.note(f"No nodes yet. {cluster.hint('mooring instances members add {0} --component worker adds one.')}")
    else:
        output.show_table([shown_node(each) for each in rows], NODES)


@slurm.command()
@of_cluster("INSTANCE NODE")
@click.option("--reason", required=True, metavar="TEXT", help="Why; shown with the node's state.")
def drain(*, words: tuple[str, ...], project: str | None, attachment: str | None, reason: str) -> None:
    """Drain a node: it gets no new jobs, and running jobs continue."""
    operate(words, project, attachment, {"do": "drain", "reason": reason})


@slurm.command()
@of_cluster("INSTANCE NODE")
def resume(*, words: tuple[str, ...], project: str | None, attachment: str | None) -> None:
    """Resume a node: it gets jobs again. Drains of others stay."""
    operate(words, project, attachment, {"do": "resume"})


@slurm.command(context_settings={"ignore_unknown_options": True})
@click.argument("instance")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--project", metavar="NAME", help="The project's id or slug.")
def run(*, instance: str, argv: tuple[str, ...], project: str | None) -> int:
    """Run a command on the cluster with srun: mooring slurm run INSTANCE -- -N2 hostname."""
    cluster = ClusterClient.of_instance(current(), project, instance)
    return run_at(cluster.invocation, cluster.path, ("srun", *argv))


@slurm.command()
@click.argument("instance")
@click.option("--project", metavar="NAME", help="The project's id or slug.")
def shell(*, instance: str, project: str | None) -> int:
    """Open a shell with the cluster's tools."""
    cluster = ClusterClient.of_instance(current(), project, instance)
    return run_at(cluster.invocation, cluster.path, ())


def found(
    words: tuple[str, ...], wanted: tuple[str, ...], project: str | None, attachment: str | None
) -> tuple[ClusterClient, tuple[str, ...]]:
    """The cluster that the arguments select, and the other arguments."""
    invocation = current()
    if attachment is not None:
        return ClusterClient.of_attachment(invocation, project, attachment), named(words, wanted)
    given = named(words, ("INSTANCE", *wanted))
    return ClusterClient.of_instance(invocation, project, given[0]), given[1:]


def looks(again: bool) -> Iterator[int]:
    """Yield once, or repeatedly with a pause until the caller stops or Ctrl-C."""
    number = 0
    yield number
    while again:
        time.sleep(FOLLOW_SECONDS)
        number += 1
        yield number


def read_script(file: str) -> str:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{file}: {error}") from error
    if not text.startswith("#!"):
        raise click.UsageError(f"{file} is not a script: it must begin with #!, such as #!/bin/sh")
    if len(text.encode()) > SCRIPT_BYTES_MAX:
        raise click.UsageError(
            f"{file} is longer than {SCRIPT_BYTES_MAX} bytes: move the program that it runs into a separate file"
        )
    return text


def one_job(cluster: ClusterClient, number: str) -> Mapping[str, Any]:
    """The state of a job; for an array also its tasks and a summary."""
    answer = cluster.act("queue.read", {"job_id": number})
    if not answer["jobs"]:
        raise ClusterRefused(f"Slurm does not know job {number}; mooring slurm queue lists the jobs")
    return answer


def awaited(cluster: ClusterClient, number: str, is_enough: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
    """Wait for a condition of a job, and print what it waits for, or an array's progress, meanwhile."""
    before, answer = "", one_job(cluster, number)
    while not is_enough(answer):
        row = answer["jobs"][0]
        why = str(row.get("why_text") or row.get("why") or "")
        is_one = "array" not in answer
        line = f"is {row['state']} {why}".strip() if is_one else f"has {progress(answer['array'])}. {why}".strip()
        if cluster.form == "table" and line != before:
            output.note(f"Job {number} {output.plain(line)}")
        before = line
        time.sleep(FOLLOW_SECONDS)
        answer = one_job(cluster, number)
    return answer


def len_of(answer: Mapping[str, Any]) -> int:
    """The number of tasks of a job."""
    return int(answer["array"]["task_count"]) if "array" in answer else 1


def progress(array: Mapping[str, Any]) -> str:
    """The progress of an array, in words."""
    failed = int(array.get("failed_count") or 0)
    return f"{array['over_count']} of {array['task_count']} tasks over" + (f", {failed} failed" if failed else "")


def as_array(number: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """An array for programs: its summary and its tasks."""
    return {"id": number, **answer["array"], "tasks": answer.get("tasks") or answer["jobs"]}


def waited_for(cluster: ClusterClient, number: str) -> int:
    """Wait for the end of a job or of all tasks of an array; returns its exit code, never 0 if one failed.

    Slurm forgets tasks that ended long ago, so the first failed task is remembered as soon as it is seen.
    """
    failed: list[Mapping[str, Any]] = []

    def is_done(answer: Mapping[str, Any]) -> bool:
        array = answer.get("array")
        if array is None:
            return is_over(str(answer["jobs"][0]["state"]))
        if not failed:
            failed.extend(array.get("failed", ())[:1])
        return bool(array["over_count"] >= array["task_count"])

    answer = awaited(cluster, number, is_done)
    row = failed[0] if failed else answer["jobs"][0]
    if cluster.form != "table":
        output.show(cluster.form, as_array(number, answer) if "array" in answer else row)
    elif "array" not in answer:
        output.note(f"Job {number} is {output.plain(str(row['state']))}.")
    else:
        first = f"; the first failure is {row.get('array')}, {row['state']}" if failed else ""
        output.note(output.plain(f"Job {number} has {progress(answer['array'])}{first}."))
    if "array" in answer and not failed:
        return 0
    code = int(row.get("exit_code") or 0)
    return min(code, EXIT_MAX) if code > 0 else int(row["state"] != "COMPLETED")


def show_queue(cluster: ClusterClient, answer: Mapping[str, Any], *, again: bool) -> None:
    """Print the jobs, or the tasks of an array, or that there are none."""
    rows = answer.get("tasks") or answer["jobs"]
    if cluster.form == "json" and again:
        click.echo(json.dumps(rows, ensure_ascii=False))
        return
    if cluster.form != "table":
        output.show(cluster.form, rows)
        return
    if again:
        click.echo("")
    if not rows:
        output.note(f"The queue is empty. {cluster.hint('mooring slurm submit {0} SCRIPT submits a job.')}")
        return
    filled = [name for name in QUEUE if any(each.get(name) not in (None, "", []) for each in rows)]
    output.show_table(rows, filled)
    if answer.get("truncated"):
        output.note("There are more jobs; --job ID shows one of them.")


def show_piece(text: str) -> None:
    """Print a job's output unchanged to a file or a pipe, without control sequences to a terminal."""
    if sys.stdout.isatty():
        text = "\n".join(output.plain(line.replace("\t", "    ")) for line in text.split("\n"))
    sys.stdout.write(text)
    sys.stdout.flush()


def show_one(cluster: ClusterClient, row: Mapping[str, Any]) -> None:
    """Print the state of a job after a change."""
    if cluster.form != "table":
        output.show(cluster.form, row)
        return
    output.note(f"Job {row['id']} is {output.plain(str(row.get('state', 'cancelled')))}.")


def shown_node(row: Mapping[str, Any]) -> dict[str, Any]:
    """A node's table row: its states joined, and how much of it is in use."""
    used = {name: f"{row.get(f'{name}_used', 0)}/{row[name]}" for name in ("cpus", "gpus") if name in row}
    return {**row, **used, "state": "+".join(row["state"])}


def operate(words: tuple[str, ...], project: str | None, attachment: str | None, asked: dict[str, str]) -> None:
    """Drain or resume a node, and print its state."""
    cluster, (name,) = found(words, ("NODE",), project, attachment)
    answer = cluster.act("node.operate", {"name": name, **asked})
    if cluster.form != "table":
        output.show(cluster.form, answer)
        return
    node = answer["node"]
    unchanged = "" if answer["changed"] else ", as before"
    output.note(f"{node['name']} is {output.plain('+'.join(node['state']))}{unchanged}.")
    if answer.get("foreign"):
        output.note(f"It stays drained by somebody else: {output.plain(str(answer['foreign']))}")
