"""The hub: a small process that starts workers, schedules work, counts references and cleans up after crashes.

It runs no user code, and large objects do not pass through it. It ends when the driver exits or crashes, after it has
ended all workers.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import suppress
from typing import Any

from outplay.engine.process.counting import Objects
from outplay.engine.process.payload import WorkSpec
from outplay.engine.process.reaping import adopt_orphans, kill_group, kill_orphans, raise_file_limit, reap
from outplay.engine.process.staffing import Staff
from outplay.engine.process.wire import DRIVER, HUB, Channel, Message, Poll, WrongKeyError, listen
from outplay.engine.slots import Slots
from outplay.errors import OutplayError

_CHECK_S = 1.0  # interval of periodic checks, such as whether the driver still lives
_END_CHECK_S = 0.02  # the same during shutdown


class Hub:
    """An event loop: read messages, handle them, free unused objects, wait."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._folder: str = settings["folder"]
        self._key = bytes.fromhex(settings["key"])
        self._driver: int = settings["driver"]  # its parent: another one means that the driver has ended
        self._ending = False
        self.asked_to_stop = False
        self._next_check = 0.0
        self._channels: dict[int, Channel] = {}
        self._by_fd: dict[int, Channel] = {}
        self._exports: dict[str, bytes] = {}
        self._asked_exports: dict[str, list[tuple[int, int]]] = {}
        self._exit_codes: dict[int, int] = {}
        self._poll = Poll()
        self._listener = listen(self._folder, HUB)
        self._poll.watch(self._listener.fileno())
        self._child_ended, ended_write = os.pipe()
        os.set_blocking(self._child_ended, False)
        os.set_blocking(ended_write, False)
        signal.set_wakeup_fd(ended_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._poll.watch(self._child_ended)
        self.objects = Objects(settings["store_bytes"], self._send, self._is_alive)
        gpus: list[str] = settings["gpus"]
        worker_settings = {name: settings[name] for name in ("folder", "key", "path")}
        self.staff = Staff(Slots(settings["cpus"], len(gpus)), gpus, self.objects, self._send, worker_settings)

    def run(self) -> None:
        again = False
        while not self._ending and os.getppid() == self._driver:
            due_in = self.staff.due_in()
            timeout = 0.0 if again else 0.02 if self.objects.has_allocations else _CHECK_S if due_in is None else due_in
            for fd in self._poll.wait(timeout, spin=not again):
                self._handle(fd)
            again = self.objects.end_round()
            if self.staff.due_in() == 0:
                self.staff.schedule()
            if time.monotonic() > self._next_check:
                self._next_check = time.monotonic() + _CHECK_S
                self.staff.warn_if_stuck()
                self.staff.dismissals.kill_overdue()
                self.staff.retire_surplus()

    # Sockets

    def _handle(self, fd: int) -> None:
        if fd == self._child_ended:
            os.read(fd, 4096)
            self._collect_children()
        elif fd == self._listener.fileno():
            self._accept()
        elif fd in self._by_fd:
            self._receive(self._by_fd[fd])

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            while True:
                channel = Channel(self._listener.accept()[0], None)
                self._by_fd[channel.fd] = channel
                self._poll.watch(channel.fd)

    def _receive(self, channel: Channel) -> None:
        channel.flush()
        channel.read()
        try:
            if channel.peer is None and channel.accept_hello(self._key, HUB):
                assert channel.peer is not None
                self._channels[channel.peer] = channel
        except WrongKeyError:
            channel.closed = True
        if channel.peer is not None:
            for message in channel.messages():
                self._dispatch(channel.peer, message)
        if channel.closed:
            self._remove(channel)
        elif not channel.pending:
            self._poll.watch(channel.fd)

    def _remove(self, channel: Channel) -> None:
        self._poll.ignore(channel.fd)
        del self._by_fd[channel.fd]
        channel.close()
        if channel.peer is not None:
            self._channels.pop(channel.peer, None)
            self._process_gone(channel.peer)

    def _send(self, to: int, message: Message, fd: int | None = None) -> None:
        channel = self._channels.get(to)
        if channel is None:
            return  # that process has ended
        channel.send(message, None if fd is None else [fd])
        if channel.pending:
            self._poll.watch(channel.fd, out=True)

    def _is_alive(self, index: int) -> bool:
        return index == DRIVER or index in self.staff.workers

    # Processes

    def _process_gone(self, index: int) -> None:
        if index == DRIVER:
            self._ending = True
            return
        worker = self.staff.workers.get(index)
        if worker is None:
            return
        pid = worker.process.pid
        kill_group(pid)
        if pid not in self._exit_codes:
            # Its sockets are closed, so it is exiting: this does not block for long.
            _, status = os.waitpid(pid, 0)
            self._exit_codes[pid] = os.waitstatus_to_exitcode(status)
        worker.process.returncode = self._exit_codes.pop(pid)
        self.staff.process_gone(index, worker.process.returncode)
        self.objects.peer_died(index)
        kill_orphans(self._folder, set(self.staff.workers))

    def _collect_children(self) -> None:
        ended = reap()
        self._exit_codes |= {pid: code for pid, code in ended.items() if pid in self._worker_pids()}
        self._accept()  # a child may have connected just before it ended
        for channel in [channel for channel in self._by_fd.values() if channel.peer is None]:
            self._receive(channel)
        by_pid = {worker.process.pid: worker for worker in self.staff.workers.values()}
        for pid in ended:
            if pid in by_pid:
                self._drain(by_pid[pid].index)
        kill_orphans(self._folder, set(self.staff.workers))

    def _worker_pids(self) -> set[int]:
        return {worker.process.pid for worker in self.staff.workers.values()}

    def _drain(self, index: int) -> None:
        """A worker has ended: read its last messages. A child that it forked may keep its socket open forever."""
        channel = self._channels.get(index)
        if channel is None:
            self._process_gone(index)  # it never connected
            return
        self._receive(channel)
        if not channel.closed:
            self._remove(channel)

    def end(self) -> None:
        """End all workers. If the driver asked for it, they get some time to exit by themselves."""
        self.staff.end()
        while self.asked_to_stop and self.staff.workers and os.getppid() == self._driver:
            for fd in self._poll.wait(_END_CHECK_S):
                self._handle(fd)
            self.staff.dismissals.kill_overdue()
        for worker in self.staff.workers.values():
            kill_group(worker.process.pid)
        kill_orphans(self._folder, set())
        shutil.rmtree(self._folder, ignore_errors=True)

    # Messages

    def _dispatch(self, sender: int, message: Message) -> None:
        if not self._is_alive(sender):
            return  # it was removed before this message was read
        kind, *args = message
        match kind:
            case "drop":
                self.objects.drop(sender, args[0])
            case "grant":
                self.objects.grant(*args)
            case "share":
                self.objects.share(sender, *args)
            case "resolve":
                self.objects.resolve(*args)
            case "want":
                self.objects.want(sender, *args)
            case "forget":
                self.objects.forget(sender, *args)
            case "alloc":
                self.objects.alloc(sender, *args)
            case "write_failed":
                self.objects.write_failed(*args)
            case "retry":
                self.staff.retry_decision(*args)
            case "busy":
                self.staff.busy(sender)
            case "undelivered":
                self.staff.undelivered(sender, *args)
            case "lease":
                self.objects.lease(sender, *args)
            case "return":
                self.objects.return_segments(*args)
            case "open":
                self.objects.open(sender, *args)
            case "submit":
                self.staff.submit(sender, WorkSpec.from_wire(args))
                self.staff.schedule()
            case "done":
                self.staff.done(sender, *args)
            case "cancel":
                self.staff.cancel(*args)
            case "closing":
                self.staff.dismissals.closing(sender)
            case "blocked":
                self.staff.blocked(sender, *args)
            case "unblocked":
                self.staff.unblocked(sender)
            case "create":
                self.staff.create(sender, WorkSpec.from_wire(args))
                self.staff.schedule()
            case "locate":
                self.staff.actors.locate(sender, *args)
            case "actor_ended":
                self.staff.actor_ended(sender, *args)
            case "ready":
                self.staff.ready(sender)
            case "export":
                self._export(*args)
            case "unexport":
                for index in self.staff.workers:
                    self._send(index, message)
            case "fetch":
                self._fetch(sender, *args)
            case "resources":
                self._send(sender, ("reply", args[0], (self.staff.slots.totals(), self.staff.slots.free())))
            case "stop":
                self._ending = self.asked_to_stop = True
            case _:
                self._handle_request(sender, kind, args)

    def _handle_request(self, sender: int, kind: str, args: list[Any]) -> None:
        """Handle a request and reply, with the result or with an error."""
        number, *rest = args
        reply: Any = None
        try:
            match kind:
                case "check":
                    self.staff.slots.check(*rest)
                case "kill":
                    self.staff.actors.kill(*rest)
                case "claim":
                    self.staff.actors.names.claim(*rest)
                case "find":
                    reply = self.staff.actors.names.find(*rest)
                    self.objects.hold(sender, reply[0])
                case "reserve":
                    self.staff.reserve(sender, *rest)
                case "release":
                    self.staff.release(*rest)
                case _:
                    raise AssertionError(f"no message {kind!r}")
        except (OutplayError, ValueError) as error:
            reply = error
        self._send(sender, ("reply", number, reply))

    def _export(self, name: str, data: bytes) -> None:
        self._exports[name] = data
        for peer, number in self._asked_exports.pop(name, []):
            self._send(peer, ("reply", number, data))

    def _fetch(self, sender: int, number: int, name: str) -> None:
        if name in self._exports:
            self._send(sender, ("reply", number, self._exports[name]))
        else:  # the call came directly from its caller, and has overtaken the caller's export
            self._asked_exports.setdefault(name, []).append((sender, number))


def main(settings: dict[str, Any]) -> None:
    """Entry point of the hub process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise_file_limit()
    adopt_orphans()
    hub = Hub(settings)
    os.close(settings["ready_fd"])
    try:
        hub.run()
    finally:
        hub.end()
