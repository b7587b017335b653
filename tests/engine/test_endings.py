"""However a program ends, nothing of it is left: no process, no shared memory, no file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from outplay.testing.waiting import until

LIMIT_S = 5.0

# Starts workers, actors, a process of an actor's own and large objects; then does what it is told.
PROGRAM = """
import os, subprocess, sys, time
import numpy as np
import outplay

outplay.init("process", num_cpus=2)

@outplay.remote
class Actor:
    def work(self, array):
        self.kept = array
        self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        return os.getpid(), self.child.pid

@outplay.remote
def busy():
    while True:
        pass

actors = [Actor.remote() for _ in range(2)]
model = outplay.put(np.ones(1_000_000))
pids = [pid for pair in outplay.get([actor.work.remote(model) for actor in actors]) for pid in pair]
tasks = [busy.remote() for _ in range(3)]
print(os.getpid(), outplay.engine.api.engine()._hub.pid, outplay.engine.api.engine()._folder, *pids, flush=True)
"""

ENDINGS = {
    "normal exit": "",
    "shutdown": "outplay.shutdown()",
    "exception": "raise RuntimeError('on purpose')",
    "ctrl-c": "outplay.get(tasks)",
    "ctrl-c while computing": "while True: pass",
    "kill -9": "outplay.get(tasks)",
    "kill -9 of a program with a forked child": "os.fork(); time.sleep(1000)",
    "kill -15": "outplay.get(tasks)",
}


def shared_memory() -> set[str]:
    """What Python programs have in the system's folder of named shared memory."""
    names = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    return {name for name in names if name.startswith(("outplay", "psm_", "torch_"))}


def with_children(pid: int) -> list[psutil.Process]:
    """A process and its children; none if it has ended."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_is_left(ending: str, tmp_path: Path) -> None:
    before = shared_memory()
    script = tmp_path / "program.py"
    script.write_text(PROGRAM + ENDINGS[ending])
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        assert program.stdout is not None
        driver, hub, folder, *pids = program.stdout.readline().split()
        if ending.startswith(("ctrl-c", "kill")):  # two actors and two tasks run, and perhaps the driver's child
            until(lambda: len(psutil.Process(int(hub)).children()) >= 4)
            until(lambda: "forked" not in ending or len(psutil.Process(int(driver)).children()) == 2)
        processes = list({process for pid in (hub, *pids) for process in with_children(int(pid))})
        if ending.startswith("ctrl-c"):
            os.kill(int(driver), signal.SIGINT)
        elif ending.startswith("kill"):
            os.kill(int(driver), signal.SIGKILL if "-9" in ending else signal.SIGTERM)
        if "forked" not in ending:
            program.wait(30)
        ended = time.monotonic()
        _, alive = psutil.wait_procs(processes, timeout=LIMIT_S)
        took = time.monotonic() - ended
        if "forked" in ending:
            os.killpg(program.pid, signal.SIGKILL)
        assert alive == []
        assert took < LIMIT_S
        assert program.stderr is not None
        errors = program.stderr.read()
    assert shared_memory() <= before
    assert not os.path.exists(folder)
    if ending in ("normal exit", "shutdown"):
        assert program.returncode == 0
        assert errors == ""
    elif ending == "exception":
        assert "RuntimeError: on purpose" in errors
    elif ending.startswith("ctrl-c"):
        assert errors.strip().endswith("KeyboardInterrupt")


STARTING = """
import outplay

@outplay.remote
def wait():
    import time; time.sleep(1000)

print("starts", flush=True)
outplay.init("process", num_cpus=1)
ref = wait.remote()
print(outplay.engine.api.engine()._hub.pid, flush=True)
outplay.get(ref)
"""


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.06, 0.15, 0.4])
def test_nothing_is_left_of_a_program_that_is_killed_while_it_starts(after_s: float, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(STARTING)
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "starts\n"
        time.sleep(after_s)  # whatever has started by then
        program.kill()
        output = program.communicate(timeout=20)  # ends when no process of the program holds the streams
    assert "Traceback" not in "".join(output)


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.15])
def test_a_worker_ends_if_the_hub_is_killed_while_it_starts(after_s: float, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(STARTING)
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        _, hub = program.stdout.readline(), program.stdout.readline()
        time.sleep(after_s)  # whatever has started by then
        os.kill(int(hub), signal.SIGKILL)
        _, errors = program.communicate(timeout=20)
    assert "EngineError: the engine has ended: its hub process was killed" in errors


def test_workers_end_when_the_hub_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM + "outplay.get(tasks)")
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        _, hub, folder, *pids = program.stdout.readline().split()
        processes = [psutil.Process(int(pid)) for pid in pids]
        os.kill(int(hub), signal.SIGKILL)
        _, alive = psutil.wait_procs(processes, timeout=30)
        assert alive == []
        _, errors = program.communicate(timeout=30)
    assert "EngineError: the engine has ended: its hub process was killed" in errors
    assert not os.path.exists(folder)


NO_GUARD = """
import sys
import outplay

