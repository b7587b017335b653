"""What is special about the Ray engine: whose Ray it is, where it listens, and what reaches the nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import outplay
from outplay.engine import shipping

ray = pytest.importorskip("ray")

LOOK_AROUND = """
import os
import psutil, ray
import outplay

outplay.init("ray", num_cpus=2)

@outplay.remote
def variables():
    return {name: value for name, value in os.environ.items() if name.endswith("_NUM_THREADS")}

@outplay.remote
def busy():
    import time, numpy
    a = numpy.random.default_rng(0).random((1000, 1000))
    a @ a
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(5): a @ a
    return (time.process_time() - cpu) / (time.perf_counter() - wall)

assert set(outplay.get(variables.remote()).values()) == {"1"}
assert set(outplay.get(variables.options(num_cpus=2).remote()).values()) == {"2"}
assert outplay.get(busy.remote()) < 1.3
me = psutil.Process()
mine = [me, *me.children(recursive=True)]
listening = {c.laddr.ip for p in mine for c in p.net_connections() if c.status == "LISTEN"}
assert listening and all("127.0.0.1" in ip for ip in listening), listening
assert not ray._private.worker._global_node.address_info["webui_url"]  # where a dashboard would be
outplay.shutdown()
assert not ray.is_initialized()
print("ok")
"""


def test_our_own_ray_listens_on_loopback_and_caps_threads(run_script: Callable[..., Any]) -> None:
    result = run_script(LOOK_AROUND)
    assert result.stdout.strip().endswith("ok"), result.stderr


@pytest.mark.slow
def test_a_ray_that_is_not_ours_is_left_alone(run_script: Callable[..., Any]) -> None:
    result = run_script(
        """
import ray, outplay
ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="error")

@ray.remote
class Theirs:
    def alive(self): return True

@outplay.remote(num_cpus=0)
class Ours:
    def variables(self):
        import os
        return os.environ["OPENBLAS_NUM_THREADS"]

theirs = Theirs.remote()
outplay.init("ray")
ours = Ours.remote()
assert outplay.get(ours.variables.remote()) == "1"
outplay.shutdown()
assert ray.is_initialized() and ray.get(theirs.alive.remote())
try:
    ray.get(ours._token.handle.call.remote(None, "variables", 1), timeout=30)
except ray.exceptions.RayActorError:
    print("ok")
"""
    )
    assert result.stdout.strip() == "ok", result.stderr


def test_without_ray_one_sentence_says_what_to_install(run_script: Callable[..., Any]) -> None:
    result = run_script("import sys\nsys.modules['ray'] = None\nimport outplay\noutplay.init('ray')")
    assert result.returncode == 1
    assert "engine='ray' needs Ray, which is not installed: pip install 'outplay[ray]'" in result.stderr


def test_an_address_where_nothing_answers_is_one_sentence(run_script: Callable[..., Any]) -> None:
    result = run_script("import outplay\noutplay.init('ray', address='127.0.0.1:1')")
    assert "cannot join the Ray cluster at address='127.0.0.1:1': no connection" in result.stderr


def test_a_cluster_that_is_not_there_is_one_sentence(run_script: Callable[..., Any]) -> None:
    if any(process.info["name"] == "gcs_server" for process in psutil.process_iter(["name"])):
        pytest.skip("a Ray runs on this machine, and address='auto' would join it")
    result = run_script(
        "import outplay\ntry:\n    outplay.init('ray', address='auto')\nexcept outplay.EngineError as error:\n"
        "    print(error)",
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
    )
    assert result.stdout.startswith("cannot join the Ray cluster at address='auto':"), result.stderr


def test_what_a_submitted_job_has_set_is_not_set_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    plain = shipping.cluster_runtime_env()
    assert plain["working_dir"] == str(tmp_path)  # the test runner is an installed command
    assert plain["env_vars"]["OMP_NUM_THREADS"] == "1"
    assert Path(plain["py_modules"][0]) == Path(outplay.__file__).parent
    job = {"runtime_env": {"working_dir": "gcs://package.zip", "env_vars": {"OMP_NUM_THREADS": "4"}}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(job))
    submitted = shipping.cluster_runtime_env()
    assert "working_dir" not in submitted
    assert "excludes" not in submitted
    assert "OMP_NUM_THREADS" not in submitted["env_vars"]
    assert submitted["env_vars"]["MKL_NUM_THREADS"] == "1"


def test_a_folder_too_large_to_send_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shipping, "MAX_BYTES", 1000)
    (tmp_path / "data.bin").write_bytes(b"x" * 2000)
    with pytest.raises(outplay.EngineError, match="put your program into a folder of its own"):
        shipping.cluster_runtime_env()


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Three Ray nodes, as three machines would be, with one CPU each."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield nodes
    nodes.shutdown()


ON_THE_CLUSTER = """
import os, sys, time
import outplay
import own_module

