"""JSON as models, from as many threads as one likes.

What a model is made of is found out when it is first used, and msgspec does that in a way which two threads must not
go at the same time: the program would crash. So it is done under a lock, once for each model.
"""

import threading
from typing import Any, TypeVar

import msgspec

Model = TypeVar("Model")
_decoders: dict[Any, "msgspec.json.Decoder[Any]"] = {}
_making = threading.Lock()


def decode(data: bytes, model: type[Model]) -> Model:
    """What the bytes say, as this model; raises what msgspec does."""
    decoder = _decoders.get(model)
    if decoder is None:
        with _making:
            decoder = _decoders.setdefault(model, msgspec.json.Decoder(model))
    read: Model = decoder.decode(data)
    return read
