"""Trains about 20 small runs and prints a hash of each run's weights: to see whether a change changed any result.

    python benchmarks/fingerprints.py > before.txt
    ...change the code...
    python benchmarks/fingerprints.py > after.txt && diff before.txt after.txt

Hashes can be compared on one machine with one set of installed versions only (see docs/reproducibility.md).
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from dataclasses import dataclass, field
from typing import Any

import outplay
from outplay import A2C, DQN, PG, PPO, PQN, Algorithm


@dataclass(frozen=True)
class Case:
    """One run: an algorithm with settings, and how many iterations it trains for."""

    algorithm: type[Algorithm]
    env: str = "CartPole-v1"
    config: dict[str, Any] = field(default_factory=dict)
    iterations: int = 3
    resumes: bool = False  # saved after the first iteration, and continued by another Algorithm
    engine: str = "process"


_PPO: dict[str, Any] = {"train_batch_size": 256, "sgd_minibatch_size": 64, "num_sgd_iter": 2}
_DQN: dict[str, Any] = {"train_batch_size": 128, "learning_starts": 128, "buffer_size": 2000, "iterations": 4}
_SCHEDULES: dict[str, Any] = {
    "lr_schedule": [[0, 1e-3], [1000, 0.0]],
    "entropy_coeff_schedule": [[0, 0.1], [1000, 0.0]],
    "kl_coeff": 0.2,
    "vf_clip_param": 1.0,
}


def _ppo(env: str = "CartPole-v1", **config: Any) -> Case:
    return Case(PPO, env, {**_PPO, **config})


def _dqn(env: str = "CartPole-v1", resumes: bool = False, **config: Any) -> Case:
    settings = {**_DQN, **config}
    return Case(DQN, env, settings, settings.pop("iterations"), resumes)


CASES: dict[str, Case] = {
    "ppo": _ppo(),
    "ppo, 2 workers": _ppo(num_workers=2),
    "ppo, 2 workers, inline": Case(PPO, config={**_PPO, "num_workers": 2}, engine="inline"),
    "ppo, resumed": Case(PPO, config=_PPO, resumes=True),
    "ppo, schedules, KL penalty, value clipping": _ppo(**_SCHEDULES),
    "ppo, normalised observations": _ppo(normalize_observations=True),
    "ppo, continuous, shared layers": _ppo("Pendulum-v1", model={"vf_share_layers": True}, reward_scale=0.1),
    "ppo, whole episodes": _ppo(batch_mode="complete_episodes"),
    "ppo, no critic": _ppo(use_critic=False, batch_mode="complete_episodes"),
    "ppo, images": _ppo("ALE/Pong-v5", num_envs=4, normalize_observations=True),
    "ppo, images, bfloat16": _ppo("ALE/Pong-v5", num_envs=4, model={"precision": "bfloat16"}),
    "a2c": Case(A2C),
    "a2c, 2 workers, resumed": Case(A2C, config={"num_workers": 2}, resumes=True),
    "a2c, standardized, Adam": Case(A2C, config={"normalize_advantages": True, "optimizer": {"type": "adam"}}),
    "pg": Case(PG, config={"train_batch_size": 256}),
    "pg, batches of episodes": Case(
        PG, config={"train_batch_episodes": 5, "normalize_advantages": "episode", "sum_gradients": True, "lr": 1e-4}
    ),
    "dqn": _dqn(),
    "dqn, resumed": _dqn(resumes=True, prioritized_replay=True),
    "dqn, 3-step, prioritised, 3 groups, 2 workers": _dqn(
        n_step=3, prioritized_replay=True, num_env_groups=3, num_workers=2
    ),
    "dqn, 2 replay shards": _dqn(replay_shards=2, num_env_groups=3, num_envs=6),
    "dqn, plain": _dqn(double_q=False, dueling=False, tau=0.1, target_network_update_freq=10),
    "dqn, c51, noisy": _dqn(distributional="c51", noisy=True, v_min=0.0, v_max=100.0),
    "pqn": Case(PQN, config={"train_batch_size": 256}),
    "pqn, LSTM, 2 workers, resumed": Case(
        PQN, config={"train_batch_size": 256, "num_workers": 2, "model": {"use_lstm": True}}, resumes=True
    ),
    "dqn, qr": _dqn(distributional="qr", num_atoms=11, normalize_observations=True),
}


def fingerprint(weights: dict[str, Any]) -> str:
    """A hash of parameters and normalisers; not of exploration values, which are no result of learning."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        if name != "epsilon":
            digest.update(name.encode())
            digest.update(weights[name].tobytes())
    return digest.hexdigest()[:16]


def trained(case: Case) -> str:
    outplay.init(case.engine, num_cpus=2)
    try:
        settings = {"num_workers": 0, "seed": 7, **case.config}
        trainer = case.algorithm(env=case.env, config=settings)
        with tempfile.TemporaryDirectory() as folder:
            for iteration in range(case.iterations):
                if iteration == 1 and case.resumes:
                    path = trainer.save(folder)
                    trainer.stop()
                    trainer = case.algorithm(env=case.env, config=settings)
                    trainer.restore(path)
                trainer.train()
        trainer.stop()
        return fingerprint(trainer.get_policy().get_weights())
    finally:
        outplay.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    only = parser.parse_args().only
    for name, case in CASES.items():
        if only in name:
            print(f"{name:<50}{trained(case)}", flush=True)


if __name__ == "__main__":
    main()
