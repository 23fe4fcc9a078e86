"""Real code as the tree of what it does with shared objects, under every answer they may give.

A gate, its holders, the hall's table and the inbox are replaced by objects that ask a `Script` at
every access. The script knows the answers so far; at the first access without one the run ends,
and that access is what the code does next. So the code itself, run again and again, tells all that
it can ever do, and nobody has to write it down a second time.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from moorage.actors.gate import Gate
from moorage.actors.hall import Hall
from moorage.core.room import Usage

Access = tuple[Any, ...]
"""What is done, then what with: `("closed?",)`, `("pop", 2)`, `("send", "emptied")`."""

WATCHED = frozenset({"closed", "dead", "holders"})
"""Fields of a gate that several threads read and write, and that decide something."""
HINTS = frozenset({"used_at", "ready_at", "tickets", "_counted"})
"""Fields that order or count what is decided elsewhere: each use is one step of its own."""
FIXED = frozenset({"model", "run", "port", "ports", "on_empty", "now"})
"""Fields that nobody changes."""


class Pause(BaseException):
    """The code came to an access that has no answer yet."""


class Script:
    """Answers accesses from a list; silent before `armed` and once the run is over."""

    def __init__(self, answers: Iterable[Any] = ()) -> None:
        self._answers = list(answers)
        self._at = 0
        self.armed = False
        self.access: Access | None = None
        self.over = False

    def ask(self, *access: Any) -> Any:
        """Return the answer to an access, or end the run there."""
        if not self.armed:
            return None
        if self.over:  # finalisers and `finally` blocks of a run that has ended
            if access[0] in ("receive", "choose", "shared?", "point"):
                raise Pause
            return None
        if self._at < len(self._answers):
            self._at += 1
            return self._answers[self._at - 1]
        self.access, self.over = access, True
        raise Pause

    def point(self, tell: Callable[[], tuple[Any, bool]]) -> None:
        """Say what all the future depends on, and whether that names keys."""
        if self.armed and not self.over and self._at < len(self._answers):
            self._at += 1
        elif self.armed:
            self.ask("point", *(() if self.over else tell()))


class WatchedHolders:
    """In place of the dict of holders; each operation is one step, as it is for a dict.

    What it keeps are this party's own entries: the weak references in them have to live.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._own: dict[int, Any] = {}

    def __setitem__(self, key: int, value: Any) -> None:
        self._script.ask("add", key)
        self._own[key] = value

    def pop(self, key: int, default: Any = None) -> Any:
        present = self._script.ask("pop", key)
        value = self._own.pop(key, None)
        return value if present else default

    def __contains__(self, key: int) -> bool:
        return bool(self._script.ask("has", key))

    def __bool__(self) -> bool:
        return bool(self._script.ask("any?"))

    def __len__(self) -> int:
        return int(self._script.ask("count?") or 0)

    def __iter__(self) -> Iterator[int]:
        return iter(self._script.ask("who?") or ())

    def values(self) -> list[tuple[object, object]]:
        return [(f"owner {key}", None) for key in self]


class WatchedGate(Gate):
    """A gate whose shared fields are steps. Its tickets are one number: who enters has one key."""

    __slots__ = ("_holders", "_script")

    def __init__(self, script: Script, on_empty: Callable[[int], None], key: int = 0) -> None:
        self._script = script
        self._holders = WatchedHolders(script)
        super().__init__(model="a", run=1, ports=(18000,), on_empty=on_empty, now=lambda: 0.0)
        if key:
            self.tickets = itertools.count(key, 0)

    @property
    def closed(self) -> bool:  # type: ignore[override]
        return bool(self._script.ask("closed?"))

    @closed.setter
    def closed(self, value: bool) -> None:
        self._script.ask("closed=", bool(value))

    @property
    def dead(self) -> bool:  # type: ignore[override]
        return bool(self._script.ask("dead?"))

    @dead.setter
    def dead(self, value: bool) -> None:
        self._script.ask("dead=", bool(value))

    @property
    def holders(self) -> Any:  # type: ignore[override]
        return self._holders

    @holders.setter
    def holders(self, value: object) -> None:
        """The gate makes its own; ours is there already."""


class _WatchedGates(dict[int, Gate]):
    """The hall's gates by run: changed by the registry, and read by who sees a death."""

    def __init__(self, script: Script, *, foreign: bool) -> None:
        super().__init__()
        self._script = script
        self._foreign = foreign

    def get(self, key: int, default: Any = None) -> Any:
        if self._foreign and not self._script.ask("gated?"):
            return default
        return super().get(key, default)

    def pop(self, key: int, *default: Any) -> Any:
        if key in self:
            self._script.ask("ungate")
        return super().pop(key, *default)


