"""The worlds that are explored: who takes part in each."""

from __future__ import annotations

from functools import cache

from interleaving import parties
from interleaving.explore import World
from interleaving.steps import Party, Small

USERS = {
    "user": parties.user,
    "forgetful": parties.forgetful,
    "repeating": parties.repeating,
}
TAKING_PART = (*USERS, "sharing", "interrupted", "death", "leaver")
NOBODY = 30
"""The key of those who hold no lease and are not the registry."""

SMALL = (
    "evict user user user",
    "stop user user user",
    "remove user user user",
    "expire user user user",
    "close user user user",
    "stop user forgetful repeating",
    "stop sharing death",
    "stop interrupted death",
    "evict interrupted leaver",
    "evict user user death",
    "evict user death leaver",
    "remove user death leaver",
    "expire user user death",
    "close user user death",
)
"""Seconds each: for every run of the suite."""
WHOLE = (
    "evict user user user death leaver",
    "stop user user user death",
    "remove user user user death leaver",
    "expire user user user death",
    "close user user user death",
    "evict user forgetful repeating death",
    "stop user forgetful repeating death",
    "evict user user sharing death",
    "stop user user sharing death",
    "evict user user interrupted",
    "stop user interrupted death",
)
"""Minutes each: `python -m interleaving` in `tests`, or the soak."""


@cache
def _interrupted(key: int) -> Small:
    """Be interrupted at each instruction: seconds to find, always the same, and in many worlds.

    Of code that a test has changed it would tell what the code was before: no planted fault has it.
    """
    return Small("interrupted", parties.interrupted(key), key)


def world(named: str, *, merged: bool = True, kind: type[Party] = Party) -> World:
    """Make the world of these names: what the registry is asked for, then who takes part."""
    scenario, *names = named.split()
    taking_part: list[Party] = [kind("registry", parties.registry(scenario), 0)]
    for name in names:
        key = len(taking_part)
        match name:
            case "death" | "leaver":
                taking_part.append(Small(name, getattr(parties, name), NOBODY))
            case "sharing":
                taking_part.append(Small(name, parties.sharing(key), key))
                taking_part.append(Small("helper", parties.helper(key), key))
            case "interrupted":
                taking_part.append(_interrupted(key))
            case _:
                taking_part.append(Small(name, USERS[name](key), key))
    return World(*taking_part, hint_may_be_lost="interrupted" in names, merged=merged)
