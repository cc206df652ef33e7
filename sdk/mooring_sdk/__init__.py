"""The client of Mooring's public API.

    from mooring_sdk import Client

    with Client("https://mooring.example.org", token=token) as client:
        project = client.create_project(tenant_id, slug="vision", display_name="Vision")

`AsyncClient` has the same methods, to be awaited. `errors` has one exception for each error code, `models` the types
of the answers. docs/sdk.md is the page to read.

A name is imported when it is first used: a program that needs only a part of the SDK, such as the CLI when it shows
its help, does not wait for the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mooring_sdk import errors, models
    from mooring_sdk.audit_chain import AuditChainVerifier, ChainBroken, VerifiedChain
    from mooring_sdk.calls import Call, ValueRefusedHere
    from mooring_sdk.client import AsyncClient, Client
    from mooring_sdk.credentials import KeyUnusable, ServiceAccountCredentials, SignInCredentials, TokenCredentials
    from mooring_sdk.mooring_error import ConnectionFailed, DeadlineExceeded, MooringError, UnexpectedAnswer
    from mooring_sdk.operation import Operation
    from mooring_sdk.receipts import BundleRefused, VerifiedBundle, VerifiedReceipt, verify_bundle
    from mooring_sdk.secret import Secret
    from mooring_sdk.session import AddressRefusedHere, Credentials
    from mooring_sdk.settings import CallOptions, ClientSettings, Exchange, RetryPolicy, Timing

__all__ = [
    "AddressRefusedHere",
    "AsyncClient",
    "AuditChainVerifier",
    "BundleRefused",
    "Call",
    "CallOptions",
    "ChainBroken",
    "Client",
    "ClientSettings",
    "ConnectionFailed",
    "Credentials",
    "DeadlineExceeded",
    "Exchange",
    "KeyUnusable",
    "MooringError",
    "Operation",
    "RetryPolicy",
    "Secret",
    "ServiceAccountCredentials",
    "SignInCredentials",
    "Timing",
    "TokenCredentials",
    "UnexpectedAnswer",
    "ValueRefusedHere",
    "VerifiedBundle",
    "VerifiedChain",
    "VerifiedReceipt",
    "errors",
    "models",
    "verify_bundle",
]

_NAMES_OF_MODULES = {
    "audit_chain": ("AuditChainVerifier", "ChainBroken", "VerifiedChain"),
    "calls": ("Call", "ValueRefusedHere"),
    "client": ("AsyncClient", "Client"),
    "credentials": ("KeyUnusable", "ServiceAccountCredentials", "SignInCredentials", "TokenCredentials"),
    "errors": ("MooringError", "errors"),  # with the classes that fill `MooringError.known_codes`
    "models": ("models",),
    "mooring_error": ("ConnectionFailed", "DeadlineExceeded", "UnexpectedAnswer"),
    "operation": ("Operation",),
    "receipts": ("BundleRefused", "VerifiedBundle", "VerifiedReceipt", "verify_bundle"),
    "secret": ("Secret",),
    "session": ("AddressRefusedHere", "Credentials"),
    "settings": ("CallOptions", "ClientSettings", "Exchange", "RetryPolicy", "Timing"),
}
_MODULE_OF = {name: module for module, names in _NAMES_OF_MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_MODULE_OF[name]}")
    globals()[name] = found = module if name == _MODULE_OF[name] else getattr(module, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
