"""Who listens on a TCP port: netlink on Linux, else /proc/net, else psutil."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import psutil

from moorage.world.platform import LINUX

_SOCK_DIAG = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY = 20  # SOCK_DIAG_BY_FAMILY
_REQUEST_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_DONE, _ERROR = 3, 2  # NLMSG_DONE, NLMSG_ERROR
_LISTEN = 10  # TCP_LISTEN, also as /proc/net/tcp writes it ("0A")
_V6ONLY = 11  # INET_DIAG_SKV6ONLY
_HEADER = struct.Struct("=IHHII")
_QUERY = struct.Struct("=BBBxI")
_ID = struct.Struct("!HH16s16s")
_MESSAGE_BYTES = 72  # struct inet_diag_msg; attributes follow
_LOOPBACK = bytes((127, 0, 0, 1))
_MAPPED = bytes(10) + b"\xff\xff"


@dataclass(frozen=True, slots=True)
class ListeningSocket:
    """One listening socket. `exact`: bound to 127.0.0.1 itself, so it goes before wildcards.

    `pid` is only known where psutil told it; on Linux ask `owners`.
    """

    port: int
    inode: int
    uid: int
    exact: bool
    pid: int | None = None


def answering(port: int) -> list[ListeningSocket]:
    """Return the sockets that get a connection to 127.0.0.1:port: the exact ones, else wildcards.

    More than one only with SO_REUSEPORT, when the kernel deals connections out among them.
    """
    found = list(_listening(port))
    return [s for s in found if s.exact] or found


def owners(inodes: Iterable[int], pids: Iterable[int]) -> dict[int, set[int]]:
    """Return which of the processes hold which of the sockets, as far as it may be read."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[int, set[int]] = {}
    for pid in pids:
        for inode in _held(pid, wanted):
            found.setdefault(inode, set()).add(pid)
    return found


def _held(pid: int, wanted: dict[str, int]) -> set[int]:
    folder = f"/proc/{pid}/fd"
    held: set[int] = set()
    try:
        for fd in os.listdir(folder):  # noqa: PTH208  speed
            try:
                target = os.readlink(f"{folder}/{fd}")  # noqa: PTH115  speed
            except FileNotFoundError:
                continue  # closed meanwhile
            if target in wanted:
                held.add(wanted[target])
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        pass  # gone, or not ours to look at: what was seen stands
    return held


def _listening(port: int) -> Iterator[ListeningSocket]:
    if not LINUX:
        return _from_psutil(port)
    try:
        return iter(_from_netlink(port))
    except OSError:  # some sandboxes have no sock_diag
        return _from_proc(port)


def _from_netlink(port: int) -> list[ListeningSocket]:
    found: list[ListeningSocket] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _SOCK_DIAG) as s:
        s.settimeout(1.0)
        for family in (socket.AF_INET, socket.AF_INET6):
            query = _QUERY.pack(family, socket.IPPROTO_TCP, 0, 1 << _LISTEN)
            query += _ID.pack(port, 0, bytes(16), bytes(16)) + struct.pack(
                "=III", 0, ~0 & 0xFFFFFFFF, ~0 & 0xFFFFFFFF
            )
            s.send(
                _HEADER.pack(_HEADER.size + len(query), _BY_FAMILY, _REQUEST_DUMP, family, 0)
                + query
            )
            parsed = (_parse(message, port) for message in _messages(s))
            found += [each for each in parsed if each is not None]
    return found


def _messages(s: socket.socket) -> Iterator[bytes]:
    while True:
        data = s.recv(1 << 16)
        while len(data) >= _HEADER.size:
            length, kind, *_ = _HEADER.unpack_from(data)
            if kind == _DONE:
                return
            if kind == _ERROR:
                code = -struct.unpack_from("=i", data, _HEADER.size)[0]
                raise OSError(code, os.strerror(code))
            yield data[_HEADER.size : length]
            data = data[(length + 3) & ~3 :]


def _parse(message: bytes, port: int) -> ListeningSocket | None:
    family = message[0]
    sport, _, source, _ = _ID.unpack_from(message, 4)
    uid, inode = struct.unpack_from("=II", message, 64)
    if sport != port:
        return None
    address = source[:4] if family == socket.AF_INET else source
    if family == socket.AF_INET6 and not any(address) and _v6only(message):
        return None
    return _socket(port, inode, uid, address)


def _v6only(message: bytes) -> bool:
    at = _MESSAGE_BYTES
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if kind == _V6ONLY:
            return bool(message[at + 4])
        at += (max(length, 4) + 3) & ~3
    return False


def _socket(port: int, inode: int, uid: int, address: bytes) -> ListeningSocket | None:
    exact = address in {_LOOPBACK, _MAPPED + _LOOPBACK}
    wildcard = not any(address) or address == _MAPPED + bytes(4)
    return ListeningSocket(port, inode, uid, exact) if exact or wildcard else None


def _from_proc(port: int) -> Iterator[ListeningSocket]:
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/net/{name}", encoding="ascii") as lines:  # noqa: PTH123  beside the others
                rows = [line.split() for line in lines][1:]
        except FileNotFoundError:
            continue
        for row in rows:
            host, _, at = row[1].rpartition(":")
            if int(row[3], 16) != _LISTEN or int(at, 16) != port:
                continue
            words = (int(host[i : i + 8], 16) for i in range(0, len(host), 8))
            address = b"".join(struct.pack("=I", word) for word in words)
            if (found := _socket(port, int(row[9]), int(row[7]), address)) is not None:
                yield found


def _from_psutil(port: int) -> Iterator[ListeningSocket]:
    for process in psutil.process_iter():
        try:
            connections = process.net_connections(kind="tcp")
            uid = process.uids().real
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        for c in connections:
            if c.status != psutil.CONN_LISTEN or c.laddr.port != port:
                continue
            if c.laddr.ip in {"127.0.0.1", "0.0.0.0", "::", "*"}:  # noqa: S104  compared, not bound
                yield ListeningSocket(port, 0, uid, c.laddr.ip == "127.0.0.1", process.pid)
