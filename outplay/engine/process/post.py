"""The sockets of a process: sending messages, waiting for them, and requests to the hub.

One thread at a time reads messages: the leader. A thread that waits for a message becomes the leader if there is none,
otherwise a follower. So most messages are read by the thread that needs them, without a thread switch. While user code
runs and no thread waits, a helper thread leads.
"""

from __future__ import annotations

import itertools
import os
import select
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from outplay.engine.process.wire import HUB, Channel, Message, Poll, WrongKeyError, listen
from outplay.errors import EngineError

_HELPER_INTERVAL_S = 0.05
_MAX_WAIT_S = 3600.0  # the timeout of a lock is limited
_HANDLER_CHECK_S = 0.01  # between checks of the SIGINT handler: a check takes longer than sending a message


class Post:
    """Sends messages to other processes. Calls `on_message` and `on_closed`, with `lock` held, for incoming events."""

    def __init__(
        self,
        folder: str,
        key: bytes,
        index: int,
        on_message: Callable[[int, Message], None],
        on_closed: Callable[[int], None],
    ) -> None:
        self.index = index
        self.lock = threading.RLock()
        self.closed: str | None = None  # the reason, once it is closed
        self._folder, self._key = folder, key
        self._on_message, self._on_closed = on_message, on_closed
        self._on_idle: Callable[[], None] = lambda: None
        self._changed = threading.Condition(self.lock)
        self._leader: threading.Thread | None = None
        self._followers = 0
        self._turns = 0  # how often a thread has led: tells the helper whether other threads still wait for messages
        self._helper_leads = False
        self._kick = threading.Event()
        self._later: deque[Callable[[], object]] = deque()
        self._requests = itertools.count()
        self._replies: dict[int, Any] = {}
        self._poll = Poll()
        self._by_fd: dict[int, Channel] = {}
        self._channels: dict[int, Channel] = {}
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._poll.watch(self._wake_read)
        self._listener = listen(folder, index)
        self._poll.watch(self._listener.fileno())
        self.uninterrupted = Uninterrupted()
        if self._connect(HUB) is None:
            raise EngineError("the hub does not answer")
        self._helper = threading.Thread(target=self._help, name="outplay-post", daemon=True)
        register_at_fork(self)

    def start(self, on_idle: Callable[[], None]) -> None:
        """Start the helper thread. It calls `on_idle` from time to time."""
        self._on_idle = on_idle
        self._helper.start()

    # Sending

    def send(self, to: int, message: Message) -> bool:
        """Send a message, or queue it while the socket is full. Returns False if the process is gone."""
        with self.uninterrupted, self.lock:
            channel = self._channels.get(to) or self._connect(to)
            if channel is None:
                return False
            if to != HUB:
                self._flush_hub()
            channel.send(message)
            if channel.pending:
                self._watch(channel)
            return True

    def _flush_hub(self) -> None:
        """Send everything queued for the hub. The hub must know it before another process acts on the next message."""
        hub = self._channels.get(HUB)
        while hub is not None and hub.pending:
            # The hub never blocks, so this does not take long.
            room = select.poll()
            room.register(hub.fd, select.POLLOUT)
            room.poll(1000)
            hub.flush()

    def request(self, kind: str, *args: Any) -> Any:
        """Send a request to the hub and wait for the reply. Raises the reply if it is an exception."""
        number = next(self._requests)
        with self.uninterrupted:  # a lost reply may be a segment that is never freed
            self.send(HUB, (kind, number, *args))
            self.wait_until(lambda: number in self._replies)
            with self.lock:
                reply = self._replies.pop(number)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def connect(self, to: int) -> bool:
        """Connect to a process. Returns False if it is gone; raises EngineError if the connection fails otherwise."""
        with self.uninterrupted, self.lock:
            return to in self._channels or self._connect(to) is not None

    def _connect(self, to: int) -> Channel | None:
        if self.closed is not None:
            return None
        try:
            channel = Channel.connect(self._folder, self._key, self.index, to)
        except (FileNotFoundError, ConnectionError):
            return None  # that process is gone
        except OSError as error:
            raise EngineError(f"no connection to another process could be made: {error}") from error
        self._add(channel)
        self._channels[to] = channel
        return channel

    def _add(self, channel: Channel) -> None:
        self._by_fd[channel.fd] = channel
        self._watch(channel)

    def _watch(self, channel: Channel) -> None:
        self._poll.watch(channel.fd, out=channel.pending)
        if self._leader is not None and self._leader is not threading.current_thread():
            self.wake()  # the leader's poll does not see the change otherwise
        elif channel.pending:
            self._kick.set()

    # Waiting

    def wait_until(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Handle messages until `done()`, which is called with the lock held. Returns False after a timeout."""
        deadline = None if timeout is None else time.monotonic() + timeout
        self.uninterrupted.install()
        with self.uninterrupted, self._changed:
            while not done():
                if self.closed is not None:
                    raise EngineError(self.closed)
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                if self._leader is threading.current_thread():
                    raise EngineError(
                        "this call would block inside a signal handler or finalizer, which has interrupted another "
                        "blocking call of the same thread; let the handler set a flag, and check it in the program"
                    )
                if self._leader is None:
                    self._lead(left)
                else:
                    if self._helper_leads:
                        self._helper_leads = False
                        self.wake()
                    self._followers += 1
                    try:
                        with self.uninterrupted.allowed:
                            self._changed.wait(None if left is None else min(left, _MAX_WAIT_S))
                    finally:
                        self._followers -= 1
            return True

    def _lead(self, timeout: float | None) -> None:
        """Wait for messages and handle them. The lock is held on entry and exit, but not while waiting."""
        self._leader = threading.current_thread()
        self._turns += 1
        ready: list[int] = []
        self.lock.release()
        try:
            with self.uninterrupted.allowed:
                ready = self._poll.wait(timeout, spin=not self._helper_leads)
        finally:
            self.lock.acquire()
            try:
                for fd in ready if self.closed is None else ():
                    self._handle(fd)
            finally:
                self._leader = None
                if self._followers:
                    self._changed.notify_all()

    def _handle(self, fd: int) -> None:
        if fd == self._wake_read:
            os.read(fd, 4096)
            self._on_idle()
        elif fd == self._listener.fileno():
            self._add(Channel(self._listener.accept()[0], None))
        elif fd in self._by_fd:
            self._receive(self._by_fd[fd])

    def catch_up(self, process: int) -> None:
        """Handle all messages that a process has sent so far, also over connections that were not accepted yet."""
        with suppress(BlockingIOError):
            while True:
                self._add(Channel(self._listener.accept()[0], None))
        for channel in list(self._by_fd.values()):
            # Not the hub's: one of its messages is being handled right now, and the next ones must wait for that.
            if channel.peer in (None, process) and channel.peer != HUB and not channel.closed:
                self._receive(channel)

    def _receive(self, channel: Channel) -> None:
        had_pending = channel.pending
        if had_pending:
            channel.flush()
        channel.read()
        try:
            if channel.peer is None and channel.accept_hello(self._key, self.index):
                assert channel.peer is not None
                # Messages to that process keep using the older connection, if there is one: calls stay in order.
                self._channels.setdefault(channel.peer, channel)
        except WrongKeyError:
            channel.closed = True
        if channel.peer is not None:
            for message in channel.messages():
                if message[0] == "reply":
                    self._replies[message[1]] = message[2]
                elif message[0] == "segment":  # the only message that has a descriptor attached
                    self._on_message(channel.peer, (*message, channel.fds.popleft()))
                else:
                    self._on_message(channel.peer, message)
        if channel.closed:
            self._remove(channel)
        elif had_pending and not channel.pending:
            self._poll.watch(channel.fd)

    def _remove(self, channel: Channel) -> None:
        self._poll.ignore(channel.fd)
        del self._by_fd[channel.fd]
        channel.close()
        if channel.peer is not None and self._channels.get(channel.peer) is channel:
            del self._channels[channel.peer]
            self._on_closed(channel.peer)

    def _help(self) -> None:
        seen = -1
        while self.closed is None:
            kicked = self._kick.wait(_HELPER_INTERVAL_S)
            self._kick.clear()
            while self._later:
                self._later.popleft()()
            with self.lock:
                self._on_idle()
                nobody_waits, seen = self._turns == seen, self._turns
                if self._leader is None and (nobody_waits or kicked):
                    self._helper_leads = True
                    while self.closed is None and self._helper_leads and not self._later:
                        self._lead(None)
                    self._helper_leads = False
                    seen = self._turns

    def later(self, function: Callable[[], object]) -> None:
        """Let the helper call `function` soon, without any lock held."""
        self._later.append(function)
        self._kick.set()

    def kick(self) -> None:
        """Let the helper lead soon, because this thread will not wait for messages."""
        self._kick.set()

    @property
    def helper_leads(self) -> bool:
        return self._helper_leads

    def wake(self) -> None:
        """Wake the leader from its poll. Can be called anywhere, also in a finalizer."""
        with suppress(OSError):  # the pipe is full: the leader wakes anyway; it is closed: there is no leader
            os.write(self._wake_write, b"\0")

    # Ending

    def flush(self, to: int | None = None) -> None:
        """Wait until no queued messages are left, to one process or to all."""

        def is_flushed() -> bool:
            if to is None:
                return not self.has_pending()
            channel = self._channels.get(to)
            return channel is None or not channel.pending

        self.wait_until(is_flushed)

    def has_pending(self) -> bool:
        return any(channel.pending for channel in self._by_fd.values())

    def fail(self, why: str) -> None:
        """From now on, all waits and calls raise EngineError(why)."""
        with self._changed:
            self.closed = self.closed or why
            self._changed.notify_all()
            self._kick.set()
            self.wake()

    def close(self, why: str) -> None:
        """Stop the helper and close all descriptors. A message handler must not call this."""
        self.fail(why)
        if self._wake_write >= 0:
            self._helper.join(timeout=5)
            self._close_fds()
            self.uninterrupted.end()

    def _close_fds(self) -> None:
        for channel in list(self._by_fd.values()):
            channel.close()
        self._by_fd.clear()
        self._channels.clear()
        self._listener.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._wake_write = -1

    def forget_in_forked_child(self) -> None:
        """Close the copied sockets in a forked child. Others would not notice the parent's death."""
        self.closed = "this process was forked from one that uses the engine; call outplay.init() in it"
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._close_fds()


def register_at_fork(post: Post) -> None:
    weak = weakref.ref(post)

    def forget() -> None:
        alive = weak()
        if alive is not None and alive.closed is None:
            alive.forget_in_forked_child()

    os.register_at_fork(after_in_child=forget)


class Uninterrupted:
    """Defers Ctrl-C while a message is handled: KeyboardInterrupt would leave it half handled. Reentrant.

    Signal handlers run in the main thread only. SIGINT handlers other than Python's default are not replaced.
    """

    def __init__(self) -> None:
        self.allowed = Allowed(self)
        self._depth = 0
        self._is_allowed = False
        self._deferred = False
        self._next_check = 0.0
        self._main = threading.main_thread().ident

    def install(self) -> None:
        """Replace Python's SIGINT handler. Called before each wait: a notebook restores Python's for every cell."""
        now = time.monotonic()
        if now < self._next_check or threading.get_ident() != self._main:
            return
        self._next_check = now + _HANDLER_CHECK_S
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self.interrupt)

    def __enter__(self) -> None:
        if threading.get_ident() != self._main:
            return
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        if threading.get_ident() != self._main:
            return
        self._depth -= 1
        if self._deferred and self._depth == 0:
            self._deferred = False
            raise KeyboardInterrupt

    def allow(self) -> None:
        if threading.get_ident() != self._main:
            return
        self._is_allowed = self._depth == 1
        if self._deferred and self._is_allowed:
            self._is_allowed = self._deferred = False
            raise KeyboardInterrupt

    def forbid(self) -> None:
        if threading.get_ident() == self._main:
            self._is_allowed = False

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """The signal handler: raise KeyboardInterrupt now, or defer it to the end of the block."""
        if self._depth > 0 and not self._is_allowed:
            self._deferred = True
        else:
            self._is_allowed = False
            signal.default_int_handler(number, frame)

    def end(self) -> None:
        if threading.get_ident() == self._main and signal.getsignal(signal.SIGINT) == self.interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)


class Allowed:
    """Inside one `with uninterrupted:` block, but not inside two, allows Ctrl-C to interrupt once.

    This block may raise KeyboardInterrupt. A second one is deferred until the outer block has ended. So the outer block
    can restore its locks in a `finally` clause, which cannot be interrupted.
    """

    def __init__(self, uninterrupted: Uninterrupted) -> None:
        self._uninterrupted = uninterrupted

    def __enter__(self) -> None:
        self._uninterrupted.allow()

    def __exit__(self, *_: object) -> None:
        self._uninterrupted.forbid()
