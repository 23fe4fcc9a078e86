"""Keep model servers running from an embedded, event-sourced actor service."""

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
