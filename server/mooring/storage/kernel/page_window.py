"""The window of rows that a list function reads.

Lists are read by keyset pagination: the rows after a given key, in the order of that key, up to a limit. Every list
function takes the same type, so that the key and the limit cannot be swapped.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PageWindow:
    """Which rows to read: those after the key `after`, at most `limit` of them.

    `after` is the key of the last row of the previous page. For the first page it sorts before every key: the empty
    string for a list in ascending order, a value above every id for a list that shows the newest rows first.
    """

    after: str
    limit: int
