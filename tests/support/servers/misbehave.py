"""A small HTTP server that misbehaves as told. Standard library only.

Start it with `python -S -E misbehave.py --port N ...`: it serves within some 20 ms. It prints
`serving N` once it listens, and one line for each thing it does; `--tell FIFO` says the same to a
waiting test.
"""

import os
import select
import signal
import socket
import sys
import time

_STARTED = time.monotonic()
_FOREVER_S = 300.0  # whatever goes wrong in a test, nothing outlives it for longer


class Options:
    """What to do wrong. `--some-name VALUE` on the command line; a bare flag where it is False."""

    port = 0
    host = "127.0.0.1"
    name = "model"  # named in completions
    share = False  # SO_REUSEPORT: several servers get a part of the connections each
    bind_after = 0.0  # seconds
    never_bind = False
    loading = 0.0  # seconds /health says 503
    ready_file = ""  # /health says 503 until this file exists
    health_status = 200
    sick_file = ""  # while this file exists, completions fail and /health says that all is well
    mute = False  # accept connections and never answer
    drip = False  # answer one byte every 10 ms, without an end
    ignore_term = False
    terms = 1  # how many SIGTERMs it takes
    print = ""  # a line to write; "|" separates several
    exit = -1  # exit at once with this code, after printing
    die_after = 0.0  # seconds until it exits with 3, while loading
    kill_self = 0  # a signal's number
    stop_self = False  # SIGSTOP itself once it listens
    flood = False  # write log lines without end
    eat = 0  # bytes of memory
    wipe = False  # overwrite the environment, as setproctitle does, children too
    child = False  # keep a child in the same session
    child_holds_port = False  # a child keeps the listening socket
    detached = False  # a child with a session of its own
    daemon = False  # a grandchild detached by double fork and setsid
    orphan = False  # exit with 0 once the children are there
    tell = ""  # a FIFO that gets what it says, too
    pids = ""  # a file to which all children append their kind and pid

    def __init__(self, arguments: "list[str]") -> None:
        # argparse takes longer to import than all of the rest to run.
        rest = list(arguments)
        while rest:
            name = rest.pop(0).removeprefix("--").replace("-", "_")
            default = getattr(Options, name)
            setattr(self, name, True if default is False else type(default)(rest.pop(0)))


_told: "list[int]" = []


def say(line: str) -> None:
    for fd in (1, *_told):
        os.write(fd, f"{line}\n".encode())


# --- children ---


def _fork(options: Options, kind: str, keep: "socket.socket | None" = None) -> None:
    """Fork one child and wait until it stands."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            os.close(reader)
            if kind in ("daemon", "detached"):
                os.setsid()
            if kind == "daemon" and os.fork() != 0:
                os._exit(0)
            _stand(options, kind, writer)
            while keep is None or keep.fileno() >= 0:
                signal.pause()
        finally:
            os._exit(1)
    os.close(writer)
    os.read(reader, 1)
    os.close(reader)
    if kind == "daemon":
        os.wait()


def _stand(options: Options, kind: str, writer: int) -> None:
    """Be deaf to SIGTERM, and tell everybody that this child is complete."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.alarm(int(_FOREVER_S))
    if options.wipe:
        wipe_environment()
    if options.pids:
        fd = os.open(options.pids, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, f"{kind} {os.getpid()}\n".encode())
        os.close(fd)
    say(f"{kind} {os.getpid()}")
    os.write(writer, b"1")
    os.close(writer)


def wipe_environment() -> None:
    """Zero the memory that /proc/PID/environ shows."""
    import ctypes  # noqa: PLC0415  costs a third of the start, and few need it

    with open("/proc/self/stat", "rb") as file:  # noqa: PTH123  pathlib costs the start as much
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[47]), int(fields[48])  # env_start and env_end, fields 50 and 51
    ctypes.memset(start, 0, end - start)


# --- serving ---


