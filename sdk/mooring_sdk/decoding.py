"""Decode JSON into models, safely from several threads.

msgspec inspects a model on first use, and crashes the process if two threads do that at the same time. So each
model's decoder is made once, under a lock.
"""

import threading
from typing import Any, TypeVar

import msgspec

Model = TypeVar("Model")
_decoders: dict[Any, "msgspec.json.Decoder[Any]"] = {}
_lock = threading.Lock()


def decode(data: bytes, model: type[Model]) -> Model:
    """Decode JSON as this model; raises `msgspec.DecodeError`."""
    decoder = _decoders.get(model)
    if decoder is None:
        with _lock:
            decoder = _decoders.setdefault(model, msgspec.json.Decoder(model))
    read: Model = decoder.decode(data)
    return read
