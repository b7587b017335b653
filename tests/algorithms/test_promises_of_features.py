"""The promises, with everything a policy, an environment or an evaluation can have, on every engine.

Each case begins without workers, is resumed with two, one of which is killed, and is resumed once more without them. It
ends with the same bytes and reports the same results as the case that ran in one go, in this process.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import outplay
from outplay import A2C, APPO, DDPG, DQN, IMPALA, PG, PPO, PQN, SAC, TD3, Algorithm
from outplay.envs.examples import Maze as Levels
from outplay.envs.examples import RepeatAfterMe
from outplay.testing.algorithm import learned
from outplay.testing.probes import Forbidding
from tests import probes
from tests.algorithms.test_curriculum import curriculum
from tests.envs.sequences import Objects, Told
from tests.policies.test_action_embeddings import EMBEDDED, Offers
from tests.policies.test_custom import Remembering
from tests.policies.test_recurrent import CORES, PREVIOUS
from tests.runs.test_info_metrics import Goals

SMALL: dict[str, Any] = {
    "num_envs": 4, "num_env_groups": 2, "train_batch_size": 64, "rollout_fragment_length": 8, "seed": 7,
    "model": {"fcnet_hiddens": [8]},
}  # fmt: skip
WHOLE_EPISODES = {"rollout_fragment_length": "auto"}
OFF_POLICY: dict[str, Any] = {
    "train_batch_size": 32, "learning_starts": 32, "sgd_minibatch_size": 8, "buffer_size": 400,
    "training_intensity": 1.0, "prioritized_replay": True, "n_step": 2,
}  # fmt: skip
ITERATIONS = 6  # of each case
TIMES = ("time_this_iter_s", "time_total_s", "env_steps_per_s", "stages_s")


class Counted(Forbidding):
    """Random masks, and the info tells how many of the actions so far were the best."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.best = 0
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        self.best += int(reward)
        return observation, reward, terminated, truncated, {**info, "best": self.best}


def local_model() -> type[nn.Module]:
    """A class that no other process can import."""

    class Wide(nn.Module):
        def __init__(self, observation_space: Any, size: int) -> None:
            super().__init__()
            self.linear = nn.Linear(observation_space.shape[0], size)

        def forward(self, observation: Tensor) -> Tensor:
            return torch.relu(self.linear(observation))

    return Wide


def task_by_return(train_results: Any, task_settable_env: Any, env_ctx: Any) -> int:
    del task_settable_env, env_ctx
    return 1 + int(train_results["training_iteration"] > 2)


def model(core: str = "", **more: Any) -> dict[str, Any]:
    return {"model": {**SMALL["model"], **({**CORES[core], "max_seq_len": 6} if core else {}), **more}}


def exploring(kind: str) -> dict[str, Any]:
    return {"exploration_config": {"type": kind}}


