"""The server's files stand where a newcomer looks: by layer, then by wing, under the same name in each layer."""

from collections import defaultdict
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1] / "mooring"
LAYERS: Final = ("core", "commands", "storage", "api/routes", "api/schemas")
WINGS: Final = ("kernel", "identity", "catalog", "pricing", "fleet", "runtime", "money", "records")
BESIDE_THE_WINGS: Final = {
    "core/lifecycles.py",  # lists the tables of every wing
    "core/lifecycle_docs.py",
    "commands/services.py",  # names parts of every wing
}
FILES_MAX: Final = 35


def test_a_noun_has_the_same_wing_in_every_layer() -> None:
    wings: defaultdict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for layer in LAYERS:
        for wing in WINGS:
            for path in (ROOT / layer / wing).glob("*.py"):
                if path.stem != "__init__":
                    wings[path.stem][wing].append(layer)
    assert {noun: dict(found) for noun, found in wings.items() if len(found) > 1} == {}


def test_every_file_of_a_layer_is_in_a_wing() -> None:
    beside = {
        f"{layer}/{path.name}" for layer in LAYERS for path in (ROOT / layer).glob("*.py") if path.stem != "__init__"
    }
    assert beside == BESIDE_THE_WINGS


def test_no_folder_has_more_files_than_one_can_survey() -> None:
    folders = {path.parent for path in ROOT.rglob("*.py")}
    counts = {str(each.relative_to(ROOT)): len(list(each.glob("*.py"))) for each in folders}
    assert {name: count for name, count in counts.items() if count > FILES_MAX} == {}
