"""The client of Mooring's public API.

    from mooring_sdk import Client

    with Client("https://mooring.example.org", token=token) as client:
        project = client.create_project(tenant_id, slug="vision", display_name="Vision")

`AsyncClient` has the same methods, to be awaited. `errors` has one exception for each error code, `models`
what the API shows. docs/sdk.md is the page to read.
"""

from mooring_sdk import error_codes as errors
from mooring_sdk import models
from mooring_sdk.calls import Call, Operation, ValueRefusedHere
from mooring_sdk.client import AsyncClient, Client
from mooring_sdk.credentials import (
    KeyUnusable,
    ServiceAccountCredentials,
    SignInCredentials,
    TokenCredentials,
)
from mooring_sdk.errors import ConnectionFailed, DeadlineExceeded, MooringError, UnexpectedAnswer
from mooring_sdk.receipts import BundleRefused, VerifiedBundle, VerifiedReceipt, verify_bundle
from mooring_sdk.secret import Secret
from mooring_sdk.session import AddressRefusedHere, Credentials
from mooring_sdk.settings import CallOptions, ClientSettings, Exchange, RetryPolicy, Timing

__all__ = [
    "AddressRefusedHere",
    "AsyncClient",
    "BundleRefused",
    "Call",
    "CallOptions",
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
    "VerifiedReceipt",
    "errors",
    "models",
    "verify_bundle",
]
