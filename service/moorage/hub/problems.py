"""Says what a failed fetch means and what to do, by type, then cause, then status."""

from __future__ import annotations

import errno
from typing import Final

import httpx2
from huggingface_hub.errors import (
    DisabledRepoError,
    EntryNotFoundError,
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from moorage.spec import ModelSpec

# ValueError: an answer that is no JSON, and names the client refuses.
HUB_ERRORS: Final = (httpx2.HTTPError, OSError, ValueError, EntryNotFoundError)
_TOO_MANY: Final = 429
_SERVER_ERRORS: Final = 500
_DENIED: Final = frozenset({401, 403})
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NOT_WRITABLE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def is_unreachable(error: BaseException) -> bool:
    """Tell whether the hub did not answer, so that a cached copy is as good as can be had."""
    if isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
        return is_unreachable(error.__cause__)
    if isinstance(error, HfHubHTTPError):
        status = _status(error)
        return status >= _SERVER_ERRORS or status == _TOO_MANY
    return isinstance(error, httpx2.TransportError | OfflineModeIsEnabled)


def explain(error: BaseException, spec: ModelSpec, endpoint: str) -> str:
    """Return one sentence for FetchFailedError."""
    if isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
        return explain(error.__cause__, spec, endpoint)
    if isinstance(error, HfHubHTTPError):
        return _refused(error, spec, endpoint)
    if isinstance(error, httpx2.HTTPError | OfflineModeIsEnabled):
        return _not_reached(error, spec, endpoint)
    if isinstance(error, HFValidationError):
        return f"{spec.repo!r} cannot be a repo of the hub: {_first_line(error)}"
    if isinstance(error, FileMetadataError) or not isinstance(error, OSError):
        return f"{endpoint} does not answer as a hub does ({_first_line(error)}); check HF_ENDPOINT"
    return _local(error, spec)


def _refused(error: HfHubHTTPError, spec: ModelSpec, endpoint: str) -> str:
    match error:
        case GatedRepoError():
            return (
                f"{spec.repo} is gated: accept its terms at {endpoint}/{spec.repo}, then give a "
                "token (`hf auth login`, or HF_TOKEN among the secrets)"
            )
        case RepositoryNotFoundError():
            return (
                f"{endpoint} has no repo {spec.repo!r}, or it is private; correct the name, or "
                "give a token that may read it (`hf auth login`, or HF_TOKEN among the secrets)"
            )
        case RevisionNotFoundError():
            return f"{spec.repo} has no revision {spec.revision!r}; correct it or leave it out"
        case RemoteEntryNotFoundError():
            return f"{spec.repo} has no such file ({_first_line(error)}); correct the file's name"
        case DisabledRepoError():
            return f"{spec.repo} was disabled by the hub; choose another repo"
        case _:
            return _refused_by_status(error, spec, endpoint)


def _refused_by_status(error: HfHubHTTPError, spec: ModelSpec, endpoint: str) -> str:
    status = _status(error)
    if status in _DENIED:
        return (
            f"{endpoint} does not allow {spec.repo} to this token (status {status}); "
            "give one that may read it (`hf auth login`, or HF_TOKEN among the secrets)"
        )
    if status == _TOO_MANY:
        after = error.response.headers.get("Retry-After")
        when = f"in {after} s" if after else "later"
        return f"{endpoint} asks for fewer requests (status {status}); try again {when}"
    if status >= _SERVER_ERRORS:
        return f"{endpoint} fails (status {status}); try again later"
    return f"{endpoint} refuses {spec.repo} (status {status}): {_first_line(error)}"


def _not_reached(error: BaseException, spec: ModelSpec, endpoint: str) -> str:
    detail = _first_line(error)
    if isinstance(error, OfflineModeIsEnabled):
        return (
            f"{spec.repo} is not complete in the cache, and offline mode forbids to fetch it; "
            "unset HF_HUB_OFFLINE, or give a local path"
        )
    if isinstance(error, httpx2.TimeoutException):
        return f"{endpoint} does not answer in time ({detail}); check the network, then try again"
    if isinstance(error, httpx2.ConnectError | httpx2.ProxyError | httpx2.UnsupportedProtocol):
        return (
            f"{endpoint} cannot be reached ({detail}); check the network, the proxy settings and "
            "HF_ENDPOINT"
        )
    return f"the connection to {endpoint} broke off ({detail}); try again"


def _local(error: OSError, spec: ModelSpec) -> str:
    where = f" at {error.filename}" if error.filename else ""
    if error.errno in _NO_SPACE:
        return f"no space is left for {spec.repo}{where}; free some, or move the cache by HF_HOME"
    if error.errno in _NOT_WRITABLE:
        return f"the cache is not writable{where}; correct its owner, or move it by HF_HOME"
    if error.errno is None:
        # The client's own check of a complete answer, which has no number.
        return f"{spec.repo} arrived incomplete ({_first_line(error)}); try again"
    return f"{spec.repo} cannot be stored{where}: {error.strerror}"


def _status(error: HfHubHTTPError) -> int:
    return int(error.response.status_code)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
