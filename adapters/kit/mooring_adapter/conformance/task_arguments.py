"""Checks the arguments of tasks by the published schemas, as the platform does.

`task_schemas.json` is a generated copy of `GET /api/v1/schemas/tasks`. The validator is an extra of the kit, because
only the suite needs it: `pip install 'mooring-adapter[conformance]'`.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

import jsonschema_rs

from mooring_adapter.conformance.platform_rules import invalid

CONTENTS: Final = ("content", "content_base64", "secret", "directory", "artifact")


@cache
def _validators() -> dict[str, Any]:
    text = (files("mooring_adapter.conformance") / "task_schemas.json").read_text(encoding="utf-8")
    types = json.loads(text)["types"]
    return {name: jsonschema_rs.Draft202012Validator(each["adapter_arguments"]) for name, each in types.items()}


def check_arguments(kind: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that a task of this type cannot have, with the path of the first mistake."""
    for error in _validators()[kind].iter_errors(dict(arguments)):
        path = "/".join(("arguments", *(str(each) for each in error.instance_path)))
        raise invalid(f"{path} of {kind}: {error.message}")
    if kind == "files.write":
        for index, each in enumerate(arguments["files"]):
            given = [name for name in CONTENTS if each.get(name) not in (None, False)]
            if len(given) != 1:
                raise invalid(f"arguments/files/{index} of {kind}: one of {', '.join(CONTENTS)}, not {given}")
    elif kind == "container.launch" and not {"artifact", "digest"} & set(arguments["image"]):
        raise invalid(f"arguments/image of {kind}: one of artifact and digest")
