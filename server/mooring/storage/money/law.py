"""What must hold in the tables of money, as statements that find a counterexample.

Each module of this wing lists its own laws as `LAWS`; a proof runs all of them and shows how much each one checked.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Law:
    """One law: a sentence that people read, and two statements without parameters.

    `checked` returns one number: how many rows the law speaks of. `counterexample` returns one row with one text that
    names what breaks it, or no row.
    """

    key: str
    sentence: str
    checked: str
    counterexample: str
