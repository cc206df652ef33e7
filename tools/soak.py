"""The long form of the tests (`make soak`): other seeds in every run, and the seed is printed.

`MOORING_SOAK=1` selects the long form. `MOORING_SOAK_SEED` repeats a run; without it a seed is drawn here, once for all
workers. The tests that draw their own chance start from it, and property tests by Hypothesis get it too.

A fuzzer says by `played` what it has tried. `conftest.py` attaches the count to the test's report, and the summary of
the run shows it: a fuzzer that passes without having tried anything is seen.
"""

import os
import random

SOAK = "MOORING_SOAK"
SEED = "MOORING_SOAK_SEED"
SEED_MAX = 1_000_000
PROFILE = "soak"
INPUTS = "inputs"
"""The property of a test's report that says how many inputs a fuzzer played."""
_played = 0


def is_soak() -> bool:
    """Whether this is a long run."""
    return os.environ.get(SOAK) == "1"


def seed() -> int:
    """The seed of this run; the same number in every short one."""
    return int(os.environ.get(SEED, "0")) if is_soak() else 0


def options() -> list[str]:
    """What pytest has to be given in a long run; draws the seed and prints it."""
    if not is_soak():
        return []
    os.environ.setdefault(SEED, str(random.SystemRandom().randrange(1, SEED_MAX)))
    print(f"seed of this soak: {seed()} (repeat it with {SEED}={seed()} make soak)", flush=True)
    return [f"--hypothesis-profile={PROFILE}", f"--hypothesis-seed={seed()}"]


def played(inputs: int = 1) -> None:
    """Count inputs that the running test tried."""
    global _played  # a test may count in functions that know nothing of pytest
    _played += inputs


def take_played() -> int:
    """The inputs since the last call."""
    global _played
    inputs, _played = _played, 0
    return inputs
