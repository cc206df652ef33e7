"""`mooring try`: show how to sign in to the console of a trial, and remove everything that it made.

A trial is a platform of its own, so nothing is picked out of it: its `up` is stopped, the node's sandboxes are ended
and checked, and then its directories and its contexts are removed. A platform without the mark is never touched.
"""

import os
import signal
import subprocess
import sys

import click

from mooring_cli import contexts as stored
from mooring_cli import output
from mooring_cli.commands import confirm
from mooring_cli.invocation import current
from mooring_cli.local_layout import LocalLayout, layout_of
from mooring_cli.local_node import AGENT
from mooring_cli.main import MooringGroup
from mooring_cli.trial_files import TrialFiles, TrialRecord, wait_until_free


@click.group("try", cls=MooringGroup, no_args_is_help=True)
def try_() -> None:
    """Show or remove what `mooring up --try` made on this machine."""


@try_.command()
@click.option("--data-dir", metavar="DIR", help="The directory that was given to `mooring up --try`.")
def console(*, data_dir: str | None) -> None:
    """Show the address of the web console, and the sign-in that the trial made for you.

    It prints a password: for a trial on this machine only, where the same account can read it from a file anyway.
    """
    layout = layout_of(data_dir)
    record = TrialFiles(layout.trial).read()
    if record is None:
        raise click.UsageError(f"`mooring up --try` made nothing in {layout.root}; give its --data-dir")
    context = stored.load(stored.contexts_file(dict(os.environ))).by_name.get(record.context)
    if context is None:
        raise click.ClickException("the trial is not ready yet; wait until `mooring up` shows its box")
    for name, value in (
        ("Console", f"{context.url}/console/"),
        ("Tenant", context.tenant),
        ("E-mail", context.email),
        ("Password", record.user_password),
    ):
        click.echo(f"{name:<10} {value}")


@try_.command()
@click.option("--data-dir", metavar="DIR", help="The directory that was given to `mooring up --try`.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def remove(*, data_dir: str | None, yes: bool) -> None:
    """Stop the trial and remove all of it: apps, sandboxes, database, keys, logs and contexts.

    It removes what you made in the trial since, too. Without the mark of `mooring up --try` nothing is removed.
    """
    layout = layout_of(data_dir)
    files = TrialFiles(layout.trial)
    record = files.read()
    if record is None:
        raise click.UsageError(f"`mooring up --try` made nothing in {layout.root}; give its --data-dir")
    confirm(current(), f"remove the trial in {layout.root} with its apps, database and keys", yes)
    stop_up(files, layout)
    end_sandboxes(layout, record)
    forget_contexts(record)
    layout.remove()
    output.note(f"Removed the trial in {layout.root}.")


def stop_up(files: TrialFiles, layout: LocalLayout) -> None:
    """Stop the running `up`, and wait for its programs; those of one that was killed end by themselves."""
    process = files.holder()
    if process is not None:
        output.note(f"Stopping Mooring (process {process}).")
        os.kill(process, signal.SIGTERM)
    if not wait_until_free(files.lock, layout.database / "postgres" / "lock", layout.node / "lock"):
        raise click.ClickException("Mooring does not stop; end it with Ctrl-C in its terminal, and try again")


def end_sandboxes(layout: LocalLayout, record: TrialRecord) -> None:
    """End everything of the node; as long as something is left, its state is kept."""
    words = [sys.executable, "-m", AGENT, "purge", "--state-dir", str(layout.node), "--host", record.node_host]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise click.ClickException(f"sandboxes of this machine could not be removed: {done.stderr.strip()[-500:]}")
    if done.stdout.strip():
        output.note(done.stdout.strip())


def forget_contexts(record: TrialRecord) -> None:
    """Delete the trial's contexts; the one before is current again, if it is still there."""
    path = stored.contexts_file(dict(os.environ))
    contexts = stored.load(path)
    was_current = contexts.current in (record.context, record.admin_context)
    for name in (record.context, record.admin_context):
        contexts = contexts.without(name)
    if was_current and record.context_before in contexts.by_name:
        contexts = contexts.using(str(record.context_before))
    stored.save(path, contexts)
