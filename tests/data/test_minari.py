"""Minari data sets on this machine."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from outplay import BC, PPO, DataError, data
from outplay.testing import probes

pytest.importorskip("minari")

SMALL: dict[str, Any] = {"num_envs": 4, "num_workers": 0, "train_batch_size": 200, "seed": 3, "max_episode_steps": 30}


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def recorded(env: Any, folder: Path, steps: int = 200) -> data.Dataset:
    with PPO(env, {**SMALL, "train_batch_size": steps, "output": str(folder)}) as trainer:
        trainer.train()
    return data.read_parquet(folder)


@pytest.mark.parametrize("data_format", ["arrow", "hdf5"])
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", probes.Nested])
def test_experience_survives_minari(tmp_path: Path, root: Path, env: Any, data_format: Any) -> None:
    dataset = recorded(env, tmp_path / "out", 20 if env is probes.Nested else 200)  # of one step each
    data.write_minari(dataset, "test/mine-v0", data_format=data_format)
    assert (root / "test" / "mine-v0" / "data" / "main_data.hdf5").exists() == (data_format == "hdf5")
    before, found = dataset.to_arrays(), data.read_minari("test/mine-v0")
    after = found.to_arrays()
    assert len(found) == len(dataset)
    assert {name.split(".")[0] for name in after} >= {"observation", "next_observation", "action", "reward"}
    # Minari numbers episodes in the order in which they ended: compare them by their content.
    ours, theirs = episodes(before), episodes(after)
    assert len(ours) == len(theirs)
    assert sorted(ours) == sorted(theirs)


def episodes(rows: dict[str, np.ndarray]) -> list[bytes]:
    """The content of every episode, but for the observation after its end and whether it was cut off."""
    order = np.lexsort((rows["step"], rows["episode_id"]))
    names = [name for name in sorted(rows) if name.startswith(("observation", "reward", "terminated"))] + ["action"]
    cuts = np.flatnonzero(np.diff(rows["episode_id"][order])) + 1
    parts = np.split(order, cuts)
    return [b"".join(rows[name][part].astype(np.float32).tobytes() for name in names) for part in parts]


def test_minari_itself_reads_what_was_written(tmp_path: Path) -> None:
    import minari

    dataset = recorded("CartPole-v1", tmp_path / "out")
    data.write_minari(dataset, "cartpole/random-v0")
    theirs = minari.load_dataset("cartpole/random-v0")
    assert theirs.total_steps == len(dataset)
    episode = next(theirs.iterate_episodes())
    assert len(episode.observations) == len(episode.rewards) + 1
    assert theirs.spec.env_spec.id == "CartPole-v1"
    assert gymnasium.make("CartPole-v1").action_space == theirs.spec.action_space


def test_a_data_set_of_minari_itself_is_read(tmp_path: Path, root: Path) -> None:
    """In Minari's default format, HDF5."""
    import minari
    from minari.data_collector.episode_buffer import EpisodeBuffer

    rng = np.random.default_rng(0)
    seen = [rng.normal(size=(length + 1, 4)).astype(np.float32) for length in (5, 9)]
    buffers = [
        EpisodeBuffer(
            observations=observations, actions=np.arange(len(observations) - 1) % 2,
            rewards=[float(i) for i in range(len(observations) - 1)],
            terminations=[False] * (len(observations) - 2) + [True], truncations=[False] * (len(observations) - 1),
        )
        for observations in seen
    ]  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about its missing description
        minari.create_dataset_from_buffers("cartpole/theirs-v0", buffers, env="CartPole-v1")
    assert (root / "cartpole" / "theirs-v0" / "data" / "main_data.hdf5").is_file()
    found = data.read_minari("cartpole/theirs-v0").to_arrays()
    np.testing.assert_array_equal(found["observation"], np.concatenate([each[:-1] for each in seen]))
    np.testing.assert_array_equal(found["next_observation"], np.concatenate([each[1:] for each in seen]))
    assert found["reward"].tolist() == [*range(5), *range(9)]
    assert np.flatnonzero(found["terminated"]).tolist() == [4, 13]


def test_an_algorithm_learns_from_minari(tmp_path: Path) -> None:
    data.write_minari(recorded("CartPole-v1", tmp_path / "out"), "cartpole/random-v0")
    config = {"input": "minari:cartpole/random-v0", "train_batch_size": 128, "sgd_minibatch_size": 64}
    with BC("CartPole-v1", config) as trainer:
        assert trainer.train()["timesteps_total"] == 128


def test_mistakes_get_one_sentence(tmp_path: Path, root: Path) -> None:
    with pytest.raises(DataError, match="there is no local Minari data set 'cartpole/none-v0'"):
        BC("CartPole-v1", {"input": "minari:cartpole/none-v0"})
    with pytest.raises(DataError, match="is no name of a Minari data set"):
        data.read_minari("../../etc")
    dataset = recorded("CartPole-v1", tmp_path / "out")
    data.write_minari(dataset, "cartpole/random-v0")
    with pytest.raises(DataError, match="already"):
        data.write_minari(dataset, "cartpole/random-v0")
    with pytest.raises(DataError, match=r"not those of the environment|has rows of shape"):
        BC("Pendulum-v1", {"input": "minari:cartpole/random-v0"})
    file = root / "cartpole" / "random-v0" / "data" / "metadata.json"
    found = json.loads(file.read_text())
    file.write_text(json.dumps({key: value for key, value in found.items() if key != "action_space"}))
    with pytest.raises(DataError, match="does not say its spaces"):
        data.read_minari("cartpole/random-v0")


@pytest.mark.parametrize("name", ["foo", "cartpole/random", "", "a b-v0/"])
def test_names_without_a_version_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="is no name of a Minari data set"):
        data.read_minari(name)
    with pytest.raises(DataError, match="is no name of a Minari data set"):
        data.write_minari(recorded("CartPole-v1", tmp_path / "out"), name)


@pytest.mark.parametrize(
    "changed",
    [{"data_format": "other"}, {"total_episodes": 10**6}, {"total_episodes": "x"}, {"observation_space": "{"}],
)
def test_damaged_data_sets_are_refused(tmp_path: Path, root: Path, changed: dict[str, Any]) -> None:
    data.write_minari(recorded("CartPole-v1", tmp_path / "out"), "cartpole/random-v0")
    file = root / "cartpole" / "random-v0" / "data" / "metadata.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))
    with pytest.raises(DataError, match=r"cartpole/random-v0 is damaged, or its format is unknown"):
        data.read_minari("cartpole/random-v0")


def test_a_format_whose_package_is_missing(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    monkeypatch.delitem(sys.modules, "minari.dataset._storages.hdf5_storage", raising=False)
    data.write_minari(recorded("CartPole-v1", tmp_path / "out"), "cartpole/random-v0")
    file = root / "cartpole" / "random-v0" / "data" / "metadata.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "data_format": "hdf5"}))
    with pytest.raises(DataError, match="needs another package: h5py is not installed"):
        data.read_minari("cartpole/random-v0")
    with pytest.raises(DataError, match="the Minari format hdf5 needs another package: h5py is not installed"):
        data.write_minari(data.read_parquet(tmp_path / "out"), "cartpole/other-v0", data_format="hdf5")
    assert not (root / "cartpole" / "other-v0").exists()
    with pytest.raises(DataError, match="data_format must be arrow or hdf5, not 'csv'"):
        data.write_minari(data.read_parquet(tmp_path / "out"), "cartpole/other-v0", data_format="csv")  # type: ignore[arg-type]
