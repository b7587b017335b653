"""A process's sockets: sending, waiting for answers, and requests to the hub.

Messages are read by one thread at a time, the leader: whoever waits for one. That saves a switch of threads per
call. While nobody waits, because the user's code runs, a helper thread steps in.
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
_LONGEST_WAIT_S = 3600.0  # threads cannot wait for ever longer
_LOOK_S = 0.01  # how often to look whose turn it is to handle Ctrl-C: asking takes longer than a message


class Post:
    """Sends to other processes by their index, and calls `on_message` and `on_closed`, under `lock`, for what comes."""

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
        self.closed: str | None = None  # why, once it is
        self._folder, self._key = folder, key
        self._on_message, self._on_closed = on_message, on_closed
        self._on_idle: Callable[[], None] = lambda: None
        self._changed = threading.Condition(self.lock)
        self._leader: threading.Thread | None = None
        self._followers = 0
        self._turns = 0  # how often anybody has led: lets the helper see that the main thread is away
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
        forget_if_forked(self)

    def start(self, on_idle: Callable[[], None]) -> None:
        """Let the helper run; it calls `on_idle` now and then, for what is not urgent."""
        self._on_idle = on_idle
        self._helper.start()

    # Sending

    def send(self, to: int, message: Message) -> bool:
        """Send, or queue what the socket does not take now; False if there is no way to that process."""
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
        """Whatever the hub is to know before another process acts on a message must be on its way already."""
        hub = self._channels.get(HUB)
        while hub is not None and hub.pending:
            # The hub never waits for anybody, so this does not take long.
            room = select.poll()
            room.register(hub.fd, select.POLLOUT)
            room.poll(1000)
            hub.flush()

    def request(self, kind: str, *args: Any) -> Any:
        """Ask the hub and wait for its answer."""
        number = next(self._requests)
        with self.uninterrupted:  # an answer that nobody takes may be a segment that nobody frees
            self.send(HUB, (kind, number, *args))
            self.wait_until(lambda: number in self._replies)
            with self.lock:
                answer = self._replies.pop(number)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def connect(self, to: int) -> bool:
        """Make sure that there is a connection; False if that process is gone, EngineError if none can be made."""
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
            self.wake()  # a poll that runs already does not see the change
        elif channel.pending:
            self._kick.set()

    # Waiting

    def wait_until(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Handle messages until `done()`, which is called under the lock; False if the time is over first."""
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
                        "this call would wait inside a signal handler or finalizer that has interrupted another wait "
                        "of the same thread; let the handler set a flag, and act on it in the program"
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
                            self._changed.wait(None if left is None else min(left, _LONGEST_WAIT_S))
                    finally:
                        self._followers -= 1
            return True

    def _lead(self, timeout: float | None) -> None:
        """Wait for what comes and handle it. The lock is held on entry and exit, not while waiting."""
        self._leader = threading.current_thread()
        self._turns += 1
        ready: list[int] = []
        self.lock.release()
        try:
            with self.uninterrupted.allowed:
                ready = self._poll.wait(timeout, awake=not self._helper_leads)
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
        """Handle all that a process has sent so far, even over a connection that was not accepted yet."""
        with suppress(BlockingIOError):
            while True:
                self._add(Channel(self._listener.accept()[0], None))
        for channel in list(self._by_fd.values()):
            # Not the hub's: a message of its own is being handled, and what follows must wait its turn.
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
                # What is sent to that process keeps its way, if it has one, so that calls stay in order.
                self._channels.setdefault(channel.peer, channel)
        except WrongKeyError:
            channel.closed = True
        if channel.peer is not None:
            for message in channel.messages():
                if message[0] == "reply":
                    self._replies[message[1]] = message[2]
                elif message[0] == "segment":  # the one message that a descriptor comes with
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
                away, seen = self._turns == seen, self._turns
                if self._leader is None and (away or kicked):
                    self._helper_leads = True
                    while self.closed is None and self._helper_leads and not self._later:
                        self._lead(None)
                    self._helper_leads = False
                    seen = self._turns

    def later(self, function: Callable[[], object]) -> None:
        """Let the helper call `function` soon, outside of all locks."""
        self._later.append(function)
        self._kick.set()

    def kick(self) -> None:
        """Something needs the helper soon, even if this thread does not wait for it."""
        self._kick.set()

    @property
    def helper_leads(self) -> bool:
        return self._helper_leads

    def wake(self) -> None:
        """Make the leader look up from its poll. Safe anywhere, also in a finalizer."""
        with suppress(OSError):  # full: it will wake anyway; closed: there is nobody to wake
            os.write(self._wake_write, b"\0")

    # Ending

    def flush(self, to: int | None = None) -> None:
        """Wait until everything that was sent, to one process or to all, is out, or its receiver is gone."""

        def is_out() -> bool:
            if to is None:
                return not self.has_pending()
            channel = self._channels.get(to)
            return channel is None or not channel.pending

        self.wait_until(is_out)

    def has_pending(self) -> bool:
        return any(channel.pending for channel in self._by_fd.values())

    def fail(self, why: str) -> None:
        """From now on, whoever waits or calls gets an EngineError that says `why`."""
        with self._changed:
            self.closed = self.closed or why
            self._changed.notify_all()
            self._kick.set()
            self.wake()

    def close(self, why: str) -> None:
        """Stop, and give everything back. Not to be called by a handler."""
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
        """A forked child has copies of the sockets; with them open, nobody would notice that the parent died."""
        self.closed = "this process was forked from one that uses the engine; call outplay.init() in it"
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._close_fds()


