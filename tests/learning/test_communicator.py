"""What learners exchange, and what they notice when another one is gone."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from outplay import LearnerDiedError
from outplay.learning.communicator import Address, Communicator


def test_an_operation_that_starts_after_another_learner_has_died(tmp_path: Path) -> None:
    """gloo then raises when the operation starts, not while it waits."""
    address = Address("127.0.0.1", tmp_path / "store")
    with ThreadPoolExecutor(2) as pool:
        both = pool.map(lambda rank: Communicator(address.store(2), address.host, rank, 2), range(2))
    first, other = both
    other.close()
    time.sleep(0.5)  # until gloo has noticed
    with pytest.raises(LearnerDiedError):
        first.send([np.zeros(3)], [], 1)
    with pytest.raises(LearnerDiedError):
        first.receive(1)
    with pytest.raises(LearnerDiedError):
        first.sum(torch.zeros(3))
