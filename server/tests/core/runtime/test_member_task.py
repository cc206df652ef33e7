"""Several tasks in one request: each has its own name, and all together cost a bounded time."""

from datetime import timedelta
from typing import Any

import pytest

from mooring.core.kernel.errors import Code, Refusal
from mooring.core.runtime.member_task import TASKS_AT_ONCE_MAX, MemberTaskRequest, require_distinct


def request(step: str, arguments: dict[str, Any]) -> MemberTaskRequest:
    return MemberTaskRequest("mbr_1", "files.write", step, arguments, timedelta(hours=1))


def test_arguments_that_take_too_long_together_are_refused() -> None:
    """Each task of the largest kind is allowed alone; fifty of them in a request are not."""
    files = [{"path": f"/f{index}", "content": "", "mode": 0o644, "user": "app"} for index in range(256)]
    largest = {"files": files}
    require_distinct([request("one", largest)])
    with pytest.raises(Refusal, match="15000 values") as refused:
        require_distinct([request(f"step-{index}", largest) for index in range(TASKS_AT_ONCE_MAX)])
    assert refused.value.code is Code.VALIDATION_FAILED


def test_a_name_occurs_once() -> None:
    with pytest.raises(Refusal, match="unique"):
        require_distinct([request("same", {}), request("same", {})])
