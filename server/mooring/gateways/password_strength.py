"""How easy a password is to guess, by the estimate of the library zxcvbn (decision 31).

It knows the 30,000 commonest passwords of breaches, common words and names, and what people do to them: other letters,
a number at the end, repeats, sequences, rows of the keyboard, dates. It is loaded when the first password is set.
"""

from threading import Lock
from typing import Any, Final

from mooring.gateways.lazy_import import lazy_module

GUESSES_MIN: Final = 10**8
"""How many guesses a password must withstand by estimate, of somebody who knows how people choose passwords."""
LENGTH_MAX: Final = 24
"""How much of a password is estimated. The time grows fast with the length: 85 ms for a hostile one of this length."""

_zxcvbn: Any = lazy_module("zxcvbn")
_one_at_a_time: Final = Lock()
"""The library keeps the words of a call in a table that all calls share."""


def weakness_of(password: str, known: tuple[str, ...]) -> str | None:
    """Why the password is too easy to guess for somebody who knows these words; None when it is not."""
    with _one_at_a_time:
        estimate = _zxcvbn.zxcvbn(password[:LENGTH_MAX], user_inputs=list(known))
    if estimate["guesses"] >= GUESSES_MIN:
        return None
    return str(estimate["feedback"]["warning"] or "This is easy to guess.").removesuffix(".")