outplay.init(sys.argv[1], num_cpus=2)
print("main runs")
FACTOR = 3

class Point:
    def __init__(self, x): self.x = x

def helper(point): return point.x * FACTOR

@outplay.remote
def scale(point): return Point(helper(point))

@outplay.remote
class Cell:
    def __init__(self, point): self.point = point
    def read(self): return self.point

print(outplay.get(scale.remote(Point(2))).x, outplay.get(Cell.remote(Point(7)).read.remote()).x)
"""


@pytest.mark.parametrize("engine", ["inline", "process", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_program_needs_no_guard(engine: str, run_script: Callable[..., Any]) -> None:
    result = run_script(NO_GUARD, engine)
    assert result.returncode == 0, result.stderr
    # Once: no worker imports the main module.
    assert result.stdout.splitlines() == ["main runs", "6 7"]


@pytest.mark.parametrize("engine", ["process", pytest.param("ray", marks=pytest.mark.slow)])
def test_modules_beside_the_program_reach_the_workers(
    engine: str, tmp_path: Path, run_script: Callable[..., Any]
) -> None:
    (tmp_path / "beside.py").write_text("def double(x): return 2 * x")
    result = run_script(
        f"import outplay, beside\noutplay.init({engine!r}, num_cpus=2)\n"
        "remote = outplay.remote(beside.double)\nprint(outplay.get(remote.remote(4)))"
    )
    assert result.stdout.strip() == "8", result.stderr


def test_a_notebook_cell_needs_no_module(run_script: Callable[..., Any]) -> None:
    """A notebook's main module has no file, and its cells come one by one."""
    cells = ["import outplay", "@outplay.remote\ndef f(x):\n    return g(x)", "def g(x):\n    return x + 1",
             "print(outplay.get(f.remote(1)))", "def g(x):\n    return x + 2",
             "@outplay.remote\ndef f(x):\n    return g(x)", "print(outplay.get(f.remote(1)))"]  # fmt: skip
    result = run_script(
        "import sys, types\nmain = types.ModuleType('__main__')\nsys.modules['__main__'] = main\n"
        f"for cell in {cells!r}:\n    exec(compile(cell, '<cell>', 'exec'), main.__dict__)"
    )
    assert result.stdout.split() == ["2", "3"], result.stderr


def test_anything_remote_starts_the_default_engine(run_script: Callable[..., Any]) -> None:
    result = run_script(
        "import outplay\nprint(outplay.is_initialized(), outplay.get(outplay.put(3)), "
        "outplay.engine.api.engine().name)\noutplay.shutdown()\nprint(outplay.is_initialized())"
    )
    assert result.stdout.split() == ["False", "3", "process", "False"], result.stderr


def test_a_ref_of_an_engine_that_was_shut_down_starts_no_other(run_script: Callable[..., Any]) -> None:
    result = run_script(
        "import outplay\nref = outplay.put(1)\noutplay.shutdown()\ntry:\n    outplay.get(ref)\n"
        "except outplay.EngineError as error:\n    print(error)\nprint(outplay.is_initialized())"
    )
    assert "belong to an engine that was shut down" in result.stdout, result.stderr
    assert result.stdout.splitlines()[-1] == "False"


@pytest.mark.slow
def test_work_that_waits_for_actors_says_so(run_script: Callable[..., Any]) -> None:
    result = run_script(
        "import outplay\noutplay.init(num_cpus=1)\n@outplay.remote(num_cpus=1)\nclass Holder:\n"
        "    def ready(self): ...\nholder = Holder.remote()\noutplay.get(holder.ready.remote())\n"
        "f = outplay.remote(lambda: 1)\noutplay.wait([f.remote()], timeout=13)"
    )
    assert "has waited 10 s for num_cpus=1" in result.stderr
    assert "held by actors (Holder)" in result.stderr


def test_what_tasks_print_is_seen(run_script: Callable[..., Any]) -> None:
    result = run_script(
        "import outplay\n@outplay.remote\ndef speak():\n    print('from afar')\noutplay.get(speak.remote())"
    )
    assert result.stdout.strip() == "from afar"


