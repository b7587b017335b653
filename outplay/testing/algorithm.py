"""Conformance suite for algorithms: learning on probes; exactness of placement, resuming and worker crashes."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import outplay
from outplay import Algorithm, ConfigError, EnvError, data
from outplay.testing import probes

SMALL: dict[str, Any] = {
    "num_envs": 4, "num_env_groups": 2, "num_workers": 0, "train_batch_size": 64, "seed": 7,
    "model": {"fcnet_hiddens": [16]},
}  # fmt: skip
# For each kind of action space: a probe, and the mean return of a trained policy.
SPACES: dict[str, tuple[type[Any], float]] = {
    "discrete": (probes.Match, 0.9),  # random policy: 0.5
    "several": (probes.Nested, 0.9),  # random policy: 0.5
    "continuous": (probes.Aim, -1.0),  # random policy: about −4
}


class AlgorithmConformance:
    """Tests of an algorithm. Set its class, and settings with which it solves a probe within `iterations` iterations.

    >>> class TestMine(AlgorithmConformance):
    ...     algorithm = Mine
    ...     config = {"lr": 0.01}
    """

    algorithm: ClassVar[type[Algorithm]]
    config: ClassVar[dict[str, Any]] = {}
    iterations: ClassVar[int] = 40
    # Supported action spaces: "discrete", "several" (MultiDiscrete), "continuous". Others must raise EnvError.
    action_spaces: ClassVar[tuple[str, ...]] = ("discrete", "several", "continuous")
    # Whether the algorithm estimates values, which `value` returns.
    bootstraps: ClassVar[bool] = True
    # Whether the algorithm uses rewards, and discounts them. False for behaviour cloning.
    discounts: ClassVar[bool] = True
    # For an algorithm that learns from recorded data: which fraction of random episodes, the best ones, is its data
    # set (the setting `input`). None: the algorithm collects its experience.
    recorded_fraction: ClassVar[float | None] = None
    # False for asynchronous algorithms, whose results depend on timing: skips tests of equal weights.
    is_exact: ClassVar[bool] = True

    @pytest.fixture(autouse=True)
    def _folder_of_data(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.folder_of_data = tmp_path_factory.getbasetemp() / "recorded"  # shared by all tests of a session

    def make(self, env: Any, **config: Any) -> Algorithm:
        if self.recorded_fraction is not None:
            config = {"input": self.recorded(env, config.get("env_config", {})), **config}
        return self.algorithm(env=env, config={**SMALL, **self.config, **config})

    def recorded(self, env: Any, env_config: dict[str, Any]) -> str:
        """A folder with random episodes of a probe: the best ones, by their returns."""
        assert self.recorded_fraction is not None
        name = "-".join([env.__name__, *(f"{key}={env_config[key]}" for key in sorted(env_config))])
        folder = self.folder_of_data / f"{name}-{self.recorded_fraction}"
        if not folder.exists():
            record_random_episodes(env, env_config, self.folder_of_data / name)
            keep_best_episodes(self.folder_of_data / name, folder, self.recorded_fraction)
        return str(folder)

    def make_on_probe(self, env: Any, env_config: dict[str, Any] | None = None, **config: Any) -> Algorithm:
        """On a probe with discrete actions; if the algorithm does not support them, with continuous ones."""
        continuous = {} if "discrete" in self.action_spaces else {"continuous": True}
        return self.make(env, env_config={**(env_config or {}), **continuous}, **config)

    def value(self, trainer: Algorithm, observation: np.ndarray) -> float:
        """The value estimate of one observation."""
        learner: Any = trainer.learner
        return float(learner.values_of((observation[None],))[0])

    def trained(self, env: Any, iterations: int, **config: Any) -> bytes:
        """Weights and learner state after this many iterations, as bytes."""
        with self.make_on_probe(env, **config) as trainer:
            for _ in range(iterations):
                trainer.train()
            return learned(trainer)

    @pytest.fixture
    def exact(self) -> None:
        if not self.is_exact:
            pytest.skip("its result depends on timing")

    @pytest.fixture
    def collecting(self) -> None:
        if self.recorded_fraction is not None:
            pytest.skip("it learns from recorded data: it has neither workers nor environments in training")

    # Learning.

    @pytest.mark.parametrize("space", SPACES)
    def test_it_learns_with_an_action_space_or_refuses_it(self, space: str) -> None:
        env, enough = SPACES[space]
        if space not in self.action_spaces:
            with pytest.raises(EnvError) as caught:
                self.make(env).stop()
            assert "\n" not in str(caught.value)
            return
        with self.make(env, evaluation_duration=50) as trainer:
            for _ in range(self.iterations * (2 if space == "continuous" else 1)):
                result = trainer.train()
            assert trainer.evaluate()["episode_return_mean"] > enough
            assert np.isfinite(list(result["learner"].values())).all()
            observation, _ = env().reset(seed=0)
            assert env.action_space.contains(trainer.compute_single_action(observation))

    @pytest.mark.parametrize("space", ["discrete", "several"])
    def test_it_never_takes_a_forbidden_action(self, space: str) -> None:
        """The probe raises on forbidden actions, in training and in evaluation."""
        if space not in self.action_spaces:
            pytest.skip("it does not support such actions")
        with self.make(probes.Forbidding, env_config={"several": space == "several"}) as trainer:
            for _ in range(self.iterations):
                trainer.train()
            assert trainer.evaluate()["episode_return_mean"] > 3.2  # of 4; random policy: about 2
            observation, _ = probes.Forbidding(several=space == "several").reset(seed=0)
            action, mask = trainer.compute_single_action(observation), observation["action_mask"]
            parts = zip(np.atleast_1d(action), mask if space == "several" else [mask], strict=True)
            assert all(part[choice] for choice, part in parts)

    @pytest.mark.parametrize(("gamma", "best"), [(0.5, 1.0), (0.95, 2.0)])
    def test_it_discounts_later_rewards(self, gamma: float, best: float) -> None:
        if not self.discounts:
            pytest.skip("it uses no rewards")
        with self.make_on_probe(probes.Patience, gamma=gamma) as trainer:
            for _ in range(self.iterations):
                trainer.train()
            assert trainer.evaluate()["episode_return_mean"] == best

    @pytest.mark.parametrize(("truncated", "value"), [(False, 1.0), (True, 2.0)])
    def test_values_bootstrap_where_an_episode_is_truncated(self, truncated: bool, value: float) -> None:
        """Rewards and observations are the same in both cases. Merging the flags would give equal values."""
        if not self.bootstraps:
            pytest.skip("it estimates no values")
        with self.make_on_probe(probes.LastStep, gamma=0.5, env_config={"truncated": truncated}) as trainer:
            for _ in range(2 * self.iterations):
                trainer.train()
            assert self.value(trainer, np.array([0.75], np.float32)) == pytest.approx(value, abs=0.3)

    def test_an_unknown_setting_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"unknown setting 'gama'. Did you mean 'gamma'\?"):
            self.make(probes.Match, gama=0.9)

    # Placement does not change the result.

    @pytest.mark.usefixtures("exact", "collecting")
    @pytest.mark.parametrize("engine", ["inline", "process"])
    def test_workers_do_not_change_the_result(self, engine: str) -> None:
        alone = self.trained(probes.Walk, 3)
        with running(engine):
            assert self.trained(probes.Walk, 3, num_workers=2) == alone

    def test_the_seed_changes_the_result(self) -> None:
        assert self.trained(probes.Walk, 2) != self.trained(probes.Walk, 2, seed=8)

    # A lost worker costs time, not data.

    @pytest.mark.usefixtures("exact", "collecting")
    def test_a_worker_that_dies_does_not_change_the_result(self) -> None:
        with running("process"), self.make_on_probe(probes.Walk, num_workers=2) as trainer:
            for iteration in range(4):
                if iteration == 2:
                    _, pid = trainer.workers.foreach_worker(lambda worker: worker.process())[1]
                    os.kill(pid, signal.SIGKILL)
                trainer.train()
            assert learned(trainer) == self.trained(probes.Walk, 4)

    # Stopping does not change the result.

    @pytest.mark.usefixtures("exact")
    def test_a_restored_run_goes_on_exactly(self, tmp_path: Path) -> None:
        """Saving and evaluating on the way change nothing, either."""
        with self.make_on_probe(probes.Walk) as whole:
            results = [whole.train() for _ in range(6)]
            expected = learned(whole)
        with self.make_on_probe(probes.Walk) as first:
            for _ in range(3):
                first.train()
                path = first.save(tmp_path)
                first.evaluate()
        with self.make_on_probe(probes.Walk) as second:
            second.restore(path)
            resumed = [second.train() for _ in range(3)]
            assert learned(second) == expected
        for ours, theirs in zip(resumed, results[3:], strict=True):
            for key in ("training_iteration", "timesteps_total", "episodes_total", "learner"):
                assert ours[key] == theirs[key]
        with self.algorithm.from_checkpoint(path, env=probes.Walk) as third:
            assert third.iteration == 3

    @pytest.mark.usefixtures("exact", "collecting")
    def test_an_iteration_that_fails_is_rolled_back(self) -> None:
        expected = self.trained(probes.Failing, 3)
        with self.make_on_probe(probes.Failing) as trainer:
            trainer.train()
            before = learned(trainer)
            probes.Failing.countdown = trainer.config.train_batch_size // 2
            with pytest.raises(EnvError, match="the step failed"):
                trainer.train()
            assert learned(trainer) == before
            for _ in range(2):
                trainer.train()
            assert learned(trainer) == expected

    @pytest.mark.usefixtures("exact")
    def test_an_iteration_interrupted_anywhere_is_rolled_back(self) -> None:
        rng = random.Random(0)
        folders = [Path(outplay.__file__).parent, Path(sys.modules[self.algorithm.__module__].__file__ or "").parent]
        interrupts = 0
        with self.make_on_probe(probes.Walk) as whole, self.make_on_probe(probes.Walk) as trainer:
            for _ in range(4):
                lines = interrupt_at(whole.train, folders)
                for _ in range(3):
                    if trainer.iteration == whole.iteration:  # the interrupt came after its end
                        break
                    try:  # a repeated iteration may have fewer lines: what was opened is open
                        interrupt_at(trainer.train, folders, rng.randrange(1, lines))
                    except KeyboardInterrupt:
                        interrupts += 1
                if trainer.iteration < whole.iteration:
                    trainer.train()
                assert learned(trainer) == learned(whole)
        assert interrupts > 4


def record_random_episodes(env: Any, env_config: dict[str, Any], folder: Path) -> None:
    """Record a policy that is not trained."""
    if folder.exists():
        return
    config = {**SMALL, "train_batch_size": 2048, "lr": 0.0, "env_config": env_config, "output": str(folder)}
    with outplay.PPO(env, config) as trainer:
        trainer.train()


def keep_best_episodes(source: Path, folder: Path, fraction: float) -> None:
    """Copy the episodes with the highest returns; those that the recording cut off are left out."""
    rows = data.read_parquet(source).to_arrays()
    episodes, index = np.unique(rows["episode_id"], return_inverse=True)
    returns = np.bincount(index, rows["reward"].astype(float))
    ended = np.bincount(index, rows["terminated"] | rows["truncated"]) > 0
    order = np.argsort(np.where(ended, returns, -np.inf), kind="stable")[::-1]
    kept = np.zeros(len(episodes), bool)
    kept[order[: max(1, round(fraction * ended.sum()))]] = True
    data.from_arrays({name: array[kept[index]] for name, array in rows.items()}).write_parquet(folder)


@contextmanager
def running(engine: str) -> Iterator[None]:
    outplay.shutdown()
    outplay.init(engine, num_cpus=2)
    try:
        yield
    finally:
        outplay.shutdown()


def learned(trainer: Algorithm) -> bytes:
    """The weights and the learner's saved state, as bytes."""
    state, tensors = trainer.learner.state()
    weights = trainer.get_policy().get_weights()
    parts = [np.ascontiguousarray(weights[name]).tobytes() for name in sorted(weights)]
    parts += [tensors[name].cpu().numpy().tobytes() for name in sorted(tensors)]
    return b"".join([*parts, repr(state).encode()])


def interrupt_at(work: Callable[[], Any], paths: Iterable[Path], at: int | None = None) -> int:
    """Call `work` and count the executed lines of code in `paths`. Raise KeyboardInterrupt at line number `at`."""
    traced = tuple(map(str, paths))
    count = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(traced):
            return None
        if event == "line":
            count += 1
            if count == at:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
