"""The files of the tutorial, exactly as on the page, make an adapter that keeps its promises."""

import json
import re
import sys
from pathlib import Path

from mooring_adapter.conformance.report import BROKEN, NOT_PLAYED
from mooring_adapter.conformance.suite import chosen, play, promises, read_profile

PAGE = Path(__file__).resolve().parents[3] / "docs" / "tutorials" / "write-an-adapter.md"
FILE = re.compile(r"^```(?:json|python) (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SLOW = {"crash", "unavailable", "released", "interrupted_upgrade"}


def test_the_adapter_of_the_tutorial_keeps_its_promises(tmp_path: Path) -> None:
    written: dict[str, str] = {}
    for name, content in FILE.findall(PAGE.read_text(encoding="utf-8")):
        written[name] = f"{written[name]}\n\n{content}" if name in written else content
    assert set(written) == {"manifest.json", "adapter.py", "profile.json"}
    (tmp_path / "adapter.py").write_text(written["adapter.py"], encoding="utf-8")
    details = {**json.loads(written["profile.json"]), "patience_seconds": 120}
    profile = read_profile(json.loads(written["manifest.json"]), details)
    wanted = [each.key for each in promises() if each.key not in SLOW]
    command = (sys.executable, str(tmp_path / "adapter.py"))
    results = play(command, profile, chosen(promises(), wanted), lambda result: None)
    assert {each.promise: each.reason for each in results if each.verdict == BROKEN} == {}
    assert [each.promise for each in results if each.verdict == NOT_PLAYED] == ["restart", "configure"]
