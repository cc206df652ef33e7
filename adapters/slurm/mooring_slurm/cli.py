"""`mooring slurm`: the queue and the nodes of a cluster by hand, through the app's actions.

It is a plug-in of the command line that comes with this adapter: without it `mooring` has no such word. Everything
goes through the public API, under the caller's own keys; what is interactive goes to the cluster's terminal, where
`srun`, `sbatch`, `squeue` and `sacct` are what Slurm's users know. An attached project names its attachment instead of
an instance, and sees its own jobs.
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
    """Work with a Slurm cluster: its queue, its nodes, and a shell beside them.

    INSTANCE is the cluster, by its name or its id. A project that is attached to a cluster of another project says
    --attachment ID instead.
    """


def of_cluster(metavar: str) -> Callable[[Command], Command]:
    """The words that name a cluster and what is in it, and where they are looked for."""

    def take(command: Command) -> Command:
        for decorate in (
            click.option("--attachment", metavar="ID", help="Act by this attachment instead of an instance."),
            click.option("--project", metavar="NAME", help="The project, by id or slug."),
            click.argument("words", nargs=-1, metavar=metavar),
        ):
            command = decorate(command)
        return command

    return take


@slurm.command()
@of_cluster("INSTANCE SCRIPT")
@click.option("--name", metavar="NAME", help="The job's name.")
@click.option("--user", metavar="NAME", help="One of the cluster's users. [default: its first]")
@click.option("--partition", metavar="NAME", help="The partition. [default: the cluster's]")
@click.option("--nodes", type=click.IntRange(1, 1024), help="How many nodes.")
@click.option("--cpus", type=click.IntRange(1, 1024), help="Cores for each task.")
@click.option("--gpus", type=click.IntRange(0, 64), help="GPUs for each node.")
@click.option(
    "--memory", "memory_mib", type=MemoryType(), metavar="4G", help="MemoryType for each node: 500M, 4G, or MiB."
)
@click.option("--time", "minutes", type=JobTimeType(), metavar="1:30:00", help="Longest time: minutes, H:MM:SS or D-H.")
@click.option("--array", metavar="0-9%2", help="So many of it, such as 0-9 or 1,3,5.")
@click.option("--directory", metavar="DIR", help="Where it runs and its output is written. [default: the user's home]")
@click.option("--key", metavar="KEY", help="A name of your own: submitted again under it, it is the same job.")
@click.option(
    "--wait/--no-wait",
    "waits",
    default=False,
    help="Wait for its end, of an array for all tasks; the exit code is its.",
)
def submit(
    *, words: tuple[str, ...], project: str | None, attachment: str | None, waits: bool, **given: Any
) -> int | None:
    """Submit a batch script: a file, or - for stdin."""
    cluster, (file,) = found(words, ("SCRIPT",), project, attachment)
    wish = {"script": read_script(file)} | {name: value for name, value in given.items() if value is not None}
    made = cluster.act("queue.submit", wish)
    job = str(made["job_id"])
    if cluster.form != "table":
        output.show(cluster.form, {"id": job, **made})
    elif made.get("repeated"):
        output.note(f"Job {job} was submitted before under this key.")
    else:
        click.echo(f"Submitted batch job {output.plain(job)}")
    return waited_for(cluster, job) if waits else None


@slurm.command()
@of_cluster("INSTANCE")
@click.option("--job", metavar="ID", help="This job alone, of an array with its tasks.")
@click.option("--user", metavar="NAME", help="The jobs of this user.")
@click.option("--state", metavar="STATE", help="The jobs in this state: pending, running, failed and so on.")
@click.option("--limit", type=click.IntRange(1, 200), help="So many at the most.")
@click.option("--follow", is_flag=True, help="Show it again whenever it has changed, until interrupted.")
def queue(
    *, words: tuple[str, ...], project: str | None, attachment: str | None, job: str | None, follow: bool, **given: Any
) -> None:
    """Show the queue: what waits, runs and ended of late, and why it waits."""
    cluster, _ = found(words, (), project, attachment)
    chosen = {name: value for name, value in given.items() if value is not None}
    if job and chosen:
        raise click.UsageError("--job is one job: --user, --state and --limit choose among all")
    if "state" in chosen:
        chosen["state"] = str(chosen["state"]).upper()
    before: Any = None
    for seen in looks(follow):
        told = cluster.act("queue.read", {"job_id": job} if job else chosen)
        if told != before:
            show_queue(cluster, told, again=seen > 0)
        before = told


@slurm.command()
@of_cluster("INSTANCE JOB")
@click.option(
    "--wait/--no-wait",
    "waits",
    default=False,
    help="Wait for its end, of an array for all tasks; the exit code is its.",
)
def job(*, words: tuple[str, ...], project: str | None, attachment: str | None, waits: bool) -> int | None:
    """Show a job: how it stands, where it runs, and why it waits."""
    cluster, (number,) = found(words, ("JOB",), project, attachment)
    if waits:
        return waited_for(cluster, number)
    told = one_job(cluster, number)
    if "array" not in told:
        output.show(cluster.form, told["jobs"][0])
    elif cluster.form != "table":
        output.show(cluster.form, as_array(number, told))
    else:
        show_queue(cluster, told, again=False)
        output.note(f"Job {number}: {progress(told['array'])}.")
    return None


@slurm.command("output")
@of_cluster("INSTANCE JOB")
@click.option("--stderr", is_flag=True, help="What it wrote to its standard error, where that is apart.")
@click.option("--follow", is_flag=True, help="Wait until the job has begun, and go on until it is over.")
def output_(*, words: tuple[str, ...], project: str | None, attachment: str | None, stderr: bool, follow: bool) -> None:
    """Show what a batch job has written."""
    cluster, (number,) = found(words, ("JOB",), project, attachment)
    if follow:  # of several tasks none is meant: that is refused, and nothing is waited for
        awaited(cluster, number, lambda told: len_of(told) > 1 or str(told["jobs"][0]["state"]) not in WAITING)
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
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def cancel(*, words: tuple[str, ...], project: str | None, attachment: str | None, yes: bool) -> None:
    """Cancel a job, or all of an array where no task of it is named."""
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
@click.option("--reason", required=True, metavar="TEXT", help="Why, for whoever reads the node's state.")
def drain(*, words: tuple[str, ...], project: str | None, attachment: str | None, reason: str) -> None:
    """Give a node no new jobs; what runs there goes on."""
    operate(words, project, attachment, {"do": "drain", "reason": reason})


@slurm.command()
@of_cluster("INSTANCE NODE")
def resume(*, words: tuple[str, ...], project: str | None, attachment: str | None) -> None:
    """Give a node jobs again; a drain of somebody else stays."""
    operate(words, project, attachment, {"do": "resume"})


@slurm.command(context_settings={"ignore_unknown_options": True})
@click.argument("instance")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--project", metavar="NAME", help="The project, by id or slug.")
def run(*, instance: str, argv: tuple[str, ...], project: str | None) -> int:
    """Run a command on the cluster by srun: mooring slurm run INSTANCE -- -N2 hostname."""
    cluster = ClusterClient.of_instance(current(), project, instance)
    return run_at(cluster.invocation, cluster.path, ("srun", *argv))


@slurm.command()
@click.argument("instance")
@click.option("--project", metavar="NAME", help="The project, by id or slug.")
def shell(*, instance: str, project: str | None) -> int:
    """Open a shell beside the cluster's tools."""
    cluster = ClusterClient.of_instance(current(), project, instance)
    return run_at(cluster.invocation, cluster.path, ())


