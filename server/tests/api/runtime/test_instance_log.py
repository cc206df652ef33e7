"""The log of a whole instance over the API: its last lines, a search that goes on by its cursor, an export."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from server.tests.api.runtime.test_member_log import Reader, reader

__all__ = ["reader"]
pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]
LINES = b"2026-01-01T10:00:00Z up\nGET /\n<script>alert(1)</script>\nGET /late\n"


async def asked(reader: Reader, path: str = "/log", **query: Any) -> httpx.Response:
    at = f"/api/v1/projects/{reader.site.project_id}/app-instances/{reader.instance_id}{path}"
    return await reader.client.get(at, params=query)


async def test_the_last_lines_of_all_programs_and_what_follows_by_the_cursor(reader: Reader) -> None:
    answer, task = await asyncio.gather(asked(reader, tail=5), reader.answer(LINES, offset=10, next_offset=76, size=76))
    assert answer.status_code == 200, answer.text
    log = answer.json()
    assert [(each["text"], each["at"], each["ends"]) for each in log["items"]][:2] == [
        ("2026-01-01T10:00:00Z up", "2026-01-01T10:00:00Z", True),
        ("GET /", "2026-01-01T10:00:00Z", True),
    ]
    assert (task["arguments"]["tail_lines"], log["at_end"], log["gaps"][0]["bytes"]) == (5, True, 10)
    unread = [each["member_id"] for each in log["unread"]]  # members whose programs did not start
    assert reader.member_id not in unread
    more, task = await asyncio.gather(asked(reader, cursor=log["next_cursor"], wait=20), reader.answer(b"more\n"))
    assert task["arguments"]["offset"] == 76
    assert [each["text"] for each in more.json()["items"]] == ["more"]
    foreign = await asked(reader, member="mem_" + "0" * 26)
    assert foreign.status_code == 404


async def test_a_search_begins_at_the_oldest_line_and_shows_only_what_matches(reader: Reader) -> None:
    answer, task = await asyncio.gather(asked(reader, grep="GET", member=reader.member_id), reader.answer(LINES))
    assert task["arguments"]["offset"] == 0
    assert [each["text"] for each in answer.json()["items"]] == ["GET /", "GET /late"]
    assert answer.json()["scanned_bytes"] == len(LINES)
    refused = await asked(reader, grep="(a+)+", regex="true")
    assert (refused.status_code, refused.json()["code"]) == (422, "validation_failed")


async def test_an_export_is_everything_that_is_stored_in_lines(reader: Reader) -> None:
    exported, _ = await asyncio.gather(
        asked(reader, "/log/export", format="ndjson", member=reader.member_id), reader.answer(LINES)
    )
    assert exported.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line)["text"] for line in exported.text.splitlines()][1:3] == [
        "GET /",
        "<script>alert(1)</script>",
    ]
    text, _ = await asyncio.gather(asked(reader, "/log/export", member=reader.member_id), reader.answer(LINES))
    assert text.text.splitlines()[-1].endswith(" | GET /late")
    assert "attachment" in text.headers["content-disposition"]
