"""A real headless Chromium, driven over the pipe of its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

LIMIT_S = 30.0
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--disable-crash-reporter",
    "--disable-breakpad",
    "--hide-scrollbars",
    "--disable-site-isolation-trials",
    "--renderer-process-limit=1",
    "--disable-features=BackForwardCache,ProactivelySwapBrowsingInstances,SpareRendererForSitePerProcess",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)


def found() -> str | None:
    """Return where Chromium is, None when it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Chromium:
    """One page in one browser. Use it in a `with` block; all waits are bounded."""

    def __init__(self, home: Path, *, width: int = 1200, height: int = 760) -> None:
        program = found()
        assert program is not None, "Chromium is not installed"
        self._number = 0
        self._session: str | None = None
        self._buffer = b""
        self.events: list[dict[str, Any]] = []
        # Its socket lies in TMPDIR, and the path of a socket has 107 bytes at most.
        self._temp = tempfile.TemporaryDirectory(prefix="moorage-", dir="/tmp")
        self._said = home / "stderr"
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        command = [program, *_FLAGS, f"--user-data-dir={home / 'profile'}"]
        command.append(f"--window-size={width},{height}")
        # The protocol wants descriptors 3 and 4; dash is there wherever Debian is.
        script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        places = {"HOME": str(home), "XDG_CONFIG_HOME": str(home), "TMPDIR": self._temp.name}
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                ["/bin/bash", "-c", script, "chromium", *command, "about:blank"],
                pass_fds=(theirs_in, theirs_out),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                env={**os.environ, **places},
                start_new_session=True,
            )
        os.close(theirs_in)
        os.close(theirs_out)

    def __enter__(self) -> Self:
        try:
            self._attach()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, AssertionError):
            self.call("Browser.close", of_browser=True)
        try:
            self._process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(LIMIT_S)
        # The helpers end on their own once the browser is gone; not all of them at once.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        os.close(self._in)
        os.close(self._out)
        self._temp.cleanup()

    def open(self, page: Path, *, dark: bool = False) -> None:
        """Load a file and wait until its scripts have run."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        self.wait(lambda: any(e["method"] == "Page.loadEventFired" for e in self.events))

    def evaluate(self, expression: str) -> Any:
        """Return the JSON value of an expression; promises are awaited, errors raised."""
        told = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def paint(self) -> None:
        """Wait until what was asked to be drawn is drawn."""
        frame = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        self.evaluate(f"{frame}.then(() => 1)")

    def key(self, key: str) -> None:
        """Press and release a key."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.paint()

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Dispatch `mouseMoved`, `mousePressed`, `mouseReleased` or `mouseWheel`."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        """Click with the left button."""
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", buttons=1, clickCount=1)
        self.paint()

    def screenshot(self, target: Path) -> None:
        """Write what is seen as PNG."""
        target.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def wait(self, is_so: Callable[[], bool]) -> None:
        """Read what the browser tells until it is so; bounded."""
        deadline = time.monotonic() + LIMIT_S
        while not is_so():
            self._take(deadline)

    def call(self, method: str, *, of_browser: bool = False, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result; bounded."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None and not of_browser:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + LIMIT_S
        while True:
            told = self._take(deadline)
            if told.get("id") == number:
                assert "error" not in told, (method, told["error"])
                result: dict[str, Any] = told["result"]
                return result

    def _attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        told = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = told["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def _take(self, deadline: float) -> dict[str, Any]:
        """Return the next message; events are kept as well."""
        while b"\0" not in self._buffer:
            with selectors.DefaultSelector() as selector:
                selector.register(self._in, selectors.EVENT_READ)
                ready = selector.select(max(0.0, deadline - time.monotonic()))
            assert ready, "Chromium does not answer"
            part = os.read(self._in, 1 << 20)
            assert part, f"Chromium is gone, it said:\n{self._said.read_text(errors='replace')}"
            self._buffer += part
        raw, _, self._buffer = self._buffer.partition(b"\0")
        told: dict[str, Any] = json.loads(raw)
        if "method" in told:
            self.events.append(told)
        return told
