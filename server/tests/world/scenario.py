"""What a seed determines: where the world begins, what the person asks for, and what goes wrong."""

from collections.abc import Callable
from random import Random
from typing import Any, Final

from mooring_echo.__main__ import ECHO
from server.tests.world.app import APP
from server.tests.world.checks import Watch, wrong_at_the_end
from server.tests.world.node import Trouble
from server.tests.world.prepared_database import PreparedDatabase
from server.tests.world.schedule import Faults, SimulatedWorld

TOPOLOGIES: Final = ({"seed": 1}, {"seed": 1}, {"seed": 1, "worker": 1}, {"seed": 1, "gate": 1, "worker": 1})


ANYWHERE: Final[tuple[list[str], ...]] = (
    ["drain"], ["drain", "resume"], ["replace"], ["upgrade"], ["upgrade", "rollback"], ["restart"], ["repair"],
    ["reconcile"], ["action"], ["release"], ["upgrade", "cancel"], ["restart", "cancel"], ["drain", "cancel"],
    ["replace", "cancel"], ["upgrade", "upgrade"], ["repair", "action"],
)  # fmt: skip
SHARING: Final[tuple[list[str], ...]] = (
    ["attach"], ["attach", "attached"], ["attach", "detach"], ["attach", "attached", "detach", "attached"],
    ["attach", "cancel"], ["attach", "detach", "hurry"], ["attach", "attached", "upgrade", "detach"],
    ["attach", "detach", "attach"], ["attach", "release"],
)  # fmt: skip
"""What is asked for another project; only of an app whose adapter knows attachments."""
GROWING: Final[tuple[list[str], ...]] = (
    ["add"],
    ["add", "cancel"],
    ["surge"],
    ["surge", "cancel"],
    ["add", "remove"],
    ["add", "release"],
)
"""Only where new members may be requested to run beside the others."""
SHRINKING: Final[tuple[list[str], ...]] = (["remove"], ["force"], ["remove", "cancel"], ["remove", "add"])
BEGINNINGS: Final = ("single", "single", "room", "room", "room", "running", "housed", "upgraded")


def beginning(chance: Random, *, shared: bool = True) -> tuple[str, list[Any]]:
    """Where the world begins, and all that is wished for: always with a stop at the end."""
    drawn = chance.random()
    if drawn < 0.12:
        first = ("create", chance.choice(TOPOLOGIES), chance.choice(("own", "own", "keep")))
        return "bare", [first, *_intents(chance, "single"), "stop"]
    if drawn < 0.22:
        return "kept", [("create", chance.choice(TOPOLOGIES), "existing"), *_intents(chance, "room"), "stop"]
    name = chance.choice(BEGINNINGS)
    intents = _intents(chance, name)
    if shared and chance.random() < 0.15:
        intents = list(chance.choice(SHARING))
    if chance.random() < 0.04:  # a few have much to do
        intents += [each for _ in range(3) for each in _intents(chance, name)]
    return name, [*intents, "stop"]


def _intents(chance: Random, name: str) -> list[Any]:
    if chance.random() < 0.3:
        return []  # the stop alone
    if name in ("running", "housed") and chance.random() < 0.4:
        return list(chance.choice(SHRINKING))
    if name in ("single", "running", "upgraded") and chance.random() < 0.35:
        return list(chance.choice(GROWING))
    if name == "upgraded" and chance.random() < 0.5:
        return ["rollback"]
    return list(chance.choice(ANYWHERE))


def faults_of(chance: Random) -> Faults:
    """What goes wrong: some seeds have a little of everything, most have much of a few things."""

    def some(rate: float) -> float:
        return rate if chance.random() < 0.5 else 0.0

    return Faults(
        dies=some(0.25),
        stalls=some(0.1),
        leaps=some(0.08),
        hasty=some(0.15),
        trouble=Trouble(
            fails=some(0.1), interrupts=some(0.15), forgets=some(0.15), repeats=some(0.3), leaves=some(0.2)
        ),
        unreachable=some(0.05),
        loses=chance.random() < 0.5,
        scarce=chance.random() < 0.05,
        stops_late=chance.random() < 0.5,
        steps=chance.choice((20, 40, 60)),
        distrusts=0.08 if chance.random() < 0.25 else 0.0,
    )


async def run_seed(
    prepared: PreparedDatabase,
    seed: int,
    listener: Callable[[str], None] | None = None,
    *,
    faults_of: Callable[[Random], Faults] = faults_of,
    watch_also: Callable[[SimulatedWorld], object] | None = None,
) -> SimulatedWorld:
    """The whole run of a seed; an AssertionError names it."""
    chance = Random(f"schedule {seed}")
    played = ECHO if seed % 10 == 0 else APP
    name, intents = beginning(chance, shared=played is APP)
    world = await prepared.world(name, seed, played)
    if listener is not None:
        world.listeners.append(listener)
    world.person.intents = intents
    faults = faults_of(chance)
    world.say(f"begins {name}; intents {world.person.intents}; {faults}")
    watch = Watch(world)
    if watch_also is not None:
        watch_also(world)
    try:
        await world.run(faults)
        wrong = await wrong_at_the_end(world)
        assert not wrong, "; ".join(wrong)
        assert watch.looks, "nobody looked when it was called stopped"
    except Exception as error:
        last = "\n".join(world.trace[-12:])
        raise AssertionError(
            f"seed {seed}: {type(error).__name__}: {error}\n{last}\n"
            f"all of it: .venv/bin/python -m server.tests.world {seed}"
        ) from error
    return world
