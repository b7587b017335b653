"""Algorithms that learn from recorded data: streaming, resuming, normalising, mistakes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from outplay import BC, CQL, IQL, MARWIL, PPO, Algorithm, ConfigError, DataError, data
from outplay.data.checking import ActionCheck, check_columns
from outplay.learning import offline
from outplay.runs.run import Run
from outplay.spaces import flat_action, leaves
from outplay.testing.algorithm import learned

SMALL: dict[str, Any] = {
    "train_batch_size": 256, "sgd_minibatch_size": 64, "num_workers": 0, "model": {"fcnet_hiddens": [16]}
}  # fmt: skip


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    config = {"num_envs": 4, "num_workers": 0, "train_batch_size": 700, "output": str(folder), "max_episode_steps": 60}
    with PPO("CartPole-v1", config) as trainer:
        for _ in range(2):
            trainer.train()
    return folder


@pytest.mark.parametrize("algorithm", [BC, MARWIL, IQL])
def test_streaming_gives_the_result_of_data_in_memory(
    algorithm: type[Algorithm], recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = []
    for limit in (2**30, 0):
        monkeypatch.setattr(offline, "_IN_MEMORY", limit)
        with algorithm("CartPole-v1", {**SMALL, "input": str(recorded)}) as trainer:
            for _ in range(4):
                trainer.train()
            trained.append(learned(trainer))
    assert trained[0] == trained[1]


@pytest.mark.parametrize("algorithm", [BC, MARWIL, CQL, IQL])
def test_observations_are_normalised_by_the_moments_of_the_data(algorithm: type[Algorithm], recorded: Path) -> None:
    config = {**SMALL, "input": str(recorded), "normalize_observations": True, "sgd_minibatch_size": 50}
    with algorithm("CartPole-v1", config) as trainer:
        trainer.train()
        weights = trainer.get_policy().get_weights()
    rows = data.read_parquet(recorded).to_arrays()["observation"]
    np.testing.assert_allclose(weights["observation_mean_0"], rows.mean(0), atol=0.05)
    np.testing.assert_allclose(weights["observation_scale_0"], 1 / rows.std(0), rtol=0.1)


def test_rows_count_as_timesteps_and_epochs_are_reported(recorded: Path) -> None:
    with BC("CartPole-v1", {**SMALL, "input": str(recorded), "train_batch_size": 1280}) as trainer:
        result = trainer.train()
    assert result["timesteps_total"] == 1280
    assert result["learner"]["updates"] == 20
    assert result["learner"]["epochs"] == pytest.approx(20 / (1400 // 64))


def test_marwil_with_beta_0_clones(recorded: Path) -> None:
    trained = []
    for algorithm, config in ((MARWIL, {"beta": 0.0, "vf_coeff": 0.0}), (BC, {})):
        with algorithm("CartPole-v1", {**SMALL, "input": str(recorded), **config}) as trainer:
            trainer.train()
            trained.append(trainer.get_policy().get_weights()["policy_head.weight"])
    np.testing.assert_allclose(trained[0], trained[1], atol=1e-6)


def test_mistakes_get_one_sentence(recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="BC learns from recorded data: set input"):
        BC("CartPole-v1")
    with pytest.raises(DataError, match="does not exist"):
        BC("CartPole-v1", input=str(tmp_path / "none"))
    with pytest.raises(DataError, match="it was recorded in another environment"):
        BC("Pendulum-v1", input=str(recorded))
    rows = data.read_parquet(recorded).to_arrays()
    without = {name: array for name, array in rows.items() if not name.startswith("next_")}
    data.from_arrays(without).write_parquet(tmp_path / "without")
    with pytest.raises(DataError, match="has no column 'next_observation', which is needed"):
        IQL("CartPole-v1", input=str(tmp_path / "without"))
    BC("CartPole-v1", input=str(tmp_path / "without")).stop()  # cloning needs observations and actions alone
    data.from_arrays({**rows, "action": rows["action"] + 1}).write_parquet(tmp_path / "wrong")
    with BC("CartPole-v1", input=str(tmp_path / "wrong")) as trainer, pytest.raises(DataError, match="the action 2"):
        trainer.train()
    twice = {name: np.concatenate([array, array]) for name, array in rows.items()}
    data.from_arrays(twice).write_parquet(tmp_path / "twice")
    with MARWIL("CartPole-v1", input=str(tmp_path / "twice")) as trainer, pytest.raises(DataError, match="twice"):
        trainer.train()


@pytest.mark.parametrize("kind", [BC, pytest.param(MARWIL, marks=pytest.mark.slow), CQL, IQL])
def test_several_learners_learn_what_one_learns(kind: type[Algorithm], recorded: Path) -> None:
    settings = {**SMALL, "input": str(recorded), "normalize_observations": True, "sgd_minibatch_size": 33}
    with kind("CartPole-v1", settings) as one, kind("CartPole-v1", {**settings, "num_learners": 2}) as two:
        results = [[trainer.train()["learner"] for _ in range(2)] for trainer in (one, two)]
        assert two.policy.flat.detach().numpy() == pytest.approx(one.policy.flat.detach().numpy(), rel=1e-3, abs=1e-5)
        for alone, together in zip(*results, strict=True):
            assert together == pytest.approx(alone, rel=1e-3, abs=1e-5)


def test_changed_data_is_noticed(recorded: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = data.read_parquet(recorded)
    rows.write_parquet(tmp_path / "data")
    with BC("CartPole-v1", {**SMALL, "input": str(tmp_path / "data")}) as trainer:
        trainer.train()
        path = trainer.save(tmp_path)
    rows.write_parquet(tmp_path / "data" / "more")
    with BC.from_checkpoint(path) as trainer:
        trainer.train()
    assert "the data set has 2800 rows, and had 1400" in caplog.text


_KILLED = """
import sys
from outplay.runs.run import Run
run = Run.create({"name": "it", "env": "CartPole-v1", "run": sys.argv[3], "stop": {"training_iteration": 30},
    "checkpoint_freq": 4, "config": {"input": sys.argv[2], "train_batch_size": 320, "sgd_minibatch_size": 32,
    "num_workers": 0, "model": {"fcnet_hiddens": [16]}}}, sys.argv[1])