class WatchedHall(Hall):
    """A hall whose table, and whose gates where they are `foreign`, are steps."""

    def __init__(
        self,
        script: Script,
        on_empty: Callable[[int], None],
        *,
        key: int = 0,
        foreign: bool = False,
    ) -> None:
        self._script = script
        self.observing: Callable[[], object] = lambda: None
        super().__init__(lambda: 0.0, on_empty)
        self._gates = _WatchedGates(script, foreign=foreign)
        self.gate = self._gates[1] = WatchedGate(script, on_empty, key)

    def observe(self) -> dict[int, Usage]:
        self.observing()
        return Hall.observe(self)

    @property
    def table(self) -> dict[str, Gate]:  # type: ignore[override]
        return {"a": self.gate} if self._script.ask("table?") else {}

    @table.setter
    def table(self, value: dict[str, Gate]) -> None:
        self._script.ask("table=", "a" in value)


class Party:
    """One that takes part: its real code, discovered access by access.

    A node is what was answered so far; `accesses` says what comes next, None at the end. A
    `("point", what)` is no access: the code says there all that its future depends on, and what
    was answered before is forgotten.
    """

    def __init__(self, name: str, work: Callable[[Script], None], key: int) -> None:
        self.name = name
        self.key = key
        self.start = 0
        self.work = work
        self._points: dict[Access, int] = {}
        self._paths: list[tuple[Any, ...]] = [()]
        self._next: list[dict[Any, int]] = [{}]
        self.knows_keys: list[bool] = [False]
        self.accesses: list[Access | None] = [self._run(())]

    def after(self, node: int, answer: Any) -> int:
        """Return the node that an answer leads to."""
        known = self._next[node].get(answer)
        if known is None:
            knows_keys = self.knows_keys[node] or isinstance(answer, tuple)
            known = self._found((*self._paths[node], answer), knows_keys=knows_keys)
            self._next[node][answer] = known
        return known

    def _found(self, path: tuple[Any, ...], *, knows_keys: bool) -> int:
        access = self._run(path)
        if access is not None and access[0] == "point" and access in self._points:
            return self._points[access]
        node = len(self.accesses)
        if access is not None and access[0] == "point":
            self._points[access] = node
            knows_keys = access[2]
        self.knows_keys.append(knows_keys)
        self._paths.append(path)
        self._next.append({})
        self.accesses.append(access)
        return node

    def _run(self, answers: tuple[Any, ...]) -> Access | None:
        script = Script(answers)
        try:
            self.work(script)
        except Pause:
            pass
        except Exception as error:  # noqa: BLE001  it is judged where it can be reached
            if script.access is None:
                script.access = ("error", repr(error))
        finally:
            script.over = True
        return script.access


ANSWERS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("closed?", "dead?", "table?", "gated?", "any?", "has", "pop"), (False, True)),
    **dict.fromkeys(("closed=", "dead=", "add", "send", "shared?", "mark"), (None,)),
}
"""What an access of a small party may be answered."""


class Small(Party):
    """A party of which everything is found at once, and equal futures are one node."""

    def __init__(self, name: str, work: Callable[[Script], None], key: int) -> None:
        super().__init__(name, work, key)
        found: dict[Any, int] = {}
        accesses: list[Access | None] = []
        following: list[dict[Any, int]] = []

        def merge(node: int) -> int:
            access = self.accesses[node]
            choices: Iterable[Any] = ()
            if access is not None and access[0] != "error":
                choices = range(access[1]) if access[0] == "choose" else ANSWERS[access[0]]
            after = {answer: merge(Party.after(self, node, answer)) for answer in choices}
            shape = (access, tuple(after.items()))
            if shape not in found:
                found[shape] = len(accesses)
                accesses.append(access)
                following.append(after)
            return found[shape]

        self.start = merge(0)
        self.accesses, self._next = accesses, following

    def shape(self, node: int | None = None) -> Any:
        """Return all that can be done from a node on, comparable between parties."""
        at = self.start if node is None else node
        return (self.accesses[at], tuple((a, self.shape(n)) for a, n in self._next[at].items()))


class quiet_finalisers:  # noqa: N801  used as a function
    """Take what is raised in finalisers: pauses may be, and interrupts that a party plays."""

    def __enter__(self) -> list[type[BaseException] | None]:
        self._before = sys.unraisablehook
        self.seen: list[type[BaseException] | None] = []
        sys.unraisablehook = lambda one: self.seen.append(one.exc_type)
        return self.seen

    def __exit__(self, *_: object) -> None:
        sys.unraisablehook = self._before