outplay.init("ray", address=sys.argv[1])
os.remove(own_module.__file__)  # the nodes of a real cluster would not see it either

@outplay.remote(max_retries=5)
def work(number):
    import ray
    time.sleep(0.5)
    return own_module.square(number), ray.get_runtime_context().get_node_id(), os.environ["OPENBLAS_NUM_THREADS"]

@outplay.remote(max_restarts=-1)
class Worker:
    def work(self, number):
        return own_module.square(number)

workers = [Worker.remote() for _ in range(6)]
assert outplay.get([worker.work.remote(3) for worker in workers]) == [9] * 6
refs = [work.remote(number) for number in range(24)]
outplay.wait(refs, num_returns=4)
print("remove", flush=True)
sys.stdin.readline()
results = outplay.get(refs)
assert [value for value, _, _ in results] == [number ** 2 for number in range(24)]
assert {threads for _, _, threads in results} == {"1"}
print(len({node for _, node, _ in results}), flush=True)
deadline = time.monotonic() + 60
for worker in workers:
    while True:
        try:
            assert outplay.get(worker.work.remote(4)) == 16
            break
        except outplay.ActorDiedError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
print("done", flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_node_that_is_removed_costs_time_not_data(
    cluster: Any, tmp_path: Path, run_script: Callable[..., Any]
) -> None:
    second, _ = cluster.add_node(num_cpus=1), cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    (tmp_path / "own_module.py").write_text("def square(x): return x ** 2")
    script = tmp_path / "program.py"
    script.write_text(ON_THE_CLUSTER)
    with subprocess.Popen(
        [sys.executable, str(script), cluster.address],
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        lines = iter(line.strip() for line in program.stdout if not line.startswith(("(", "\x1b")))
        first = next(lines, "")
        if first == "remove":
            cluster.remove_node(second, allow_graceful=False)
        output, errors = program.communicate("\n", timeout=200)
    assert first == "remove", errors
    joined = run_script(
        "import outplay, ray\noutplay.init('ray')\nprint('nodes', len([n for n in ray.nodes() if n['Alive']]))",
        env={**os.environ, "RAY_ADDRESS": cluster.address},
    )
    assert "nodes 2" in joined.stdout, joined.stderr  # its own Ray would have one
    said = output.splitlines()  # among what Ray has to say about its node
    assert "done" in said, errors
    assert "2" in said or "3" in said, output


BUNDLES = """
import sys
import outplay
from outplay import tune

@outplay.remote
class Worker:
    def node(self):
        import ray
        return ray.get_runtime_context().get_node_id()

def train(config):
    workers = [Worker.options(num_cpus=config["cpus"]).remote() for _ in range(3)]
    return {"nodes": len(set(outplay.get([worker.node.remote() for worker in workers])))}

outplay.init("ray", address=sys.argv[1])
config = {"cpus": tune.grid_search([0, 1])}
result = tune.run(train, config=config, resources_per_trial=[{"cpu": 1}] * 3, storage_path=sys.argv[2], verbose=0)
print([trial.last_result["nodes"] for trial in result.trials])
"""


@pytest.mark.slow
def test_the_workers_of_a_trial_are_on_its_bundles(
    cluster: Any, tmp_path: Path, run_script: Callable[..., Any]
) -> None:
    cluster.add_node(num_cpus=1), cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    result = run_script(BUNDLES, cluster.address, str(tmp_path / "results"))
    assert result.stdout.splitlines()[-1:] == ["[3, 3]"], result.stderr