print(run.folder.path, flush=True)
run.train(lambda result: print(result["training_iteration"], flush=True))
"""


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["BC", "MARWIL", "CQL", "IQL"])
def test_kill_9_does_not_change_the_result(tmp_path: Path, recorded: Path, algorithm: str) -> None:
    folders = []
    for name in ("whole", "killed"):
        command = [sys.executable, "-c", _KILLED, str(tmp_path / name), str(recorded), algorithm]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            folders.append(Path(process.stdout.readline().strip()))
            if name == "killed":
                while process.stdout.readline().strip() != "18":
                    pass
                os.kill(process.pid, signal.SIGKILL)
            process.stdout.read()
    resumed = Run.resume(folders[1])
    assert 0 < resumed.algorithm.iteration < 30
    resumed.train()
    for name in ("weights", "optimizer"):
        file = f"checkpoints/checkpoint_000030/{name}.safetensors"
        assert (folders[0] / file).read_bytes() == (folders[1] / file).read_bytes()


def good(number: int = 600) -> dict[str, np.ndarray]:
    rows = np.arange(number)
    observations = np.random.default_rng(0).normal(size=(number, 4)).astype(np.float32)
    return {
        "observation": observations, "next_observation": observations, "action": rows % 2, "reward": np.ones(number),
        "terminated": rows % 20 == 19, "truncated": np.zeros(number, bool), "episode_id": rows // 20, "step": rows % 20,
    }  # fmt: skip


@pytest.mark.parametrize("kind", [BC, MARWIL, CQL, IQL])
def test_output_is_refused(kind: type[Algorithm], recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"output: {kind.__name__} learns from recorded data"):
        kind("CartPole-v1", {**SMALL, "input": str(recorded), "output": str(tmp_path)})


@pytest.mark.parametrize(
    ("column", "array", "problem"),
    [
        ("action", np.array(["a", "b"] * 300), "column 'action' has the type str, but numbers are needed"),
        ("reward", np.ones((600, 1)), r"column 'reward' has rows of shape \[1\], but one value per row"),
        ("reward", np.array(["a"] * 600), "column 'reward' has the type str"),
        ("terminated", np.zeros((600, 2), bool), r"column 'terminated' has rows of shape \[2\]"),
        ("observation", np.full((600, 4), "a"), r"column 'observation' has the type str\[4\]"),
        ("step", np.zeros(600), "column 'step' has the type float64, but integers are needed"),
    ],
)
def test_types_and_shapes_of_columns_are_checked(column: str, array: np.ndarray, problem: str, tmp_path: Path) -> None:
    data.from_arrays({**good(), column: array}).write_parquet(tmp_path)
    with pytest.raises(DataError, match=problem):
        MARWIL("CartPole-v1", {**SMALL, "input": str(tmp_path)})


def test_types_of_masks_are_checked() -> None:
    columns = data.from_arrays({**good(), "action_mask": np.ones((600, 2), np.int64)}).columns
    observed = leaves(spaces.Box(-1, 1, (4,), np.float32))
    with pytest.raises(DataError, match=r"column 'action_mask' has the type int64\[2\], but booleans are needed"):
        check_columns(columns, observed, spaces.Discrete(2), ["action", "action_mask"], "input")


@pytest.mark.parametrize(
    ("space", "wrong"),
    [
        (spaces.Discrete(2), 0.5),
        (spaces.Discrete(2, start=1), 0),
        (spaces.MultiDiscrete([2, 3]), [1, 3]),
        (spaces.MultiBinary(2), [0, 2]),
        (spaces.Box(-2, 2, (1,)), [50.0]),
        (spaces.Box(-2, 2, (1,)), [np.nan]),
        (spaces.Box(-np.inf, np.inf, (1,)), [np.inf]),
        (spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(-1, 1, (1,))}), [2, 0.5]),
    ],
)
def test_actions_outside_the_space_are_refused(space: spaces.Space[Any], wrong: Any) -> None:
    check = ActionCheck(space, True, "input")
    right = np.stack([flat_action(space, space.sample()) for _ in range(20)])
    check(right)
    with pytest.raises(DataError, match="is not in the action space"):
        check(np.concatenate([right, np.array([wrong])]))


def test_bounds_of_boxes_have_a_margin_and_hold_only_for_policies_that_scale_or_clip() -> None:
    space = spaces.Box(-2, 2, (1,))
    ActionCheck(space, True, "input")(np.array([[2.00001]]))
    ActionCheck(space, False, "input")(np.array([[50.0]]))


@pytest.mark.parametrize("kind", [BC, MARWIL])
def test_actions_are_checked_when_rows_are_read(kind: type[Algorithm], tmp_path: Path) -> None:
    data.from_arrays({**good(), "action": np.full(600, 0.5)}).write_parquet(tmp_path)
    with (
        kind("CartPole-v1", {**SMALL, "input": str(tmp_path)}) as trainer,
        pytest.raises(DataError, match=f"input {tmp_path}: column 'action' has the action 0.5"),
    ):
        trainer.train()


@pytest.mark.parametrize("kind", [BC, MARWIL, CQL, IQL])
@pytest.mark.parametrize(
    ("column", "value"), [("observation", np.nan), ("next_observation", np.inf), ("reward", np.nan)]
)
def test_values_that_are_not_finite_are_refused(
    kind: type[Algorithm], column: str, value: float, tmp_path: Path
) -> None:
    rows = good()
    rows |= {column: np.full_like(rows[column], value), "terminated": np.zeros(600, bool)}
    data.from_arrays(rows).write_parquet(tmp_path)
    with kind("CartPole-v1", {**SMALL, "input": str(tmp_path)}) as trainer:
        if kind is BC and column != "observation":
            trainer.train()  # it does not read this column
            return
        with pytest.raises(DataError, match=f"column '{column}' has NaN or infinite values"):
            trainer.train()


def test_a_target_entropy_without_a_learned_temperature_is_refused() -> None:
    with pytest.raises(ConfigError, match="target_entropy has no effect with learn_alpha: false; leave it out"):
        CQL("Pendulum-v1", input="data", learn_alpha=False, target_entropy=-2.0)


def test_marwil_refuses_returns_that_end_at_rewards(recorded: Path) -> None:
    with pytest.raises(ConfigError, match="cut_returns_at_rewards: MARWIL does not support it"):
        MARWIL("CartPole-v1", {**SMALL, "input": str(recorded), "cut_returns_at_rewards": True})