STOPPED_DRIVER = """
import os, sys, time
import outplay

outplay.init("process", num_cpus=2)

@outplay.remote
class Counter:
    def __init__(self): self.count = 0
    def add(self): self.count += 1; return self.count

@outplay.remote
def caller(counter):
    while True:
        value = outplay.get(counter.add.remote())
        with open(sys.argv[1] if len(sys.argv) > 1 else path, "w") as file: file.write(str(value))

path = sys.argv[1]
counter = Counter.remote()
ref = caller.remote(counter)
outplay.wait([ref], timeout=1)
print("ready", flush=True)
outplay.get(ref)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="stops a process and looks at others")
def test_workers_call_actors_without_the_driver(tmp_path: Path) -> None:
    script, counted = tmp_path / "program.py", tmp_path / "counted"
    script.write_text(STOPPED_DRIVER)
    with subprocess.Popen([sys.executable, str(script), str(counted)], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        os.kill(program.pid, signal.SIGSTOP)
        until(lambda: psutil.Process(program.pid).status() == psutil.STATUS_STOPPED)
        first = until(counted.read_text)
        until(lambda: counted.read_text() not in ("", first))
        os.kill(program.pid, signal.SIGKILL)


def test_an_interrupted_wait_leaves_the_engine_usable(run_script: Callable[..., Any]) -> None:
    """Ctrl-C in a notebook: the cell ends, the engine goes on."""
    result = run_script(
        """
import os, signal, threading, time
import outplay

@outplay.remote
class Echo:
    def echo(self, x): return x

echo = Echo.remote()
outplay.get(echo.echo.remote(0))
interrupted = 0
done = threading.Event()
def interrupt():
    while not done.wait(0.01):
        os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
count = 0
until = time.monotonic() + 4
while time.monotonic() < until:
    try:
        while True:
            count += 1
            ref = echo.echo.remote(count)
            value = outplay.get(ref, timeout=30)
    except KeyboardInterrupt:
        interrupted += 1
done.set()
try:
    time.sleep(0.1)
except KeyboardInterrupt:
    pass
assert outplay.get(echo.echo.remote("still here"), timeout=30) == "still here"
assert interrupted > 0
print("ok")
"""
    )
    assert result.stdout.strip() == "ok", result.stderr


def test_a_long_temporary_folder_is_no_obstacle(run_script: Callable[..., Any], tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 60) / ("y" * 60)
    deep.mkdir(parents=True)
    result = run_script("import outplay\nprint(outplay.get(outplay.put(3)))", env={**os.environ, "TMPDIR": str(deep)})
    assert result.stdout.strip() == "3", result.stderr


CLOSES = """
import atexit, sys, time
import outplay

outplay.init(sys.argv[1], num_cpus=2)

def note(word):
    with open("log", "a") as file: file.write(word + " ")

@outplay.remote
class Environment:
    def __init__(self): atexit.register(note, "atexit")
    def step(self): return 1
    def note(self): note("noted")
    def close(self):
        time.sleep(1.5)
        note("closed")

environment = Environment.remote()
outplay.get(environment.step.remote())
environment.note.remote()
"""


@pytest.mark.parametrize("engine", ["inline", "process", pytest.param("ray", marks=pytest.mark.slow)])
def test_actors_close_at_the_end_of_the_program(engine: str, tmp_path: Path, run_script: Callable[..., Any]) -> None:
    result = run_script(CLOSES, engine)
    assert result.returncode == 0, result.stderr
    assert sorted((tmp_path / "log").read_text().split()) == ["atexit", "closed", "noted"]


HANGING = """
import time, os, sys
import outplay

outplay.init("process", num_cpus=2)

@outplay.remote
class Stuck:
    def pid(self): return os.getpid()
    def close(self): time.sleep(1000)

stuck = Stuck.remote()
print(outplay.get(stuck.pid.remote()), flush=True)
if sys.argv[1] == "scope":
    pid = outplay.get(stuck.pid.remote())
    del stuck
    deadline = time.monotonic() + 60
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.05)
"""


@pytest.mark.parametrize("ending", ["scope", pytest.param("program", marks=pytest.mark.slow)])
def test_a_close_that_hangs_has_a_limit(ending: str, run_script: Callable[..., Any]) -> None:
    result = run_script(HANGING, ending)
    assert result.returncode == 0, result.stderr
    assert not os.path.exists(f"/proc/{result.stdout.strip()}")
