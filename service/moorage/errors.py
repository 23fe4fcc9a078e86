"""The tree of errors. Each says what was asked, what stood in the way and what to do next."""

from __future__ import annotations

from collections.abc import Sequence


class MoorageError(Exception):
    """Base of every error Moorage raises on purpose."""


# --- what was asked cannot be meant ---


class ConfigurationError(MoorageError, ValueError):
    """A spec, a limit or an option has a value that cannot be used.

    `subject` names what was wrong (`"port range"`, `"ModelSpec.name"`), `problem` says why.
    """

    def __init__(self, subject: str, problem: str) -> None:
        super().__init__(f"{subject}: {problem}")
        self.subject = subject
        self.problem = problem


class UnknownModelError(MoorageError, LookupError):
    """No model has this name or alias (any more)."""

    def __init__(self, name: str, near: Sequence[str] = ()) -> None:
        hint = f"; did you mean {', '.join(near)}?" if near else "; define it first"
        super().__init__(f"no model is called {name!r}{hint}")
        self.name = name
        self.near = tuple(near)


class NameClashError(ConfigurationError):
    """A name or alias already belongs to another model."""

    def __init__(self, name: str, owner: str) -> None:
        super().__init__("name", f"{name!r} already belongs to model {owner!r}; choose another")
        self.name = name
        self.owner = owner


class QueryError(MoorageError, ValueError):
    """A question in SQL is wrong, would write, or takes too long; `problem` says which."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"the query cannot be answered: {problem}")
        self.problem = problem


# --- the state folder and its log ---


class StateError(MoorageError):
    """The state folder or its log cannot be used; `path` names it."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class StateInUseError(StateError):
    """Another service owns this log; `owner` describes it (pid, host, since)."""

    def __init__(self, path: str, owner: str) -> None:
        super().__init__(
            path, f"already owned by {owner}; close that one first, or wait with wait_s="
        )
        self.owner = owner


class NotALogError(StateError):
    """The file is no Moorage event log."""


class NewerSchemaError(StateError):
    """The log was written by a newer Moorage; upgrade the program."""


class CorruptLogError(StateError):
    """The log contradicts itself; `seq` names the first bad row, 0 when none can be named."""

    def __init__(self, path: str, seq: int, problem: str) -> None:
        super().__init__(path, f"row {seq}: {problem}; run `moorage verify`")
        self.seq = seq


class LogUnavailableError(MoorageError):
    """The log cannot be written now (disk full, read-only, locked).

    New loads are refused; ready models go on being served, and the next append that
    succeeds ends this state by itself.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(
            f"the event log {path} cannot be written: {problem}; "
            "free space or permissions, then try again (ready models are still served)"
        )
        self.path = path
        self.problem = problem


# --- the service ---


class ServiceClosedError(MoorageError):
    """The service is closed or closing."""

    def __init__(self, asked: str = "this call") -> None:
        super().__init__(f"{asked}: the service is closed; open it again")


class ServiceFailedError(MoorageError):
    """The registry stopped on an internal error; servers are kept, reopening recovers."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the registry stopped on an internal error ({reason}); "
            "its servers go on; close this service and open the state again"
        )
        self.reason = reason


class ForkedError(MoorageError):
    """The service was opened by the parent of this forked process."""

    def __init__(self) -> None:
        super().__init__(
            "this process was forked from the owner of the service; open services after forking"
        )


class CloseIncompleteError(MoorageError):
    """`close` reached its deadline; `left` names what still lives."""

    def __init__(self, left: Sequence[str]) -> None:
        super().__init__(
            f"close reached its deadline, left: {', '.join(left)}; "
            "stop these by hand or open the state again to sweep them"
        )
        self.left = tuple(left)


# --- asking for a model ---


class QueueFullError(MoorageError):
    """Too many callers are waiting already; `limit` is the number allowed."""

    def __init__(self, limit: int, retry_after_s: float) -> None:
        super().__init__(
            f"{limit} callers are waiting already; try again in about {retry_after_s:g} s"
        )
        self.limit = limit
        self.retry_after_s = retry_after_s