def found(
    words: tuple[str, ...], wanted: tuple[str, ...], project: str | None, attachment: str | None
) -> tuple[ClusterClient, tuple[str, ...]]:
    """The cluster that the words name, or the attachment, and the other words."""
    invocation = current()
    if attachment is not None:
        return ClusterClient.of_attachment(invocation, project, attachment), named(words, wanted)
    given = named(words, ("INSTANCE", *wanted))
    return ClusterClient.of_instance(invocation, project, given[0]), given[1:]


def looks(again: bool) -> Iterator[int]:
    """Once, or again and again with a pause; the caller ends it, or Ctrl-C."""
    number = 0
    yield number
    while again:
        time.sleep(FOLLOW_SECONDS)
        number += 1
        yield number


def read_script(file: str) -> str:
    """A batch script, from a file or stdin."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{file}: {error}") from error
    if not text.startswith("#!"):
        raise click.UsageError(f"{file} is no script: it begins with #!, such as #!/bin/sh")
    if len(text.encode()) > SCRIPT_BYTES_MAX:
        raise click.UsageError(
            f"{file} is longer than {SCRIPT_BYTES_MAX} bytes: put what it runs into a file of its own"
        )
    return text


def one_job(cluster: ClusterClient, number: str) -> Mapping[str, Any]:
    """A job as it stands; of an array its tasks beside it, and how it stands as a whole."""
    told = cluster.act("queue.read", {"job_id": number})
    if not told["jobs"]:
        raise ClusterRefused(f"Slurm knows no job {number}, or no longer; mooring slurm queue shows what there is")
    return told


def awaited(cluster: ClusterClient, number: str, is_enough: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
    """A job once it has come so far; what it waits for meanwhile is said, and of an array how many tasks are over."""
    before, told = "", one_job(cluster, number)
    while not is_enough(told):
        row = told["jobs"][0]
        why = str(row.get("why_text") or row.get("why") or "")
        is_one = "array" not in told
        said = f"is {row['state']} {why}".strip() if is_one else f"has {progress(told['array'])}. {why}".strip()
        if cluster.form == "table" and said != before:
            output.note(f"Job {number} {output.plain(said)}")
        before = said
        time.sleep(FOLLOW_SECONDS)
        told = one_job(cluster, number)
    return told


def len_of(told: Mapping[str, Any]) -> int:
    """How many tasks a job is."""
    return int(told["array"]["task_count"]) if "array" in told else 1


def progress(array: Mapping[str, Any]) -> str:
    """How far an array is."""
    failed = int(array.get("failed_count") or 0)
    return f"{array['over_count']} of {array['task_count']} tasks over" + (f", {failed} failed" if failed else "")


def as_array(number: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """An array for programs: how it stands, and its tasks."""
    return {"id": number, **told["array"], "tasks": told.get("tasks") or told["jobs"]}


def waited_for(cluster: ClusterClient, number: str) -> int:
    """Wait for the end of a job, and of all tasks of an array; its exit code, and not 0 where one did not complete.

    Slurm forgets tasks that ended long ago: what failed is remembered from the first look that tells it.
    """
    failed: list[Mapping[str, Any]] = []

    def is_done(told: Mapping[str, Any]) -> bool:
        array = told.get("array")
        if array is None:
            return is_over(str(told["jobs"][0]["state"]))
        if not failed:
            failed.extend(array.get("failed", ())[:1])
        return bool(array["over_count"] >= array["task_count"])

    told = awaited(cluster, number, is_done)
    row = failed[0] if failed else told["jobs"][0]
    if cluster.form != "table":
        output.show(cluster.form, as_array(number, told) if "array" in told else row)
    elif "array" not in told:
        output.note(f"Job {number} is {output.plain(str(row['state']))}.")
    else:
        first = f"; the first was {row.get('array')}, {row['state']}" if failed else ""
        output.note(output.plain(f"Job {number} has {progress(told['array'])}{first}."))
    if "array" in told and not failed:
        return 0
    code = int(row.get("exit_code") or 0)
    return min(code, EXIT_MAX) if code > 0 else int(row["state"] != "COMPLETED")


def show_queue(cluster: ClusterClient, told: Mapping[str, Any], *, again: bool) -> None:
    """The jobs, of an array its tasks; or that there are none."""
    rows = told.get("tasks") or told["jobs"]
    if cluster.form == "json" and again:
        click.echo(json.dumps(rows, ensure_ascii=False))
        return
    if cluster.form != "table":
        output.show(cluster.form, rows)
        return
    if again:
        click.echo("")
    if not rows:
        output.note(f"The queue is empty. {cluster.hint('mooring slurm submit {0} SCRIPT puts a job into it.')}")
        return
    filled = [name for name in QUEUE if any(each.get(name) not in (None, "", []) for each in rows)]
    output.show_table(rows, filled)
    if told.get("truncated"):
        output.note("There are more: --job ID shows one of them.")


def show_piece(text: str) -> None:
    """What a job wrote: as it is into a file or a pipe, without what would act on a terminal here."""
    if sys.stdout.isatty():
        text = "\n".join(output.plain(line.replace("\t", "    ")) for line in text.split("\n"))
    sys.stdout.write(text)
    sys.stdout.flush()


def show_one(cluster: ClusterClient, row: Mapping[str, Any]) -> None:
    """A job after something was done to it."""
    if cluster.form != "table":
        output.show(cluster.form, row)
        return
    output.note(f"Job {row['id']} is {output.plain(str(row.get('state', 'cancelled')))}.")


def shown_node(row: Mapping[str, Any]) -> dict[str, Any]:
    """A node in a line: its states together, and how much of it is in use."""
    used = {name: f"{row.get(f'{name}_used', 0)}/{row[name]}" for name in ("cpus", "gpus") if name in row}
    return {**row, **used, "state": "+".join(row["state"])}


def operate(words: tuple[str, ...], project: str | None, attachment: str | None, asked: dict[str, str]) -> None:
    """Drain or resume a node."""
    cluster, (name,) = found(words, ("NODE",), project, attachment)
    told = cluster.act("node.operate", {"name": name, **asked})
    if cluster.form != "table":
        output.show(cluster.form, told)
        return
    node = told["node"]
    said = "" if told["changed"] else ", as it was"
    output.note(f"{node['name']} is {output.plain('+'.join(node['state']))}{said}.")
    if told.get("foreign"):
        output.note(f"Somebody else drained it, and that stays: {output.plain(str(told['foreign']))}")
