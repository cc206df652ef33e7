"""The methods of both clients, one for each operation; `methods.pyi` has their types for type checkers and editors.

The clients inherit from these classes, and send the calls.
"""

from mooring_sdk.method_builder import ASYNC, SYNC, install
from mooring_sdk.operations import BY_NAME


class SyncMethods:
    """The methods of the client that blocks."""


class AsyncMethods:
    """The methods of the client for asyncio."""


install(SyncMethods, SYNC, BY_NAME)
install(AsyncMethods, ASYNC, BY_NAME)
