"""The program: parses the arguments, runs one verb, and prints one line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from . import VERSION
from .slurm_commands import Deadline, SlurmCommands, VerbFailed

ANSWER_BYTES_MAX = 60_000
ANSWER_SECONDS = 5.0
"""How long to wait for a controller that is just starting."""
Answer = dict[str, Any]
MODULE_OF = {
    **dict.fromkeys(("await-node", "prove", "quiet", "look", "drain", "resume", "delete"), "nodes"),
    **dict.fromkeys(("submit", "jobs", "job", "cancel", "output"), "queue"),
    **dict.fromkeys(
        ("serve-database", "database", "gate", "account-add", "account-close", "account-remove", "users", "user-end"),
        "accounting",
    ),
}
"""The module of each verb: only that one is imported, because every run compiles the program from source."""


class _ArgumentParser(argparse.ArgumentParser):
    """Reports wrong arguments like any other failure."""

    def error(self, message: str) -> Any:
        raise VerbFailed("usage", message)


def _words() -> _ArgumentParser:
    reader = _ArgumentParser(prog="slurm_node", add_help=False, allow_abbrev=False)
    reader.add_argument("--home", required=True)
    reader.add_argument("verb", choices=(*MODULE_OF, "version"))
    for name in ("--node", "--job", "--account", "--user", "--state", "--ended-after", "--nodes-after"):
        reader.add_argument(name)
    reader.add_argument("--owner", default="platform")
    reader.add_argument("--reason", default="asked for")
    reader.add_argument("--stream", choices=("out", "err"), default="out")
    reader.add_argument("--seconds", type=float)
    reader.add_argument("--nodes", type=int, default=1)
    reader.add_argument("--limit", type=int, default=200)
    reader.add_argument("--offset", type=int, default=0)
    reader.add_argument("--bytes", type=int, default=32_768)
    reader.add_argument("--gone", action="store_true")
    reader.add_argument("--cancel", action="store_true")
    return reader


def main(words: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    try:
        _print(_run(_words().parse_args(words)))
    except VerbFailed as failed:
        _print({"error": {"code": failed.code, "detail": failed.detail}, **failed.more})
        print(failed.detail, file=sys.stderr)
        return 2 if failed.code == "usage" else 1
    except (OSError, ValueError, KeyError) as error:
        detail = f"{type(error).__name__}: {error}"[:500]
        _print({"error": {"code": "program_error", "detail": detail}})
        print(detail, file=sys.stderr)
        return 1
    return 0


def _run(given: argparse.Namespace) -> Answer:
    if given.verb == "version":
        return {"version": VERSION}
    slurm = SlurmCommands(given.home)
    if MODULE_OF[given.verb] != "accounting":
        slurm.await_controller(Deadline(given.seconds or ANSWER_SECONDS))
    module = import_module(f".{MODULE_OF[given.verb]}", __package__)
    answer: Answer = module.VERBS[given.verb](slurm, given)
    return answer


def _print(answer: Answer) -> None:
    """Print the answer as one line, or an error if it is too long."""
    line = json.dumps(answer, separators=(",", ":"))
    if len(line) > ANSWER_BYTES_MAX:
        line = json.dumps({"error": {"code": "too_large", "detail": f"the answer has {len(line)} bytes"}})
    print(line, flush=True)
