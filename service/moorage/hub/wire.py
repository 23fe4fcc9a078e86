"""Requests to the hub that can be left at any moment, whatever the other side is doing."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from importlib.metadata import version
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import constants, get_session, get_token, hf_raise_for_status
from huggingface_hub.errors import LocalTokenNotFoundError

from moorage.hub.access import HubAccess
from moorage.hub.turns import LOOK_S
from moorage.protocols import FetchCancelledError, FetchFailedError, Flag

_AHEAD: Final = 64
"""Pieces, of up to 64 KiB, that may have come and are not stored yet."""
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_TOKEN: Final = re.compile(r"[!-~]+")
_AGENT: Final = f"moorage/{version('moorage')}; hf_hub/{version('huggingface_hub')}"

Headers = dict[str, str]


class TooSlowError(httpx2.ReadTimeout):
    """A connection brings next to nothing."""


class UnusableTokenError(ValueError):
    """A token cannot be sent; the error that the client has for it would show it."""


class Wire:
    """How a service reaches the hub. Any thread may ask for a request of its own."""

    def __init__(self, access: HubAccess) -> None:
        self._access = access
        self.endpoint = (access.endpoint or constants.ENDPOINT).rstrip("/")
        self._lock = threading.Lock()
        self._own: httpx2.Client | None = None

    def get(self, url: str, token: str | bool | None, more: Headers, cancelled: Flag) -> Exchange:
        """Begin to get a URL. Whoever asks has to leave the exchange again, by `with`.

        Raises FetchCancelledError, and FetchFailedError where no thread can be started.
        """
        if cancelled.is_set():
            raise FetchCancelledError
        access = self._access
        # Who waits for it knows earlier: this is for the thread of one that was left.
        timeout = httpx2.Timeout(access.answer_timeout_s, read=1.5 * access.stall_timeout_s)

        def begin(extensions: dict[str, Any]) -> AbstractContextManager[httpx2.Response]:
            try:
                client = self._client()
            except (ImportError, ValueError, httpx2.InvalidURL) as error:
                problem = f"the endpoint or the proxy settings cannot be used: {error}"
                raise httpx2.UnsupportedProtocol(problem) from error
            return client.stream(
                "GET",
                url,
                headers={**_headers(token), **more},
                follow_redirects=True,
                timeout=timeout,
                extensions=extensions,
            )

        try:
            return Exchange(begin, access, cancelled)
        except RuntimeError as error:  # which is what `Thread.start` has for it
            raise FetchFailedError(
                f"no thread can be started for a request to the hub ({error}); end some processes, "
                "or raise their limit (`ulimit -u`)",
                "no-thread",
            ) from error

    def _client(self) -> httpx2.Client:
        """Return huggingface_hub's own, which a host may have set up; it knows the proxies.

        They would catch a hub on this machine, too, which they cannot reach.
        """
        if self._access.proxy_loopback or urlsplit(self.endpoint).hostname not in _LOOPBACK:
            return get_session()
        with self._lock:
            if self._own is None:
                self._own = httpx2.Client(
                    mounts={f"all://{_in_url(host)}": None for host in _LOOPBACK},
                    limits=httpx2.Limits(max_keepalive_connections=0),
                )
            return self._own


class Exchange:
    """One request, read by a thread of its own, which touches no file and holds no lock.

    So whoever waits for it can leave at any moment: the thread ends as soon as its socket is shut
    down, or by its timeouts where the socket is not known before the answer: while a name is
    resolved, and on a connection that an earlier request left open.
    """

    def __init__(
        self,
        begin: Callable[[dict[str, Any]], AbstractContextManager[httpx2.Response]],
        access: HubAccess,
        cancelled: Flag,
    ) -> None:
        self._begin = begin
        self._access = access
        self._cancelled = cancelled
        self._came: SimpleQueue[httpx2.Response | bytes | Exception | None] = SimpleQueue()
        self._credit = threading.Semaphore(_AHEAD)
        self._left = False
        self._holding = threading.Lock()
        self._stream: Any = None
        threading.Thread(target=self._read, name="moorage-hub", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._left = True
        self._credit.release()
        with self._holding:
            _shut(self._stream)

    def answer(self) -> httpx2.Response:
        """Return status and headers; its body is to be had by `pieces` alone.

        Raises FetchCancelledError, HfHubHTTPError for a refusal, httpx2.TransportError.
        """
        due = time.monotonic() + self._access.answer_timeout_s
        came = self._next(lambda: _refuse_late(due, self._access.answer_timeout_s))
        if not isinstance(came, httpx2.Response):
            raise TypeError(f"{type(came).__name__} came before the answer")
        return came

    def pieces(self, idle: Callable[[], None] = lambda: None) -> Iterator[bytes]:
        """Yield the body as it comes, and call `idle` whenever nothing has come for a moment.

        Raises what `answer` raises, and TooSlowError.
        """
        pace = _Pace(self._access)
        while (came := self._next(pace.check, idle)) is not None:
            if not isinstance(came, bytes):
                raise TypeError(f"{type(came).__name__} came in the body")
            pace.note(len(came))
            yield came

    def _next(
        self, check: Callable[[], None], idle: Callable[[], None] = lambda: None
    ) -> httpx2.Response | bytes | None:
        while True:
            if self._cancelled.is_set():
                raise FetchCancelledError
            check()
            try:
                came = self._came.get(timeout=LOOK_S)
            except Empty:
                idle()
                continue
            self._credit.release()
            if isinstance(came, Exception):
                raise came
            return came

    # --- in the thread ---

    def _read(self) -> None:
        try:
            with self._begin({"trace": self._traced}) as response:
                self._hold(response.extensions.get("network_stream"))
                hf_raise_for_status(response)
                self._put(response)
                for piece in response.iter_raw():
                    if self._left:
                        return
                    self._put(piece)
            self._came.put(None)
        except httpx2.InvalidURL as error:  # none of the client's own family of errors
            self._came.put(httpx2.UnsupportedProtocol(str(error)))
        except Exception as error:  # noqa: BLE001  whoever waits for it raises it
            self._came.put(error)
        finally:
            self._hold(None)

    def _put(self, came: httpx2.Response | bytes) -> None:
        self._credit.acquire()
        self._came.put(came)

    def _traced(self, name: str, info: dict[str, Any]) -> None:
        """Called by the transport; tells of a connection before anything came by it."""
        if name.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._hold(info.get("return_value"))
        elif name.endswith(".response_closed.started"):  # others may use it from here on
            self._hold(None)

    def _hold(self, stream: Any) -> None:
        with self._holding:
            self._stream = stream
            if self._left:
                _shut(stream)


class _Pace:
    """Tells a slow line from one that has as good as died."""

    def __init__(self, access: HubAccess) -> None:
        self._window_s = access.stall_timeout_s
        self._wanted = access.min_bytes_per_s * access.stall_timeout_s
        self._began = time.monotonic()
        self._came = 0

    def note(self, count: int) -> None:
        self._came += count
        if self._came >= self._wanted:
            self._began, self._came = time.monotonic(), 0

    def check(self) -> None:
        if time.monotonic() - self._began >= self._window_s:
            raise TooSlowError(f"{self._came} bytes came within {self._window_s:g} s")


def _refuse_late(due: float, within_s: float) -> None:
    if time.monotonic() >= due:
        raise httpx2.ReadTimeout(f"no answer came within {within_s:g} s")


def _shut(stream: Any) -> None:
    """End what a thread waits for at a connection; `close` would not wake it."""
    sock = stream.get_extra_info("socket") if stream is not None else None
    if not isinstance(sock, socket.socket) or _shared(sock):
        return
    try:
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # not the one of TLS, which is not for this
    except OSError:
        return  # it is closed already


def _shared(sock: Any) -> bool:
    """Tell whether others speak by the same connection: HTTP/2, where a host has set it up."""
    protocol = getattr(sock, "selected_alpn_protocol", None)
    return protocol is not None and protocol() == "h2"


def _headers(token: str | bool | None) -> Headers:
    """Return what is sent with every request.

    huggingface_hub's own headers come with requests of their own, to tell it who asks.
    """
    headers = {"User-Agent": _AGENT, "Accept-Encoding": "identity"}
    if token is None and not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        token = get_token()
    elif token is True:
        token = get_token()
        if token is None:
            raise LocalTokenNotFoundError("a token is asked for, and none is stored")
    if isinstance(token, str):
        if not _TOKEN.fullmatch(token.strip()):
            raise UnusableTokenError
        headers["Authorization"] = f"Bearer {token.strip()}"
    return headers


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
