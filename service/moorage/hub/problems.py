"""Says what a failed fetch means and what to do: by type, then cause, then status."""

from __future__ import annotations

import errno
import re
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

import httpx2
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from moorage.core.words import seconds
from moorage.hub.listing import NotAHubError
from moorage.hub.part import NO_SPACE
from moorage.hub.wire import TooSlowError, UnusableTokenError
from moorage.protocols import FetchFailedError
from moorage.spec import ModelSpec

# ValueError: an answer that is none of a hub, and names the client refuses.
HUB_ERRORS: Final = (httpx2.HTTPError, OSError, ValueError)
# The last two: a login page answers in the place of the hub.
_NO_ANSWER: Final = (
    httpx2.TransportError,
    OfflineModeIsEnabled,
    NotAHubError,
    httpx2.TooManyRedirects,
)
_NEVER_BETTER: Final = (httpx2.UnsupportedProtocol, httpx2.LocalProtocolError)
_HIDDEN: Final = re.compile(r"(?<=://)[^/@\s]+@|(?<=\?)[^\s'\"]+")
"""Of an address: a login in it, and what signs it."""
_SECONDS: Final = re.compile(r"[0-9]{1,9}")
_RESET: Final = re.compile(r";\s*t\s*=\s*([0-9]{1,9})(?![0-9])")
"""In how many seconds the hub's own header says that more requests are allowed."""
_LOGIN: Final = "`hf auth login`, HF_TOKEN, or HF_TOKEN among the secrets"
_UNAUTHORIZED: Final = 401
_DENIED: Final = frozenset({401, 403})
_TOO_MANY: Final = 429
_NOT_OF_IT: Final = frozenset({407, _TOO_MANY})
"""A proxy's, or one that tells nothing of what was asked for."""
_SERVER_ERRORS: Final = 500
_AGAIN: Final = frozenset({408, 429, 500, 502, 503, 504})
_NOT_WRITABLE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_NO_ROUTE: Final = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN})


def is_unreachable(error: Exception) -> bool:
    """Tell whether the hub did not answer, so that a cached copy is as good as can be had."""
    if isinstance(error, HfHubHTTPError):
        return _status(error) >= _SERVER_ERRORS or _status(error) in _NOT_OF_IT
    return isinstance(error, _NO_ANSWER)


def may_pass(error: Exception) -> bool:
    """Tell whether the same request may succeed a little later."""
    if isinstance(error, HfHubHTTPError):
        return _status(error) in _AGAIN
    never = isinstance(error, _NEVER_BETTER) or _is_untrusted(error)
    return isinstance(error, httpx2.TransportError) and not never


def told_to_wait_s(error: Exception) -> float | None:
    """Return the seconds the hub asks for before the next request, None when it does not."""
    if not isinstance(error, HfHubHTTPError):
        return None
    headers = error.response.headers
    asked = headers.get("Retry-After", "")
    if _SECONDS.fullmatch(asked):
        return float(asked)
    try:
        at = parsedate_to_datetime(asked)
    except ValueError:
        found = _RESET.search(headers.get("RateLimit", ""))
        return float(found[1]) if found is not None and _status(error) == _TOO_MANY else None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())


def explain(error: Exception, spec: ModelSpec, endpoint: str) -> FetchFailedError:
    """Return what the caller is told: one sentence, and a reason for programs."""
    endpoint = _HIDDEN.sub("", endpoint)
    if isinstance(error, HfHubHTTPError):
        return _refused(error, spec, endpoint)
    if isinstance(error, httpx2.HTTPError | OfflineModeIsEnabled):
        return _not_reached(error, spec, endpoint)
    if isinstance(error, HFValidationError):
        return FetchFailedError(
            f"{spec.repo!r} cannot be a repo of the hub: {_first_line(error)}", "unknown-repo"
        )
    if isinstance(error, UnusableTokenError | LocalTokenNotFoundError):
        what = "is none" if isinstance(error, UnusableTokenError) else "is not stored"
        return FetchFailedError(f"the token for {spec.repo} {what}; give one by {_LOGIN}", "denied")
    if isinstance(error, OSError):
        return _local(error, spec)
    return FetchFailedError(
        f"{endpoint} does not answer as a hub does ({_first_line(error)}); check HF_ENDPOINT",
        "not-a-hub",
    )


