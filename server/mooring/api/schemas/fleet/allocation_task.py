"""The body of the endpoint that creates a task in an allocation."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from mooring.api.schemas.kernel.fields import Strict
from mooring.core.fleet.task_creation import LABEL_PATTERN, LIFETIME_MAX, LIFETIME_MIN, STEP_PATTERN


class MakeTask(Strict):
    """A task to run in a sandbox; the families and their arguments are at `/api/v1/schemas/tasks`."""

    type: Annotated[str, Meta(max_length=64, description="A task family, such as `process.run`.")]
    arguments: Annotated[dict[str, Any], Meta(description="As the schema of the family says.")] = msgspec.field(
        default_factory=dict
    )
    label: Annotated[
        str,
        Meta(
            pattern=f"^$|{LABEL_PATTERN}", description="The owner within the allocation; empty: the allocation itself."
        ),
    ] = ""
    step: Annotated[
        str, Meta(pattern=f"^$|{STEP_PATTERN}", description="The name of this task; empty: a new name.")
    ] = ""
    lifetime_seconds: Annotated[float, Meta(ge=LIFETIME_MIN.total_seconds(), le=LIFETIME_MAX.total_seconds())] = 3_600.0
