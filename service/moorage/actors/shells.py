"""The Pykka actors around the plain logic. Daemons: no exit hangs on them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any

import pykka
from pykka import ActorRef

from moorage.actors import messages as msg
from moorage.actors.model import ModelLogic, World, refused
from moorage.actors.registry import Registry
from moorage.actors.threads import Threads
from moorage.errors import MoorageError, ServiceClosedError, ServiceFailedError

_log = logging.getLogger(__name__)


class _QuietActor(pykka.ThreadingActor):
    """A daemon whose inbox may be told to by signal handlers and finalisers."""

    def __init__(self, threads: Threads, name: str) -> None:
        super().__init__()
        self._threads = threads
        self._name = name
        self.actor_inbox = self.actor_ref.actor_inbox = threads.queue()

    def _start_actor_loop(self) -> None:
        # Pykka's hook for other kinds of threads; its own starts a new one each time.
        try:
            self._threads.run(self._name, self._actor_loop)
        except RuntimeError:
            pykka.ActorRegistry.unregister(self.actor_ref)  # a host that stops all would hang
            raise


class RegistryActor(_QuietActor):
    """Feeds the registry. Any exception is fail-stop: every ticket is answered, servers go on."""

    def __init__(
        self, logic: Registry, threads: Threads, on_end: Callable[[str | None], None]
    ) -> None:
        super().__init__(threads, "registry")
        self._logic = logic
        self._on_end = on_end

    def on_receive(self, message: Any) -> None:
        """Handle one message, in the actor's thread. Any exception ends it, honestly.

        That is said before Pykka marks the actor as stopped: in between, who tells it something
        would learn neither that it ended nor an answer.
        """
        try:
            self._logic.handle(message)
        except BaseException as error:
            self._fail(error, message)
            raise

    def on_failure(
        self,
        exception_type: type[BaseException] | None,  # noqa: ARG002  Pykka's hook
        exception_value: BaseException | None,
        traceback: TracebackType | None,  # noqa: ARG002
    ) -> None:
        """Say why, and answer what came meanwhile."""
        _log.critical("the registry stopped", exc_info=exception_value)
        self._fail(exception_value)

    def _fail(self, error: BaseException | None, message: Any = None) -> None:
        reason = f"{type(error).__name__}: {error}"
        self._end(reason, lambda: ServiceFailedError(reason), message)

    def on_stop(self) -> None:
        """Answer what came too late."""
        self._end(None, ServiceClosedError)

    def _end(
        self, reason: str | None, error: Callable[[], MoorageError], died_of: Any = None
    ) -> None:
        self._on_end(reason)  # from here on callers see it themselves
        self._logic.fail(error)
        unanswered = [died_of]
        while not self.actor_inbox.empty():
            unanswered.append(getattr(self.actor_inbox.get(), "message", None))
        for message in unanswered:
            ticket = getattr(message, "ticket", None)
            if ticket is not None:
                ticket.fail(error())


class ModelActor(_QuietActor):
    """Owns the runs of one model while it has any."""

    def __init__(
        self, logic: ModelLogic, threads: Threads, on_death: Callable[[str], None]
    ) -> None:
        super().__init__(threads, f"model-{logic.name}")
        self._logic = logic
        self._on_death = on_death

    def on_receive(self, message: Any) -> None:
        """Start one operation, in the actor's thread."""
        self._logic.handle(message)

    def on_stop(self) -> None:
        """End the workers."""
        self._logic.close()

    def on_failure(
        self,
        exception_type: type[BaseException] | None,  # noqa: ARG002  Pykka's hook
        exception_value: BaseException | None,
        traceback: TracebackType | None,  # noqa: ARG002
    ) -> None:
        """Tell the registry, which goes on with a new actor."""
        _log.error("a model's actor stopped", exc_info=exception_value)
        self._logic.close()
        self._on_death(f"{type(exception_value).__name__}: {exception_value}")


class Directory:
    """The model actors, by model. Used by the registry's thread."""

    def __init__(
        self, world: World, threads: Threads, to_registry: Callable[[msg.ToRegistry], None]
    ) -> None:
        self._world = world
        self._threads = threads
        self._to_registry = to_registry
        self._refs: dict[str, ActorRef[ModelActor]] = {}

    def tell(self, model: str, message: msg.ToModel) -> None:
        """Tell a model's actor, starting it when it has none."""
        ref = self._refs.get(model)
        try:
            if ref is not None:
                ref.tell(message)
                return
        except pykka.ActorDeadError:
            _log.debug("the actor of model %s has ended: it gets another", model)
        if isinstance(message, msg.Forget):
            return
        try:
            ref = self._start(model)
        except RuntimeError as error:  # no thread can be started: limits, or interpreter exit
            self._to_registry(refused(message, f"no thread for the model's actor: {error}"))
        else:
            ref.tell(message)

    def end(self, model: str) -> None:
        """Stop the actor of a model that has no run."""
        ref = self._refs.pop(model, None)
        if ref is not None:
            ref.stop(block=False)

    def end_all(self, timeout_s: float) -> None:
        """Stop all of them and wait for their threads."""
        refs, self._refs = tuple(self._refs.values()), {}
        for ref in refs:
            ref.stop(block=False)
        for ref in refs:
            self._threads.wait(ref.actor_stopped, timeout_s)

    def _start(self, model: str) -> ActorRef[ModelActor]:
        logic = ModelLogic(model, self._world, self._to_registry)

        def died(reason: str) -> None:
            self._to_registry(msg.ActorDied(model, reason))

        ref: ActorRef[ModelActor] = ModelActor.start(logic, self._threads, died)
        self._refs[model] = ref
        return ref