class WaitTimeoutError(MoorageError, TimeoutError):
    """The caller's own deadline passed before the answer came."""

    def __init__(self, asked: str, timeout_s: float, state: str) -> None:
        super().__init__(
            f"{asked}: not done within {timeout_s:g} s ({state}); "
            "wait longer, or look at status() for what stands in the way"
        )
        self.asked = asked
        self.timeout_s = timeout_s
        self.state = state


class NoRoomError(MoorageError):
    """Room can never be made as things stand; `holders` names who has it and why it stays."""

    def __init__(self, model: str, need: str, holders: Sequence[str]) -> None:
        held = ", ".join(holders) if holders else "the limits alone"
        super().__init__(
            f"no room for {model!r} ({need}): held by {held}; unpin one, or raise the limits"
        )
        self.model = model
        self.holders = tuple(holders)


class PortPoolExhaustedError(MoorageError):
    """No port of the pool is free; `holders` names the runs that have them."""

    def __init__(self, pool: str, holders: Sequence[str]) -> None:
        super().__init__(
            f"no free port in {pool}: held by {', '.join(holders) or 'strangers'}; "
            "stop a model, or open the service with a larger range"
        )
        self.pool = pool
        self.holders = tuple(holders)


class WouldDeadlockError(MoorageError):
    """The room this request needs is held by leases of the very same caller."""

    def __init__(self, model: str, held: Sequence[str]) -> None:
        super().__init__(
            f"room for {model!r} would need your own leases of {', '.join(held)} to end; "
            "release one first, or take them together with lease_all"
        )
        self.model = model
        self.held = tuple(held)


class ModelHeldError(MoorageError):
    """The model was stopped on purpose and refuses leases until it is started."""

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(f"{model!r} is held ({reason}); start it to end the hold")
        self.model = model
        self.reason = reason


class ModelUnavailableError(MoorageError):
    """The model crashed lately (`backoff`) or too often (`failed`); `last` is what happened.

    `stage` and `reason` as in LoadError.
    """

    def __init__(
        self,
        model: str,
        status: str,
        last: str,
        retry_after_s: float | None,
        *,
        stage: str = "",
        reason: str = "",
    ) -> None:
        then = (
            f"it is tried again in {retry_after_s:.1f} s, or by start()"
            if retry_after_s is not None
            else "reset() or start() ends this"
        )
        super().__init__(f"{model!r} is in {status}: {last}; {then}")
        self.model = model
        self.status = status
        self.last = last
        self.retry_after_s = retry_after_s
        self.stage = stage
        self.reason = reason


class LoadError(MoorageError):
    """A run ended before it was ready.

    `stage` is one of `fetch`, `prepare`, `log`, `launch`, `port`, `load`, `ready`, `exit`; `code`
    and `signal` are those of the server's exit where it is known; `log_tail` its last lines.
    `reason` says for programs why a fetch failed, such as `gated`; the docs of the hub list all.
    """

    def __init__(
        self,
        model: str,
        run: int,
        stage: str,
        problem: str,
        *,
        code: int | None = None,
        signal: int | None = None,
        log_tail: Sequence[str] = (),
        reason: str = "",
    ) -> None:
        tail = "".join(f"\n    | {line}" for line in log_tail)
        super().__init__(f"{model!r} (run {run}) failed at {stage}: {problem}{tail}")
        self.model = model
        self.run = run
        self.stage = stage
        self.problem = problem
        self.code = code
        self.signal = signal
        self.log_tail = tuple(log_tail)
        self.reason = reason


class LoadCancelledError(MoorageError):
    """The run was stopped or its model removed before it became ready."""

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(f"the load of {model!r} was cancelled: {reason}")
        self.model = model
        self.reason = reason


class StopFailedError(MoorageError):
    """Something of a run outlived SIGKILL; its port and room stay taken until it exits."""

    def __init__(self, model: str, run: int, pids: Sequence[int], problem: str) -> None:
        listed = ", ".join(map(str, pids)) or "unknown"
        super().__init__(
            f"{model!r} (run {run}) could not be stopped: {problem} (pids {listed}); "
            "its port and room stay taken until it exits"
        )
        self.model = model
        self.run = run
        self.pids = tuple(pids)
