"""Keep model servers running from an embedded, event-sourced actor service."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moorage.actors.gate import JointLease, Lease
    from moorage.compose import Parts
    from moorage.core.audit import Finding
    from moorage.core.events import Entry, Event
    from moorage.errors import (
        CloseIncompleteError,
        ConfigurationError,
        CorruptLogError,
        ForkedError,
        LoadCancelledError,
        LoadError,
        LogUnavailableError,
        ModelHeldError,
        ModelUnavailableError,
        MoorageError,
        NameClashError,
        NewerSchemaError,
        NoRoomError,
        NotALogError,
        PortPoolExhaustedError,
        QueryError,
        QueueFullError,
        ServiceClosedError,
        ServiceFailedError,
        StateError,
        StateInUseError,
        StopFailedError,
        UnknownModelError,
        WaitTimeoutError,
        WouldDeadlockError,
    )
    from moorage.feed import Skipped, Subscription
    from moorage.hub import HubAccess
    from moorage.service import ModelService
    from moorage.spec import ModelSpec
    from moorage.status import ModelStatus, ServiceStatus

__all__ = [
    "CloseIncompleteError",
    "ConfigurationError",
    "CorruptLogError",
    "Entry",
    "Event",
    "Finding",
    "ForkedError",
    "HubAccess",
    "JointLease",
    "Lease",
    "LoadCancelledError",
    "LoadError",
    "LogUnavailableError",
    "ModelHeldError",
    "ModelService",
    "ModelSpec",
    "ModelStatus",
    "ModelUnavailableError",
    "MoorageError",
    "NameClashError",
    "NewerSchemaError",
    "NoRoomError",
    "NotALogError",
    "Parts",
    "PortPoolExhaustedError",
    "QueryError",
    "QueueFullError",
    "ServiceClosedError",
    "ServiceFailedError",
    "ServiceStatus",
    "Skipped",
    "StateError",
    "StateInUseError",
    "StopFailedError",
    "Subscription",
    "UnknownModelError",
    "WaitTimeoutError",
    "WouldDeadlockError",
]

_WHERE = {
    name: module
    for module, names in {
        "moorage.actors.gate": (
            "JointLease",
            "Lease",
        ),
        "moorage.compose": ("Parts",),
        "moorage.core.audit": ("Finding",),
        "moorage.core.events": (
            "Entry",
            "Event",
        ),
        "moorage.errors": (
            "CloseIncompleteError",
            "ConfigurationError",
            "CorruptLogError",
            "ForkedError",
            "LoadCancelledError",
            "LoadError",
            "LogUnavailableError",
            "ModelHeldError",
            "ModelUnavailableError",
            "MoorageError",
            "NameClashError",
            "NewerSchemaError",
            "NoRoomError",
            "NotALogError",
            "PortPoolExhaustedError",
            "QueryError",
            "QueueFullError",
            "ServiceClosedError",
            "ServiceFailedError",
            "StateError",
            "StateInUseError",
            "StopFailedError",
            "UnknownModelError",
            "WaitTimeoutError",
            "WouldDeadlockError",
        ),
        "moorage.feed": (
            "Skipped",
            "Subscription",
        ),
        "moorage.hub": ("HubAccess",),
        "moorage.service": ("ModelService",),
        "moorage.spec": ("ModelSpec",),
        "moorage.status": (
            "ModelStatus",
            "ServiceStatus",
        ),
    }.items()
    for name in names
}


def __getattr__(name: str) -> Any:
    """Import what is asked for only then: commands answer at once, and Ctrl-C finds them ready."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value
