"""Messages over Unix sockets: non-blocking, in order, and authenticated by a key that all processes of a run know."""

from __future__ import annotations

import hashlib
import hmac
import os
import pickle
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

HUB = 0
DRIVER = 1

_FRAME = struct.Struct("<I")
_FD = struct.Struct("@i")
_HELLO = struct.Struct("<8sQ32s")
_MAGIC = b"outplay1"
_CHUNK = 1 << 18
_MAX_FDS = 16

Message = tuple[Any, ...]


class _ThreadState(threading.local):
    """The buffer that a thread reads into, for all its channels.

    A new one for each read would be slow: it is large enough for the C library to return its memory to the system each
    time, and every page of the next one is then a page fault.
    """

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(_CHUNK))


_thread = _ThreadState()


def socket_path(folder: str, index: int) -> str:
    return str(Path(folder) / f"{index}")


def _proof(key: bytes, sender: int, receiver: int) -> bytes:
    return hmac.digest(key, _MAGIC + struct.pack("<QQ", sender, receiver), hashlib.sha256)


# A reply often arrives faster than a sleeping process wakes up. So poll for this long before sleeping, as long as waits
# turn out to be that short.
_SPIN_S = 0.0003
_MAX_POLL_S = 3600.0  # the system counts milliseconds in 32 bits
_yield_core: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))  # not every system has it


class Poll:
    """Waits for any of several descriptors: spins for a short time, then sleeps."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._waits_are_short = True

    def watch(self, fd: int, out: bool = False) -> None:
        """Wait for a descriptor to be readable and, with `out`, to be writable."""
        self._poll.register(fd, select.POLLIN | (select.POLLOUT if out else 0))

    def ignore(self, fd: int) -> None:
        self._poll.unregister(fd)

    def wait(self, timeout: float | None, spin: bool = True) -> list[int]:
        """The descriptors that are ready; an empty list after `timeout` seconds, or after one hour."""
        start = time.perf_counter()
        if spin and self._waits_are_short:
            while time.perf_counter() - start < _SPIN_S:
                _yield_core()  # the process that will reply may need this core
                if ready := self._poll.poll(0):
                    return [fd for fd, _ in ready]
        milliseconds = None if timeout is None else int(min(timeout, _MAX_POLL_S) * 1000 + 0.999)
        ready = self._poll.poll(milliseconds)
        self._waits_are_short = time.perf_counter() - start < 2 * _SPIN_S
        return [fd for fd, _ in ready]


class WrongKeyError(ConnectionError):
    """A process without the run's key has connected."""


class Channel:
    """A connection. `send` queues data while the socket is full; `messages` returns complete messages.

    Data from an accepted connection is not unpickled before the other side has proved that it knows the key.
    """

    def __init__(self, sock: socket.socket, peer: int | None) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.takes_fds = peer == HUB  # only the hub sends descriptors
        self.closed = False  # the end of the stream was read
        self._broken = False  # sending has failed; data received before is still valid
        self.fds: deque[int] = deque()  # received before the message that they belong to
        self._in = bytearray()
        self._out: deque[tuple[memoryview, list[int]]] = deque()

    @classmethod
    def connect(cls, folder: str, key: bytes, sender: int, receiver: int) -> Channel:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(socket_path(folder, receiver))
            sock.sendall(_HELLO.pack(_MAGIC, sender, _proof(key, sender, receiver)))
        except BaseException:
            sock.close()
            raise
        return cls(sock, receiver)

    def accept_hello(self, key: bytes, receiver: int) -> bool:
        """Whether the other side has authenticated itself. Raises WrongKeyError if it does not know the key."""
        if len(self._in) < _HELLO.size:
            return False
        magic, sender, proof = _HELLO.unpack_from(self._in)
        if magic != _MAGIC or not hmac.compare_digest(proof, _proof(key, sender, receiver)):
            raise WrongKeyError("a process without the run's key tried to connect")
        del self._in[: _HELLO.size]
        self.peer = sender
        return True

    def send(self, message: Message, fds: list[int] | None = None) -> None:
        """Send as much as the socket takes and queue the rest."""
        data = pickle.dumps(message, protocol=5)
        frame = _FRAME.pack(len(data)) + data
        sent = 0
        if not self._out and not fds and not self._broken:
            try:
                sent = self.sock.send(frame)
            except BlockingIOError:
                pass
            except OSError:
                self._broken = True
        if sent < len(frame) and not self._broken:
            # Duplicates: the caller may close its descriptors before these are sent.
            self._out.append((memoryview(frame)[sent:], [os.dup(fd) for fd in fds or []]))
            if fds:
                self.flush()

    def flush(self) -> None:
        """Send as much of the queue as the socket takes."""
        while self._out:
            data, fds = self._out[0]
            try:
                sent = socket.send_fds(self.sock, [data], fds) if fds else self.sock.send(data)
            except BlockingIOError:
                return
            except OSError:
                self._broken = True
                self._discard_queue()
                return
            for fd in fds:
                os.close(fd)
            if sent == len(data):
                self._out.popleft()
            else:
                self._out[0] = (data[sent:], [])

    @property
    def pending(self) -> bool:
        return bool(self._out)

    def _discard_queue(self) -> None:
        for _, fds in self._out:
            for fd in fds:
                os.close(fd)
        self._out.clear()

    def read(self) -> None:
        """Read all available data. Sets `closed` at the end of the stream."""
        while not self.closed:
            buffer = _thread.buffer
            try:
                if self.takes_fds:
                    size, ancillary, _, _ = self.sock.recvmsg_into([buffer], socket.CMSG_SPACE(_MAX_FDS * _FD.size))
                    self._take_fds(ancillary)
                else:
                    size = self.sock.recv_into(buffer)
            except BlockingIOError:
                return
            except OSError:
                self.closed = True
                return
            if size == 0:
                self.closed = True
            self._in += buffer[:size]
            # A read ends at each attached descriptor, even if more data is available.
            if size < _CHUNK and not self.takes_fds:
                return

    def _take_fds(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                for (fd,) in _FD.iter_unpack(data[: len(data) - len(data) % _FD.size]):
                    os.set_inheritable(fd, False)
                    self.fds.append(fd)

    def messages(self) -> list[Message]:
        """The complete messages that have been read."""
        found: list[Message] = []
        start, end = 0, len(self._in)
        with memoryview(self._in) as view:
            while end - start >= _FRAME.size:
                (length,) = _FRAME.unpack_from(view, start)
                if end - start - _FRAME.size < length:
                    break
                start += _FRAME.size
                found.append(pickle.loads(view[start : start + length]))
                start += length
        if start == end:
            self._in.clear()
        elif start:
            del self._in[:start]
        return found

    def close(self) -> None:
        self.closed = self._broken = True
        self.sock.close()
        self._discard_queue()
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()


def listen(folder: str, index: int) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(socket_path(folder, index))
    sock.listen(1024)
    sock.setblocking(False)
    return sock
