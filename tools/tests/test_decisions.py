"""Decision records: the index has each of them, and the record of dependencies each dependency."""

import re

from tools import lock, set_up

DECISIONS = set_up.ROOT / "docs" / "decisions"


def test_the_index_has_every_record_in_order() -> None:
    rows = re.findall(r"^\| (\d+) \| \[.+?\]\((.+?)\) \|", (DECISIONS / "README.md").read_text(), re.MULTILINE)
    names = sorted(path.name for path in DECISIONS.glob("0*.md"))
    assert [name for _, name in rows] == names
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    for number, name in rows:
        assert name.startswith(f"{int(number):04}-")
        assert (DECISIONS / name).read_text().startswith(f"# {number}. ")


def test_the_record_of_dependencies_names_each_of_them_and_no_other() -> None:
    rows = re.findall(r"^\| (.+?) \| .+? \| .+? \|$", (DECISIONS / "0006-dependencies.md").read_text(), re.MULTILINE)
    named = {lock.normal(name) for row in rows[1:] for name in row.split(", ")}
    wanted = {name for name in lock.wanted_names() if not name.startswith("mooring-")}
    assert named - {"hatchling"} == wanted - {"hatchling"}
