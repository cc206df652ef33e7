"""The long form of the tests (`make soak`): other seeds in every run, and the seed is printed.

`MOORING_SOAK=1` selects the long form. `MOORING_SOAK_SEED` repeats a run; without it a seed is drawn here, once for all
workers. The tests that draw their own chance start from it, and property tests by Hypothesis get it too.
"""

import os
import random

SOAK = "MOORING_SOAK"
SEED = "MOORING_SOAK_SEED"
SEED_MAX = 1_000_000
PROFILE = "soak"


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
