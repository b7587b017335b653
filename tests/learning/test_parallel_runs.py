"""A run with several learners that is killed as a whole, and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from outplay.testing.waiting import until

EXPERIMENT = """
poles:
  env: CartPole-v1
  run: {run}
  stop: {{training_iteration: 12}}
  checkpoint_freq: 2
  config:
    num_learners: 2
    num_workers: 0
    num_envs: 4
    train_batch_size: 64
    sgd_minibatch_size: 16
    seed: 3
    {more}
"""
MORE = {"PPO": ["num_sgd_iter: 4"], "DQN": ["learning_starts: 64", "buffer_size: 1000", "prioritized_replay: true"]}


def started(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "outplay", "train", *arguments, "--results-dir", str(folder / "results")]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, start_new_session=True)


def checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("results/**/checkpoint_*/weights.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize("run", ["PPO", "DQN"])
def test_a_killed_run_resumes_exactly(tmp_path: Path, run: str) -> None:
    weights = []
    for name in ("whole", "killed"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "experiment.yaml").write_text(EXPERIMENT.format(run=run, more="\n    ".join(MORE[run])))
        process = started(folder, "-f", "experiment.yaml")
        if name == "killed":
            until(lambda folder=folder: checkpoints(folder))
            children = psutil.Process(process.pid).children(recursive=True)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            until(lambda children=children: not any(map(psutil.Process.is_running, children)))  # no learner is left
            found = checkpoints(folder)[-1].parent.parent.parent
            process = started(folder, "--resume", str(found))
        assert process.wait(300) == 0
        weights.append(checkpoints(folder)[-1].read_bytes())
    assert weights[0] == weights[1]