RANDOM_FIRST = {"exploration_config": {"random_timesteps": 40}}
EVALUATION = {"evaluation_interval": 2, "evaluation_duration": 3, "evaluation_num_workers": 1}
MAZE = {"env_config": {"size": 3, "max_steps": 12}}
EASY = curriculum([1, 2, 3, 4], {"episode_return_mean": 0.2})
# The first two are in the quick suite, on Ray too.
CASES: dict[str, tuple[type[Algorithm], Any, dict[str, Any]]] = {
    "PPO: LSTM, previous, masks, info": (PPO, Counted, {**model("lstm", **PREVIOUS), "info_metrics": ["best"]}),
    "DQN: LSTM, previous, burn-in, masks": (DQN, Forbidding, {**model("lstm", **PREVIOUS), "burn_in_len": 3}),
    "PPO: attention, masks of parts": (PPO, Forbidding, {**model("attention"), "env_config": {"several": True}}),
    "A2C: GRU, normalised": (A2C, probes.Walk, {**model("gru", **PREVIOUS), "normalize_observations": True}),
    "PG: LSTM, info": (PG, Goals, {**model("lstm"), **WHOLE_EPISODES, "info_metrics": ["ones", "deep/length"]}),
    "DQN: attention": (DQN, probes.Walk, {**model("attention"), "burn_in_len": 2}),
    "DQN: masks in the info": (DQN, Forbidding, {"env_config": {"masks": "info", "truncates": True}}),
    "DQN: LSTM, parameter noise": (DQN, probes.Walk, {**model("lstm"), **exploring("ParameterNoise")}),
    "DQN: SoftQ, info": (DQN, Goals, {**exploring("SoftQ"), "info_metrics": ["is_long"]}),
    "PPO: sequences": (PPO, Objects, {"env_config": {"alone": False}}),
    "DQN: sequences, attended": (DQN, Objects, model(sequence_pooling="attention")),
    "A2C: text": (A2C, Told, model(text="characters")),
    "PPO: embedded actions": (PPO, Offers, model(**EMBEDDED)),
    "PPO: curriculum": (PPO, Levels, {**MAZE, **EASY}),
    "DQN: curriculum": (DQN, Levels, {**MAZE, **EASY}),
    "A2C: tasks by a function": (A2C, Levels, {**MAZE, "env_task_fn": task_by_return}),
    "PPO: evaluation, curriculum": (PPO, Levels, {**MAZE, **EASY, **EVALUATION}),
    "PPO: evaluation beside training": (
        PPO, Counted, {**model("lstm"), **EVALUATION, "evaluation_parallel_to_training": True, "info_metrics": ["best"]}
    ),
    "DQN: evaluation beside training": (
        DQN, probes.Walk, {**EVALUATION, "evaluation_parallel_to_training": True, "env_config": {"length": 9}}
    ),
    "PPO: custom model": (
        PPO, "CartPole-v1", model(custom_model=local_model(), custom_model_config={"size": 8}, use_lstm=True)
    ),
    "A2C: recurrent custom model": (A2C, RepeatAfterMe, {"model": {"custom_model": Remembering, "max_seq_len": 7}}),
    "DQN: custom model": (DQN, "CartPole-v1", model(custom_model=local_model(), custom_model_config={"size": 8})),
    "SAC: masks": (SAC, Forbidding, RANDOM_FIRST),
    "SAC: LayerNorm, dropout, normalised": (
        SAC, probes.Aim, {**RANDOM_FIRST, "critic_norm": "layer", "critic_dropout": 0.1, "normalize_observations": True}
    ),
    "TD3: batch normalisation": (
        TD3, probes.Aim, {**RANDOM_FIRST, "critic_norm": "batch", "use_target_network": False}
    ),
    "DDPG: noise correlated in time": (DDPG, probes.Walk, {**RANDOM_FIRST, "env_config": {"continuous": True}}),
    "PPO: RND, LSTM": (PPO, probes.Walk, {**model("lstm"), "intrinsic_reward": {}}),
    "IMPALA: LSTM, previous, masks": (IMPALA, Forbidding, {**model("lstm", **PREVIOUS), "async": False}),
    "APPO: GRU, normalised": (
        APPO, probes.Walk, {**model("gru", **PREVIOUS), "normalize_observations": True, "async": False}
    ),
    "A2C: RND": (A2C, probes.Walk, {"intrinsic_reward": {}}),
    "PQN: LSTM, previous, masks": (PQN, Forbidding, {**model("lstm", **PREVIOUS), "env_config": {"truncates": True}}),
    "PQN: SoftQ, info, normalised": (
        PQN, Goals, {**exploring("SoftQ"), "info_metrics": ["is_long"], "normalize_observations": True}
    ),
}  # fmt: skip
QUICK = list(CASES)[:2]


def make(case: str, **more: Any) -> Algorithm:
    algorithm, env, config = CASES[case]
    return algorithm(env, {**SMALL, **(OFF_POLICY if algorithm in (DQN, SAC, TD3, DDPG) else {}), **config, **more})


def results(trainer: Algorithm, iterations: int) -> list[str]:
    """The results of the next iterations, without what a clock says."""
    found: list[dict[str, Any]] = [dict(trainer.train()) for _ in range(iterations)]
    return [json.dumps({key: result[key] for key in result if key not in TIMES}, sort_keys=True) for result in found]


@cache
def alone(case: str) -> tuple[list[str], bytes]:
    """A case in this process, in one go."""
    with make(case, num_workers=0, evaluation_num_workers=1 if "beside" in case else 0) as trainer:
        before = trainer.policy.flat.clone()
        found = results(trainer, ITERATIONS)
        assert not trainer.policy.flat.equal(before)
        return found, learned(trainer)


def kill_a_worker(trainer: Algorithm) -> None:
    """kill -9 one that collects, and one that evaluates if there is one."""
    pids = [pid for _, pid in trainer.workers.foreach_worker(lambda worker: worker.process())][1:]
    evaluator = trainer._evaluator
    if evaluator is not None:
        pids.append(outplay.get(evaluator._pool.remote[0].process.remote())[1])
    for pid in pids:
        assert pid != os.getpid()
        os.kill(pid, signal.SIGKILL)


def _runs() -> Iterator[Any]:
    for engine, case in itertools.product(("inline", "process", "ray"), CASES):
        is_quick = engine == "inline" and case in QUICK  # test_placement.py has workers on Ray
        yield pytest.param(engine, case, marks=[] if is_quick else [pytest.mark.slow])


@pytest.mark.parametrize(("engine", "case"), list(_runs()), indirect=["engine"])
def test_workers_a_kill_and_resumes_do_not_change_the_result(engine: str, case: str, tmp_path: Path) -> None:
    expected, weights = alone(case)
    found: list[str] = []
    checkpoint = ""
    for num_workers, iterations in ((0, 1), (2, 4), (0, 1)):
        with make(case, num_workers=num_workers) as trainer:
            if checkpoint:
                trainer.restore(checkpoint)
            found += results(trainer, iterations - 1)
            if num_workers and engine != "inline":
                kill_a_worker(trainer)
            found += results(trainer, 1)
            assert trainer.workers.replaced == (num_workers > 0 and engine != "inline")
            checkpoint = trainer.save(tmp_path)
            assert trainer.iteration < ITERATIONS or learned(trainer) == weights
    assert found == expected
