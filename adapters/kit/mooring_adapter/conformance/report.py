"""The report of a run: a table for people, JSON for programs."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final, TextIO

KEPT: Final = "kept"
BROKEN: Final = "broken"
NOT_PLAYED: Final = "not played"
MARKS: Final = {KEPT: "pass", BROKEN: "FAIL", NOT_PLAYED: "skip"}


@dataclass(frozen=True, slots=True)
class PromiseResult:
    """Whether one promise was kept, and if not, why, with the last lines of the adapter's log."""

    promise: str
    sentence: str
    verdict: str
    seconds: float
    reason: str = ""
    last_lines: tuple[str, ...] = ()
    request: str = ""  # the last request that the platform refused, or the last one
    advice: str = ""  # what the author of the adapter does about it


def print_progress(verdict: PromiseResult, stream: TextIO) -> None:
    """Print one line for a result."""
    line = f"{MARKS[verdict.verdict]}  {verdict.seconds:5.1f} s  {verdict.promise}"
    print(f"{line}: {verdict.reason}" if verdict.reason else line, file=stream, flush=True)


def table(results: Sequence[PromiseResult], command: Sequence[str]) -> str:
    width = max((len(each.promise) for each in results), default=0)
    lines = [f"Conformance of {' '.join(command)} on the simulated platform", ""]
    for each in results:
        lines.append(f"  {MARKS[each.verdict]}  {each.promise.ljust(width)}  {each.sentence}")
        if each.reason:
            lines.append(f"        {' ' * width}{each.reason}")
        lines += [f"        {' ' * width}{name}: {text}" for name, text in _hints(each) if text]
        lines += [f"        {' ' * width}| {line[:200]}" for line in each.last_lines]
    counts = {name: sum(1 for each in results if each.verdict == name) for name in MARKS}
    lines += ["", f"{counts[KEPT]} kept, {counts[BROKEN]} broken, {counts[NOT_PLAYED]} not played"]
    return "\n".join(lines)


def _hints(result: PromiseResult) -> list[tuple[str, str]]:
    return [("request", result.request), ("what to do", result.advice)]


def as_json(results: Sequence[PromiseResult], command: Sequence[str]) -> str:
    return json.dumps(
        {
            "platform": "simulated",
            "command": list(command),
            "conforms": conforms(results),
            "promises": [asdict(each) for each in results],
        },
        indent=2,
    )


def conforms(results: Sequence[PromiseResult]) -> bool:
    """Whether no promise was broken, and at least one was kept."""
    return any(each.verdict == KEPT for each in results) and all(each.verdict != BROKEN for each in results)


def show(results: Sequence[PromiseResult], command: Sequence[str], *, json_wanted: bool) -> None:
    print((as_json if json_wanted else table)(results, command), file=sys.stdout)
