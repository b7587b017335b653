"""Environments that hang: the worker is replaced, or the run ends with one sentence; and Ctrl-C ends what hangs."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outplay import DQN, PPO, EnvError, EnvTimeoutError, RunError
from tests import probes
from tests.cli.common import interrupt_twice, start, wait_for

HangingRun = Callable[..., subprocess.Popen[str]]
SMALL = {"num_envs": 4, "num_env_groups": 2, "train_batch_size": 64, "seed": 3, "model": {"fcnet_hiddens": [8]}}


class Hanging(probes.Walk):
    """Once there is a file `armed`, it hangs; if that says `once`, only the first environment that sees it."""

    def __init__(self, folder: str, how: str) -> None:
        super().__init__()
        self.folder, self.how = Path(folder), how

    def step(self, action: Any) -> Any:
        with contextlib.suppress(FileNotFoundError):
            if (self.folder / "armed").read_text() == "once":
                (self.folder / "armed").unlink()
            (self.folder / "hanging").touch()
            self.hang()
        return super().step(action)

    def hang(self) -> None:
        match self.how:
            case "sleeps":
                time.sleep(1e6)
            case "loops":
                while True:
                    pass
            case "tries again":
                while True:
                    with contextlib.suppress(Exception):
                        time.sleep(1e6)
            case "lets nothing through":
                while True:
                    with contextlib.suppress(BaseException):
                        time.sleep(1)
            case "in C":  # with all of Python waiting for it
                all(itertools.repeat(True))


def settings(folder: Path, how: str, **more: Any) -> dict[str, Any]:
    return {**SMALL, "env_config": {"folder": str(folder), "how": how}, **more}


# A limit


@pytest.mark.usefixtures("process_engine")
@pytest.mark.parametrize(
    "how", ["sleeps", *(pytest.param(how, marks=pytest.mark.slow) for how in ("tries again", "in C"))]
)
def test_a_worker_that_hangs_is_replaced_and_the_result_is_the_same(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    with PPO(env=Hanging, config=settings(tmp_path, how, num_workers=0)) as whole:
        [whole.train() for _ in range(3)]
    with PPO(env=Hanging, config=settings(tmp_path, how, num_workers=2, env_step_timeout_s=3)) as trainer:
        trainer.train()
        (tmp_path / "armed").write_text("once")
        [trainer.train() for _ in range(2)]
        assert (tmp_path / "hanging").exists()
        assert trainer.workers.replaced
        assert trainer.policy.flat.equal(whole.policy.flat)
    if how != "in C":  # there, the worker dies before it can say what it was about
        assert (
            "environment 'tests.collect.test_hanging:Hanging' hangs: step() has not returned after 3 s" in caplog.text
        )
    assert "and is replaced; its environments are rebuilt" in caplog.text


@pytest.mark.slow
@pytest.mark.usefixtures("process_engine")
def test_what_hangs_in_c_again_and_again_ends_the_run(tmp_path: Path) -> None:
    with PPO(env=Hanging, config=settings(tmp_path, "in C", num_workers=1, env_step_timeout_s=1)) as trainer:
        trainer.train()
        (tmp_path / "armed").touch()
        with pytest.raises(
            RunError, match=r"worker 0 died 3 times .* environment 'tests.collect.test_hanging:Hanging' may hang"
        ):
            trainer.train()


@pytest.mark.slow
@pytest.mark.usefixtures("process_engine")
def test_what_hangs_again_and_again_ends_the_run_with_one_sentence(tmp_path: Path) -> None:
    with PPO(env=Hanging, config=settings(tmp_path, "sleeps", num_workers=1, env_step_timeout_s=2)) as trainer:
        trainer.train()
        (tmp_path / "armed").touch()
        with pytest.raises(EnvTimeoutError) as caught:
            trainer.train()
        assert "\n" not in str(caught.value)
        assert re.search(r"'tests.collect.test_hanging:Hanging' hangs: step\(\) .* 3 times in a row", str(caught.value))
        (tmp_path / "armed").unlink()
        assert trainer.train()["training_iteration"] == 2


@pytest.mark.parametrize(
    "how", ["tries again", *(pytest.param(how, marks=pytest.mark.slow) for how in ("sleeps", "loops"))]
)
def test_in_the_program_itself_it_ends_the_iteration(tmp_path: Path, how: str) -> None:
    with PPO(env=Hanging, config=settings(tmp_path, how, num_workers=0)) as whole:
        [whole.train() for _ in range(3)]
    before = signal.getsignal(signal.SIGALRM)
    with PPO(env=Hanging, config=settings(tmp_path, how, num_workers=0, env_step_timeout_s=3)) as trainer:
        trainer.train()
        (tmp_path / "armed").write_text("once")
        with pytest.raises(EnvTimeoutError, match=r"Hanging' hangs: step\(\) has not returned after 3 s"):
            trainer.train()
        assert signal.getsignal(signal.SIGALRM) == before
        [trainer.train() for _ in range(2)]
        assert trainer.policy.flat.equal(whole.policy.flat)


@pytest.mark.slow
@pytest.mark.usefixtures("process_engine")
def test_an_agent_that_hangs_is_replaced(tmp_path: Path) -> None:
    config = {"async": True, "num_workers": 2, "learning_starts": 64, "buffer_size": 1000, "env_step_timeout_s": 2}
    with DQN(env=Hanging, config=settings(tmp_path, "sleeps", **config)) as trainer:
        trainer.train()
        (tmp_path / "armed").write_text("once")
        while not trainer.workers.replaced:
            trainer.train()
        trainer.evaluate()
        assert trainer.timesteps == sum(state.fragments * state.lanes for state in trainer.workers.states) * 16


@pytest.mark.slow
@pytest.mark.usefixtures("process_engine")
def test_an_evaluation_that_hangs_is_played_again(tmp_path: Path) -> None:
    config = settings(tmp_path, "sleeps", num_workers=0, evaluation_num_workers=1, env_step_timeout_s=2)
    with PPO(env=Hanging, config=config) as trainer:
        first = trainer.evaluate()
        (tmp_path / "armed").write_text("once")
        assert trainer.evaluate() == first
        assert (tmp_path / "hanging").exists()


def test_a_slow_environment_is_not_one_that_hangs(tmp_path: Path) -> None:
    """The limit is for one step of one environment, not for all of them."""
    config = {**SMALL, "train_batch_size": 16, "num_workers": 0, "env_step_timeout_s": 3}
    with PPO(env=probes.Walk, config={**config, "env_config": {"sleep": 0.2}}) as trainer:
        assert trainer.train()["timesteps_total"] == 16  # 3.2 s


def test_an_environment_that_raises_still_says_so() -> None:
    config = {**SMALL, "num_workers": 0, "env_step_timeout_s": 60, "env_config": {"flaw": "raises", "after": 1100}}
    with PPO(env=probes.Flawed, config=config) as trainer, pytest.raises(EnvError, match="gripper"):
        [trainer.train() for _ in range(100)]


# At the command line


@pytest.fixture
def hanging_run(tmp_path: Path) -> Iterator[HangingRun]:
    """A run whose environment hangs, in its second iteration or later. Whatever comes of it, it is ended."""
    started: list[subprocess.Popen[str]] = []

    def run(how: str, *arguments: str) -> subprocess.Popen[str]:
        env_config = f"env_config={{folder: {tmp_path}, how: {how}}}"
        train = ["--env", "tests.collect.test_hanging:Hanging", "--config", env_config, "--config", "num_envs=2"]
        started.append(start(tmp_path, *train, "--config", "train_batch_size=32", *arguments))
        wait_for(started[-1].stdout.readline)  # type: ignore[union-attr]
        (tmp_path / "armed").touch()
        wait_for((tmp_path / "hanging").exists)
        return started[-1]

    yield run
    for running in started:
        running.kill()
        running.communicate()


def test_a_hanging_environment_ends_the_run_with_one_sentence(tmp_path: Path, hanging_run: HangingRun) -> None:
    running = hanging_run("sleeps", "--num-workers", "0", "--config", "env_step_timeout_s=3")
    _, err = running.communicate(timeout=60)
    assert running.returncode == 2
    assert re.search(r"^outplay: environment 'tests.collect.test_hanging:Hanging' hangs: step\(\)", err, re.MULTILINE)
    assert "Traceback" not in err
    (folder,) = (tmp_path / "results").glob("*/*")
    assert json.loads((folder / "status.json").read_text())["state"] == "failed"
    assert list((folder / "checkpoints").iterdir())  # what was learned before


@pytest.mark.parametrize(
    ("how", "workers"),
    [
        pytest.param("lets nothing through", 0, marks=pytest.mark.slow),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("sleeps", 0), ("loops", 0), ("sleeps", 1), ("in C", 1))
        ),
    ],
)
def test_the_second_ctrl_c_ends_what_hangs(hanging_run: HangingRun, how: str, workers: int) -> None:
    running = hanging_run(how, "--num-workers", str(workers))
    assert ("did not stop in time" in interrupt_twice(running)) == (how == "lets nothing through")


def test_the_second_ctrl_c_ends_what_hangs_in_c(hanging_run: HangingRun) -> None:
    """All of Python waits for it: the operating system ends the program."""
    running = hanging_run("in C", "--num-workers", "0")
    running.send_signal(signal.SIGINT)

    def first_was_delivered() -> bool:
        caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{running.pid}/status").read_text())
        return caught is not None and not int(caught[1], 16) >> (signal.SIGINT - 1) & 1

    wait_for(first_was_delivered)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    assert running.returncode == -signal.SIGINT
