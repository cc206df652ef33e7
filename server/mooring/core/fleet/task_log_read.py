"""Reads of logs: what tells the result of `log.read` from others.

A read that a person asked for is quiet: it leaves no event and no audit row, as no other reading does, and is kept
for an hour. What it read may hold secrets of the app, and is listed nowhere.
"""

from typing import Final

LOG_READ: Final = "log.read"
CONTENT: Final = "content_base64"
"""The field of the result that holds what was read."""
