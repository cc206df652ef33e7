"""Log reads: what is special about the result of `log.read`.

A read for a person is quiet: like every other read it leaves no event and no audit row. It is deleted after an hour.
Its content may contain secrets of the app, so no list shows it.
"""

from typing import Final

LOG_READ: Final = "log.read"
CONTENT: Final = "content_base64"
"""The field of the result with the content that was read."""
