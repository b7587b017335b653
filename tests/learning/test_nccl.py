"""NCCL between learners on GPUs. One GPU is enough: the learners pretend to be on hosts of their own.

NCCL refuses two ranks on the same GPU of the same host. With `NCCL_HOSTID` different in each process, they are on
different hosts to it, and exchange their gradients through the network interface of this machine.
"""

from __future__ import annotations

import logging
import os
import signal
from typing import Any

import pytest
import torch

from outplay import PPO, SAC, Algorithm
from outplay.algorithms.ppo import PPOLearner
from outplay.algorithms.sac import SACLearner
from outplay.learning import mirrors

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")


def appear_alone() -> None:
    """Let NCCL and Outplay take the GPU of this process for one that no other process uses."""
    os.environ.update(NCCL_HOSTID=f"host-{os.getpid()}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
    mirrors._gpu_identity = os.getpid


class LonePPOLearner(PPOLearner):
    def __init__(self, *args: Any) -> None:
        appear_alone()
        super().__init__(*args)


class LoneSACLearner(SACLearner):
    def __init__(self, *args: Any) -> None:
        appear_alone()
        super().__init__(*args)


class LonePPO(PPO):
    Learner = LonePPOLearner


class LoneSAC(SAC):
    Learner = LoneSACLearner


CASES: dict[str, tuple[type[Algorithm], dict[str, Any]]] = {
    "PPO": (LonePPO, {"env": "CartPole-v1", "train_batch_size": 128, "sgd_minibatch_size": 50, "num_sgd_iter": 2}),
    "SAC": (LoneSAC, {"env": "Pendulum-v1", "learning_starts": 64, "train_batch_size": 32, "sgd_minibatch_size": 33}),
}


def make(case: str, num_learners: int) -> Algorithm:
    algorithm, config = CASES[case]
    shared = {"num_workers": 0, "seed": 3, "num_learners": num_learners, "num_gpus_per_learner": 1 / num_learners}
    return algorithm(**config, **shared, act_on_gpu=False, model={"fcnet_hiddens": [32]})


@on_gpu
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_summed_by_nccl(
    case: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is that of one learner, up to rounding; a learner that is killed is replaced."""
    monkeypatch.setattr(mirrors, "_gpu_identity", mirrors._gpu_identity)  # restored after the test
    with make(case, 1) as alone:
        expected = [alone.train()["learner"] for _ in range(5)]
        weights = alone.policy.flat.cpu().clone()
    with caplog.at_level(logging.WARNING), make(case, 2) as trainer:
        found = [trainer.train()["learner"] for _ in range(3)]
        communicator = trainer.learner.optimizer.communicator
        assert communicator is not None
        assert communicator._nccl is not None
        group = trainer.learner.mirrors
        assert group is not None
        assert len(group.process_ids) == 1
        assert group.process_ids[0] != os.getpid()
        os.kill(group.process_ids[0], signal.SIGKILL)
        found += [trainer.train()["learner"] for _ in range(2)]
        assert group.starts == 2
        torch.testing.assert_close(trainer.policy.flat.cpu(), weights, rtol=1e-3, atol=1e-4)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-2, abs=1e-3, nan_ok=True)
    assert "share a GPU" not in caplog.text
    assert "has other weights" not in caplog.text
