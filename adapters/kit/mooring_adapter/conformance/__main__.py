"""`python -m mooring_adapter.conformance -- <command>`: checks whether an adapter keeps its promises.

The exit code is 0 if no promise is broken, 1 if one is, 2 if the suite cannot run.
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
    options = argparse.ArgumentParser(
        prog="mooring adapter test",
        description="Test an adapter against a simulated platform that misbehaves.",
    )
    options.add_argument("--manifest", type=Path, help="the app's manifest, as JSON")
    options.add_argument(
        "--profile", type=Path, help="test values as JSON: topology, config, actions, grows and others"
    )
    options.add_argument(
        "--only", action="append", default=[], metavar="PROMISE", help="check only this promise; repeatable"
    )
    options.add_argument(
        "--every-crash", action="store_true", help="kill the adapter at every request, not only at some"
    )
    options.add_argument("--patience", type=float, metavar="SECONDS", help="the longest time to wait for anything")
    options.add_argument("--json", action="store_true", help="print the report as JSON")
    options.add_argument("--list", action="store_true", help="list the promises, then exit")
    options.add_argument("command", nargs=argparse.REMAINDER, help="the adapter: a program and its arguments")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    reader = parser()
    given = reader.parse_args(arguments)
    known = promises(every_crash=given.every_crash)
    if given.list:
        sys.stdout.write("".join(f"{each.key:20} {each.sentence}\n" for each in known))
        return 0
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        reader.error("the adapter's command is missing")
    if given.manifest is None:
        reader.error("--manifest is missing: the suite launches what the manifest describes")
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

    def show_progress(result: PromiseResult) -> None:
        report.print_progress(result, sys.stderr)

    results = play(command, profile, wanted, show_progress)
    report.show(results, command, json_wanted=given.json)
    return 0 if report.conforms(results) else 1


if __name__ == "__main__":
    sys.exit(main())