def forget_if_forked(post: Post) -> None:
    weak = weakref.ref(post)

    def forget() -> None:
        alive = weak()
        if alive is not None and alive.closed is None:
            alive.forget_in_forked_child()

    os.register_at_fork(after_in_child=forget)


class Uninterrupted:
    """Puts Ctrl-C off while a message is handled: KeyboardInterrupt in between would leave half of it done.

    Only the main thread is ever interrupted, and only Python's own handler raises; others are left alone.
    """

    def __init__(self) -> None:
        self.allowed = Allowed(self)
        self._depth = 0
        self._is_allowed = False
        self._noted = False
        self._look_again = 0.0
        self._main = threading.main_thread().ident

    def install(self) -> None:
        """Take Python's place. Called before each wait: a notebook puts Python's handler back for every cell."""
        now = time.monotonic()
        if now < self._look_again or threading.get_ident() != self._main:
            return
        self._look_again = now + _LOOK_S
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
        if self._noted and self._depth == 0:
            self._noted = False
            raise KeyboardInterrupt

    def allow(self) -> None:
        if threading.get_ident() != self._main:
            return
        self._is_allowed = self._depth == 1
        if self._noted and self._is_allowed:
            self._is_allowed = self._noted = False
            raise KeyboardInterrupt

    def forbid(self) -> None:
        if threading.get_ident() == self._main:
            self._is_allowed = False

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, now or when it does no harm. The handler of a signal."""
        if self._depth > 0 and not self._is_allowed:
            self._noted = True
        else:
            self._is_allowed = False
            signal.default_int_handler(number, frame)

    def end(self) -> None:
        if threading.get_ident() == self._main and signal.getsignal(signal.SIGINT) == self.interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)


class Allowed:
    """Within `with uninterrupted:`, but not within two of them, lets Ctrl-C interrupt after all, once.

    KeyboardInterrupt may come out of this block, but no second one before the block around it has ended. So that can
    bring its locks into order in a `finally`, without a moment at which it could be interrupted.
    """

    def __init__(self, uninterrupted: Uninterrupted) -> None:
        self._uninterrupted = uninterrupted

    def __enter__(self) -> None:
        self._uninterrupted.allow()

    def __exit__(self, *_: object) -> None:
        self._uninterrupted.forbid()
