"""Environments are closed when a run is over, wherever they are."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from outplay import PPO
from tests import probes

SMALL = {"num_envs": 4, "num_env_groups": 2, "train_batch_size": 64, "seed": 3, "model": {"fcnet_hiddens": [8]}}


class Closing(probes.Walk):
    """Writes down in which process it was closed."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.log = Path(folder) / uuid.uuid4().hex

    def close(self) -> None:
        self.log.write_text(str(os.getpid()))


@pytest.mark.usefixtures("process_engine")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_environments_are_closed(tmp_path: Path, num_workers: int) -> None:
    with PPO(env=Closing, config={**SMALL, "num_workers": num_workers, "env_config": {"folder": str(tmp_path)}}) as run:
        run.train()
        before = set(tmp_path.iterdir())  # what the probe closed
    closed = {path.read_text() for path in set(tmp_path.iterdir()) - before}
    assert len(closed) == max(1, num_workers)
    assert (str(os.getpid()) in closed) == (num_workers == 0)
