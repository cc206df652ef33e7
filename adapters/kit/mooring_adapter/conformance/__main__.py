"""`python -m mooring_adapter.conformance -- <command>`: does an adapter keep its promises?

The exit code is 0 when no promise is broken, 1 when one is, 2 when there is nothing to play.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from mooring_adapter.conformance import report
from mooring_adapter.conformance.report import PromiseResult
from mooring_adapter.conformance.suite import ProfileRefused, chosen, play, promises, read_json, read_profile


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(
        prog="mooring adapter test",
        description="Plays the platform against an adapter: a simulated one, on a bad day.",
    )
    options.add_argument("--manifest", type=Path, help="the app's manifest, as JSON")
    options.add_argument("--profile", type=Path, help="values for the play: topology, config, actions, grows")
    options.add_argument("--only", action="append", default=[], metavar="PROMISE", help="play this one; repeatable")
    options.add_argument("--every-crash", action="store_true", help="kill it at every request, not only at some")
    options.add_argument("--patience", type=float, metavar="SECONDS", help="how long anything may take")
    options.add_argument("--json", action="store_true", help="the report as JSON")
    options.add_argument("--list", action="store_true", help="say which promises there are, and end")
    options.add_argument("command", nargs=argparse.REMAINDER, help="the adapter: a program and its arguments")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite."""
    reader = parser()
    given = reader.parse_args(arguments)
    known = promises(every_crash=given.every_crash)
    if given.list:
        sys.stdout.write("".join(f"{each.key:20} {each.sentence}\n" for each in known))
        return 0
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        reader.error("name the adapter's program")
    if given.manifest is None:
        reader.error("say --manifest: the suite launches what the manifest describes")
    if shutil.which(command[0]) is None:
        reader.error(f"there is no program {command[0]!r}")
    try:
        details = read_json(given.profile) if given.profile else {}
        if given.patience is not None:
            details["patience_seconds"] = given.patience
        profile = read_profile(read_json(given.manifest), details)
        wanted = chosen(known, given.only)
    except ProfileRefused as error:
        reader.error(str(error))

    def tell(verdict: PromiseResult) -> None:
        report.told_progress(verdict, sys.stderr)

    results = play(command, profile, wanted, tell)
    report.show(results, command, json_wanted=given.json)
    return 0 if report.conforms(results) else 1


if __name__ == "__main__":
    sys.exit(main())