def _refused(error: HfHubHTTPError, spec: ModelSpec, endpoint: str) -> FetchFailedError:
    match error:
        case GatedRepoError():
            return FetchFailedError(
                f"{spec.repo} is gated: accept its terms at {endpoint}/{spec.repo}, then give a "
                f"token ({_LOGIN})",
                "gated",
            )
        case RepositoryNotFoundError():
            return FetchFailedError(
                f"{endpoint} has no repo {spec.repo!r}, or it is private; correct the name, or "
                f"give a token that may read it ({_LOGIN})",
                # Without a token it does not tell which.
                "private" if _status(error) == _UNAUTHORIZED else "unknown-repo",
            )
        case RevisionNotFoundError():
            return FetchFailedError(
                f"{spec.repo} has no revision {spec.revision!r}; correct it or leave it out",
                "unknown-revision",
            )
        case RemoteEntryNotFoundError():
            return FetchFailedError(
                f"{spec.repo} has no such file ({_first_line(error)}); correct the file's name",
                "unknown-file",
            )
        case DisabledRepoError():
            return FetchFailedError(
                f"{spec.repo} was disabled by the hub; choose another repo", "disabled"
            )
        case _:
            return _refused_by_status(error, spec, endpoint)


def _refused_by_status(error: HfHubHTTPError, spec: ModelSpec, endpoint: str) -> FetchFailedError:
    status = _status(error)
    if status in _DENIED:
        return FetchFailedError(
            f"{endpoint} does not allow {spec.repo} (status {status}) to this token, or to none; "
            f"give one that may read it ({_LOGIN})",
            "denied",
        )
    if status == _TOO_MANY:
        return FetchFailedError(
            f"{endpoint} asks for fewer requests (status {status}); try again {_when(error)}, or "
            "with a token, which is allowed more",
            "rate-limited",
        )
    if status >= _SERVER_ERRORS:
        return FetchFailedError(
            f"{endpoint} fails (status {status}); try again {_when(error)}", "hub-down"
        )
    return FetchFailedError(
        f"{endpoint} refuses {spec.repo} (status {status}): {_first_line(error)}", "refused"
    )


def _when(error: HfHubHTTPError) -> str:
    after = told_to_wait_s(error)
    return "later" if after is None else f"in {seconds(after)}"


def _not_reached(error: Exception, spec: ModelSpec, endpoint: str) -> FetchFailedError:
    detail = _first_line(error)
    match error:
        case OfflineModeIsEnabled():
            return FetchFailedError(
                f"{spec.repo} is not complete in the cache, and offline mode forbids to fetch it; "
                "unset HF_HUB_OFFLINE, or give a local path",
                "offline",
            )
        case TooSlowError():
            return FetchFailedError(
                f"{endpoint} sends next to nothing ({detail}); try again: what has come is kept",
                "too-slow",
            )
        case httpx2.TimeoutException():
            return FetchFailedError(
                f"{endpoint} does not answer in time ({detail}); check the network, then try again",
                "hub-down",
            )
        case httpx2.ConnectError() if _is_untrusted(error):
            return FetchFailedError(
                f"{endpoint} does not prove who it is ({detail}); where a proxy stands in between, "
                "name its certificates by SSL_CERT_FILE",
                "untrusted",
            )
        case httpx2.ConnectError() | httpx2.ProxyError() | httpx2.UnsupportedProtocol():
            return FetchFailedError(
                f"{endpoint} cannot be reached ({detail}); check the network, the proxy settings "
                "and HF_ENDPOINT",
                "no-network" if _is_network(error) else "hub-down",
            )
        case _:
            return FetchFailedError(
                f"the connection to {endpoint} broke off ({detail}); try again: what has come is "
                "kept",
                "broken-off",
            )


def _is_untrusted(error: Exception) -> bool:
    return any(isinstance(cause, ssl.SSLCertVerificationError) for cause in _causes(error))


def _is_network(error: Exception) -> bool:
    """Tell whether it is this side that has no way to the hub, as far as can be known."""
    return isinstance(error, httpx2.ProxyError | httpx2.UnsupportedProtocol) or any(
        isinstance(cause, socket.gaierror)
        or (isinstance(cause, OSError) and cause.errno in _NO_ROUTE)
        for cause in _causes(error)
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause = error.__cause__ or error.__context__
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _local(error: OSError, spec: ModelSpec) -> FetchFailedError:
    path = error.filename2 or error.filename  # the second is where it was to go
    where = f" at {path}" if path else ""
    if error.errno in NO_SPACE:
        return FetchFailedError(
            f"no space is left for {spec.repo}{where}; free some, or move the cache by HF_HOME",
            "disk-full",
        )
    if error.errno in _NOT_WRITABLE:
        return FetchFailedError(
            f"the cache is not writable{where}; correct its owner, or move it by HF_HOME",
            "not-writable",
        )
    return FetchFailedError(
        f"{spec.repo} cannot be stored{where}: {error.strerror or error}; correct that, or move "
        "the cache by HF_HOME",
        "not-stored",
    )


def _status(error: HfHubHTTPError) -> int:
    return int(error.response.status_code)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return _HIDDEN.sub("", lines[0]) if lines else type(error).__name__