class Server:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.listener = self._bind()
        self.sockets: dict[int, socket.socket] = {}

    def _bind(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.options.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self.options.share:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            listener.bind((self.options.host, self.options.port))
        except OSError as error:
            say(f"cannot bind: {error.strerror}")
            sys.exit(98)
        listener.listen(64)
        say(f"serving {listener.getsockname()[1]}")
        return listener

    def serve(self) -> None:
        poll = select.poll()
        poll.register(self.listener, select.POLLIN)
        while True:
            for fd, _ in poll.poll(1 if self.options.flood else 10_000):
                if fd == self.listener.fileno():
                    connection, _ = self.listener.accept()
                    self.sockets[connection.fileno()] = connection
                    poll.register(connection, select.POLLIN)
                elif not self.options.mute:
                    poll.unregister(fd)
                    self.answer(self.sockets.pop(fd))
            if self.options.flood:
                os.write(1, b"flood " * 2000 + b"\n")
            if time.monotonic() - _STARTED > _FOREVER_S:
                sys.exit(9)

    def answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                request = connection.recv(65536)
                while b"\r\n\r\n" not in request:
                    more = connection.recv(65536)
                    if not more:
                        return
                    request += more
                if self.options.drip:
                    self._drip(connection)
                connection.sendall(self._response(request.split(b" ")[1].decode()))
            except OSError:
                return  # the client has gone

    def _drip(self, connection: socket.socket) -> None:
        while True:
            connection.sendall(b"H")
            select.select([], [], [], 0.01)

    def _response(self, path: str) -> bytes:
        if path == "/health":
            status, body = self._health()
        elif path == "/v1/chat/completions":
            sick = self.options.sick_file and os.path.exists(self.options.sick_file)  # noqa: PTH110
            status = 500 if sick else 200
            body = (
                f'{{"object":"chat.completion","model":"{self.options.name}","choices":[{{"index":0,'
                f'"message":{{"role":"assistant","content":"{self.options.name}"}}}}]}}'
            )
        else:
            status, body = 404, '{"error":"no such path"}'
        return (
            f"HTTP/1.1 {status} -\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
        ).encode()

    def _health(self) -> "tuple[int, str]":
        loading = time.monotonic() - _STARTED < self.options.loading
        missing = self.options.ready_file and not os.path.exists(self.options.ready_file)  # noqa: PTH110
        if loading or missing:
            return 503, '{"error":{"message":"Loading model"}}'
        return self.options.health_status, '{"status":"ok"}'


def _on_term(options: Options) -> None:
    left = [options.terms]

    def handler(*_: object) -> None:
        left[0] -= 1
        say("term")
        if left[0] <= 0:
            os._exit(0)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if options.ignore_term else handler)


def _before_serving(options: Options) -> None:
    _on_term(options)
    if options.print:
        say(options.print.replace("|", "\n"))
    if options.exit >= 0:
        sys.exit(options.exit)
    if options.kill_self:
        os.kill(os.getpid(), options.kill_self)
    if options.wipe:
        wipe_environment()
    for kind in ("child", "detached", "daemon"):
        if getattr(options, kind):
            _fork(options, kind)
    if options.die_after:
        select.select([], [], [], options.die_after)
        say("died in warm-up")
        sys.exit(3)


def main() -> None:
    options = Options(sys.argv[1:])
    if options.tell:
        _told.append(os.open(options.tell, os.O_WRONLY))
    ballast = bytearray(os.urandom(1)) * options.eat
    _before_serving(options)
    if options.never_bind:
        say("not binding")
        select.select([], [], [], _FOREVER_S)
        sys.exit(9)
    if options.bind_after:
        select.select([], [], [], options.bind_after)
    server = Server(options)
    if options.child_holds_port:
        _fork(options, "holder", server.listener)
    if options.orphan:
        sys.exit(0)
    if options.stop_self:
        os.kill(os.getpid(), signal.SIGSTOP)
    server.serve()
    del ballast


if __name__ == "__main__":
    main()
