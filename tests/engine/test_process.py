"""What is special about the process engine: memory, threads, processes."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import outplay
from outplay.engine import api
from outplay.engine.process import wire
from outplay.testing.waiting import until

pytestmark = pytest.mark.usefixtures("process_engine")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def lies_in_shared_memory(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, name = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end:
            return "memfd:outplay" in name
    return False


@outplay.remote
class Holder:
    def __init__(self) -> None:
        self.kept: Any = None

    def pid(self) -> int:
        return os.getpid()

    def keep(self, value: Any) -> None:
        self.kept = value

    def is_shared(self, array: Any) -> bool:
        return lies_in_shared_memory(array.ctypes.data)

    def start_child(self, own_session: bool) -> int:
        command = [sys.executable, "-c", "import time; time.sleep(1000)"]
        self.child = subprocess.Popen(command, start_new_session=own_session)
        return self.child.pid

    def start_actor(self) -> Any:
        self.actor = Holder.remote()
        return self.actor, outplay.get(self.actor.pid.remote())


# Threads


@outplay.remote
def cpu_per_second() -> tuple[float, dict[str, str]]:
    """How many cores a large matrix product keeps busy."""
    import numpy

    a = numpy.random.default_rng(0).random((1500, 1500))
    a @ a
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(5):
        a @ a
    busy = (time.process_time() - cpu) / (time.perf_counter() - wall)
    return busy, {name: value for name, value in os.environ.items() if name.endswith("_NUM_THREADS")}


def test_a_matrix_product_uses_one_core() -> None:
    busy, variables = outplay.get(cpu_per_second.remote())
    assert busy < 1.3
    assert set(variables) >= {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"}
    assert set(variables.values()) == {"1"}
    _, variables = outplay.get(cpu_per_second.options(num_cpus=2).remote())  # not what this process has
    assert set(variables.values()) == {"2"}


def test_torch_uses_as_many_threads_as_the_task_has_cpus() -> None:
    @outplay.remote
    def threads() -> int:
        import torch

        return int(torch.get_num_threads())

    assert outplay.get(threads.remote()) == 1
    assert outplay.get(threads.options(num_cpus=2).remote()) == 2


def test_workers_are_fresh_interpreters() -> None:
    @outplay.remote
    def origin() -> tuple[bool, int]:
        return hasattr(sys.modules["__main__"], "__file__"), os.getppid()

    # Not a copy of this program, and not a child of it either: the hub's.
    assert outplay.get(origin.remote()) == (False, api.engine()._hub.pid)  # type: ignore[attr-defined]


# Memory


@linux_only
def test_large_arrays_are_views_of_shared_memory() -> None:
    array = np.arange(500_000.0)
    ref = outplay.put({"nested": [array]})
    view = outplay.get(ref)["nested"][0]
    assert lies_in_shared_memory(view.ctypes.data)
    assert outplay.get(ref)["nested"][0].ctypes.data == view.ctypes.data  # the same memory, not another copy
    holder = Holder.remote()
    assert outplay.get(holder.is_shared.remote(outplay.put(array)))
    assert outplay.get(holder.is_shared.remote(array))


@linux_only
def test_large_tensors_share_memory_until_they_are_written() -> None:
    torch = pytest.importorskip("torch")
    ref = outplay.put({"w": torch.arange(100_000.0), "n": np.zeros(100_000), "b": torch.ones(70_000).bfloat16()})
    mine, other = outplay.get(ref), outplay.get(ref)
    assert lies_in_shared_memory(mine["w"].data_ptr())
    assert not mine["n"].flags.writeable
    assert mine["b"].dtype is torch.bfloat16
    mine["w"].add_(1)
    assert mine["w"][5] == 6
    assert other["w"][5] == 5  # nobody else sees it
    assert outplay.get(ref)["w"][5] == 5
    small = outplay.get(outplay.put(torch.ones(3, requires_grad=True)))
    assert small.requires_grad
    assert torch.equal(small.detach(), torch.ones(3))


def test_network_parameters_survive_the_journey() -> None:
    torch = pytest.importorskip("torch")

    @outplay.remote
    def forward(net: Any, state: Any, x: Any) -> Any:
        net.load_state_dict(state)
        return net(x).detach()

    net = torch.nn.Linear(300, 300)
    x = torch.ones(2, 300)
    assert torch.equal(outplay.get(forward.remote(net, outplay.put(net.state_dict()), x)), net(x).detach())


@pytest.fixture
def small_store() -> Any:
    """An engine whose store holds 20 MB."""
    outplay.shutdown()
    outplay.init("process", num_cpus=2, object_store_bytes=20_000_000)
    yield
    outplay.shutdown()
    outplay.init("process", num_cpus=2)


def test_a_full_store_is_a_clear_error(small_store: None) -> None:
    kept = [outplay.put(np.ones(1_000_000)), outplay.put(np.ones(1_000_000))]
    with pytest.raises(outplay.ObjectStoreFullError, match=r"8,000,\d+ bytes does not fit.*object_store_bytes"):
        outplay.put(np.ones(1_000_000))
    with pytest.raises(outplay.ObjectStoreFullError, match="can never fit into a store of 20,000,000 bytes"):
        outplay.put(np.ones(10_000_000))

    @outplay.remote
    def large() -> Any:
        return np.ones(2_000_000)

    with pytest.raises(outplay.ObjectStoreFullError):
        outplay.get(large.remote())
    # It goes on working, and what is let go of makes room.
    assert outplay.get(outplay.put(3)) == 3
    del kept
    assert outplay.get(outplay.put(np.ones(1_000_000))).sum() == 1_000_000

    def fits() -> bool:
        try:
            return bool(outplay.get(large.remote()).sum() == 2_000_000)
        except outplay.ObjectStoreFullError:  # a process that gets no time gives its memory back later than asked
            return False

    until(fits)


def test_memory_is_freed_when_nothing_holds_it(small_store: None) -> None:
    @outplay.remote
    class Maker:
        def make(self, number: int) -> Any:
            return np.full(500_000, number)

        def look(self, array: Any) -> int:
            return int(array[0])

    maker = Maker.remote()
    # Ten times what the store holds, in every way an object can come about and travel.
    for number in range(50):
        assert outplay.get(maker.look.remote(outplay.put(np.full(500_000, number)))) == number
        assert outplay.get(maker.look.remote(np.full(500_000, number))) == number
        assert outplay.get(maker.make.remote(number))[0] == number
        nested = outplay.put([outplay.put(np.full(500_000, number))])
        assert outplay.get(outplay.get(nested)[0])[0] == number


@pytest.mark.slow
def test_a_view_keeps_its_memory_from_being_used_again(small_store: None) -> None:
    views = [outplay.get(outplay.put(np.full(400_000, number))) for number in range(3)]
    holder = Holder.remote()
    outplay.get(holder.keep.remote(np.full(400_000, 3)))
    for _ in range(10):
        outplay.put(np.full(400_000, 99))
        gc.collect()
    assert [int(view.max()) for view in views] == [0, 1, 2]


def test_what_a_dead_process_had_stored_is_lost_or_freed(small_store: None) -> None:
    @outplay.remote
    class Owner:
        def store(self) -> Any:
            self.refs = [outplay.put(np.ones(1_000_000))]
            return self.refs

        def pid(self) -> int:
            return os.getpid()

    owner = Owner.remote()
    refs, pid = outplay.get([owner.store.remote(), owner.pid.remote()])
    outplay.kill(owner)
    until(lambda: not is_running(pid))
    # The object was shared before its owner died, so it outlives it.
    assert outplay.get(refs[0]).sum() == 1_000_000
    lost = [Owner.remote() for _ in range(8)]
    for number in lost:
        outplay.get(number.store.remote())
        outplay.kill(number)
    assert outplay.get(outplay.put(np.ones(1_000_000))).sum() == 1_000_000


def test_an_object_that_will_never_be_there_is_lost() -> None:
    @outplay.remote
    def never() -> None:
        time.sleep(1000)

    @outplay.remote
    class Promiser:
        def promise(self) -> Any:
            return [never.remote()]

    promiser = Promiser.remote()
    (promised,) = outplay.get(promiser.promise.remote())
    outplay.kill(promiser)
    with pytest.raises(outplay.ObjectLostError, match="died"):
        outplay.get(promised, timeout=60)


# Processes


def test_an_actor_ends_with_its_last_handle() -> None:
    holder = Holder.remote()
    pid = outplay.get(holder.pid.remote())
    keeper, witness = Holder.remote(), Holder.remote()
    outplay.get(keeper.keep.remote([holder]))
    other = outplay.get(witness.pid.remote())
    del holder
    del witness
    until(lambda: not is_running(other))  # the hub has been told of both
    assert is_running(pid)
    outplay.get(keeper.keep.remote(None))
    until(lambda: not is_running(pid))


@linux_only
@pytest.mark.parametrize("own_session", [False, True])
def test_what_a_worker_started_ends_with_it(own_session: bool) -> None:
    holder = Holder.remote()
    child = outplay.get(holder.start_child.remote(own_session))
    actor, actor_pid = outplay.get(holder.start_actor.remote())
    assert is_running(child)
    os.kill(outplay.get(holder.pid.remote()), signal.SIGKILL)
    until(lambda: not is_running(child))
    until(lambda: not is_running(actor_pid))
    with pytest.raises(outplay.ActorDiedError, match="the process that started it is gone"):
        outplay.get(actor.pid.remote())


def test_tasks_of_a_killed_task_end_with_it(tmp_path: Path) -> None:
    @outplay.remote
    def inner() -> None:
        (tmp_path / "inner").write_text(str(os.getpid()))
        time.sleep(1000)

    @outplay.remote(max_retries=0)
    def outer() -> None:
        (tmp_path / "outer").write_text(str(os.getpid()))
        outplay.get(inner.remote())

    ref = outer.remote()
    until(lambda: (tmp_path / "inner").exists() and bool((tmp_path / "inner").read_text()))
    pid = int((tmp_path / "inner").read_text())
    os.kill(int((tmp_path / "outer").read_text()), signal.SIGKILL)
    with pytest.raises(outplay.WorkerDiedError, match=r"was killed by SIGKILL"):
        outplay.get(ref)
    until(lambda: not is_running(pid))


def test_how_a_worker_ended_is_told() -> None:
    @outplay.remote(max_retries=1)
    def leave() -> None:
        os._exit(7)

    with pytest.raises(outplay.WorkerDiedError, match=r"leave failed: .* exited with status 7 \(2 times\)"):
        outplay.get(leave.remote())


@pytest.mark.slow
def test_idle_workers_do_not_pile_up() -> None:
    @outplay.remote
    def nest(depth: int) -> int:
        return 1 + (outplay.get(nest.remote(depth - 1)) if depth else 0)

    assert outplay.get(nest.remote(8)) == 9
    hub = psutil.Process(api.engine()._hub.pid)  # type: ignore[attr-defined]
    # Two slots, two idle workers, and at most the actors that other tests have just let go of.
    until(lambda: len(hub.children()) <= 4)


def is_closed_by_the_other_side(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_strangers_are_turned_away() -> None:
    engine: Any = api.engine()
    for index in (wire.HUB, wire.DRIVER):
        channel = wire.Channel.connect(engine._folder, b"not the key", 77, index)
        channel.sock.settimeout(20)
        assert is_closed_by_the_other_side(channel.sock)
        channel.close()
    assert os.stat(engine._folder).st_mode & 0o777 == 0o700
    assert outplay.get(outplay.put(1)) == 1


def test_unread_garbage_is_never_unpickled(tmp_path: Path) -> None:
    engine: Any = api.engine()
    marker = tmp_path / "executed"

    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(marker),)

    import pickle

    data = pickle.dumps(Bomb())
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(wire.socket_path(engine._folder, wire.HUB))
        sock.sendall(b"\0" * 48 + len(data).to_bytes(4, "little") + data)
        sock.settimeout(20)
        assert is_closed_by_the_other_side(sock)
    assert not marker.exists()


def test_several_threads_may_use_the_engine() -> None:
    holder = Holder.remote()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for number in range(50):
                assert outplay.get(outplay.put(number)) == number
                assert outplay.get(holder.pid.remote()) > 0
                assert outplay.get(outplay.put(np.full(20_000, number)))[0] == number
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []


def test_more_calls_than_a_socket_holds() -> None:
    @outplay.remote
    class Sink:
        def __init__(self) -> None:
            self.count = 0

        def take(self, data: bytes) -> int:
            self.count += 1
            return self.count

    sink = Sink.remote()
    refs = [sink.take.remote(b"x" * 1000) for _ in range(3000)]
    assert outplay.get(refs) == list(range(1, 3001))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # from Python 3.12 on
def test_a_forked_child_leaves_the_engine_alone() -> None:
    holder = Holder.remote()
    outplay.get(holder.pid.remote())
    pid = os.fork()
    if pid == 0:
        os._exit(0 if not outplay.is_initialized() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert outplay.get(holder.pid.remote()) > 0


def test_settings_cannot_change_while_it_runs() -> None:
    outplay.init("process", num_cpus=2)  # the same: nothing to do
    with pytest.raises(
        outplay.EngineError, match=r"already runs, as init\('process', num_cpus=2\); call outplay.shutdown"
    ):
        outplay.init("inline")
