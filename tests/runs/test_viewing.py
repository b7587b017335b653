"""Viewer: what a person watches are the episodes of `outplay evaluate`."""

from __future__ import annotations

import itertools
import shutil
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from outplay.collect.viewing import MAX_OBSERVATION, Moment
from outplay.errors import CheckpointError, EnvError
from outplay.policies.viewing import action_labels
from outplay.runs.experiments import experiment
from outplay.runs.folder import RunFolder
from outplay.runs.playing import EpisodeProgress, SavedPolicy, play
from outplay.runs.run import Run
from outplay.runs.viewing import Viewer
from tests import probes

SMALL = {"num_envs": 2, "num_workers": 0, "train_batch_size": 32, "model": {"fcnet_hiddens": [8]}}
ON_POLICY = {**SMALL, "sgd_minibatch_size": 16, "num_sgd_iter": 1}
REPLAY = {**SMALL, "learning_starts": 16}
SEED = 7


class Composite(probes.Walk):
    """Actions and observations of several parts, and a picture in the observation."""

    action_space: spaces.Space[Any] = spaces.Dict(
        {"gear": spaces.Discrete(3, start=1), "lamps": spaces.MultiBinary(2), "steer": spaces.Box(-1, 1, (1,))}
    )
    observation_space: spaces.Space[Any] = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (16, 12, 3), np.uint8),
            "place": spaces.Box(-9, 9, (2,)),
            "on": spaces.Discrete(2),
        }
    )

    def _observe(self) -> Any:
        camera = np.full((16, 12, 3), int(self.steps), np.uint8)
        return {"camera": camera, "place": np.array([self.place, self.steps], np.float32), "on": self.steps % 2}

    def step(self, action: Any) -> Any:
        return super().step(action["gear"] - 1)


# Algorithm, environment, settings.
CASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "PPO": ("PPO", "CartPole-v1", ON_POLICY),
    "PPO, separate value": ("PPO", "CartPole-v1", {**ON_POLICY, "model": {"vf_share_layers": False}}),
    "Python environment": ("PPO", "MountainCar-v0", {**ON_POLICY, "max_episode_steps": 50}),
    "continuous": ("PPO", "Pendulum-v1", {**ON_POLICY, "max_episode_steps": 50}),
    "several discrete": ("PPO", probes.Nested, ON_POLICY),
    "composite": ("PPO", Composite, ON_POLICY),
    "recurrent": (
        "PPO",
        "CartPole-v1",
        {**ON_POLICY, "model": {"fcnet_hiddens": [8], "use_lstm": True, "lstm_use_prev_reward": True}},
    ),
    "masked": ("PPO", "outplay.testing.probes:Forbidding", ON_POLICY),
    "DQN": ("DQN", "CartPole-v1", REPLAY),
    "DQN, masked": ("DQN", "outplay.testing.probes:Forbidding", REPLAY),
    "DQN, noisy": ("DQN", "CartPole-v1", {**REPLAY, "noisy": True}),
    "SAC": ("SAC", "Pendulum-v1", {**REPLAY, "max_episode_steps": 50}),
    "Atari": ("PPO", "ALE/Pong-v5", {**ON_POLICY, "evaluation_max_episode_steps": 60}),
}


def train(results: Path, algorithm: str, env: Any, config: dict[str, Any], iterations: int = 1) -> RunFolder:
    body = {"name": "it", "run": algorithm, "env": env, "stop": {"training_iteration": iterations}}
    run = Run.create(experiment({**body, "checkpoint_freq": 1, "config": config}, "the test"), results)
    run.train()
    return run.folder


@pytest.fixture(scope="module")
def pole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return train(tmp_path_factory.mktemp("pole"), "PPO", "CartPole-v1", ON_POLICY, 3)


def evaluated(folder: RunFolder, seed: int, steps: int) -> list[float]:
    """The returns of `outplay evaluate --seed SEED --steps STEPS --trust`."""
    progress = EpisodeProgress()
    settings = {"evaluation_duration": steps, "evaluation_duration_unit": "timesteps", "seed": seed}
    saved = SavedPolicy.at(folder.checkpoints()[-1], trust=True)
    play(saved, {**settings, "evaluation_explore": False}, progress=progress)
    return progress.returns


def first_evaluated(folder: RunFolder, seed: int) -> float:
    """The return of `outplay evaluate --seed SEED --episodes 1 --trust`."""
    settings = {"evaluation_duration": 1, "evaluation_duration_unit": "episodes", "seed": seed}
    saved = SavedPolicy.at(folder.checkpoints()[-1], trust=True)
    return float(play(saved, {**settings, "evaluation_explore": False}).metrics["episode_return_mean"])


def check_whole(episode: list[Moment]) -> None:
    assert [moment.step for moment in episode] == list(range(len(episode)))
    assert [moment.is_last for moment in episode] == [False] * (len(episode) - 1) + [True]
    assert episode[0].action is episode[0].choice is None
    assert episode[-1].episode_return == pytest.approx(sum(moment.reward for moment in episode))


@pytest.mark.parametrize("case", [*CASES])
def test_episodes_are_those_of_an_evaluation(tmp_path: Path, case: str) -> None:
    folder = train(tmp_path, *CASES[case])
    viewer = Viewer(folder, trust=True)
    episodes = [list(viewer.episode(SEED, number)) for number in (0, 1)]
    for episode in episodes:
        check_whole(episode)
    returns = [episode[-1].episode_return for episode in episodes]
    assert first_evaluated(folder, SEED) == returns[0]
    assert evaluated(folder, SEED, sum(len(episode) - 1 for episode in episodes)) == returns
    again = list(viewer.episode(SEED, 0, wants_picture=lambda: False))  # neither order nor rendering matters
    assert [(m.reward, m.observation) for m in again] == [(m.reward, m.observation) for m in episodes[0]]
    assert all(moment.picture is None for moment in again) or not viewer.view._source
    check_choices(viewer, episodes[0], case)
    viewer.close()


def check_choices(viewer: Viewer, episode: list[Moment], case: str) -> None:
    """What the policy computed is there, as far as it has it."""
    names = viewer.view.action_names
    for moment in episode[1:]:
        choice = moment.choice
        assert choice is not None
        assert len(moment.observation) == len(viewer.view.observation_names)
        if case in ("continuous", "SAC", "composite"):
            assert names is None or case == "composite"
            assert choice.probabilities is choice.q is None or case == "composite"
        elif case.startswith("DQN"):
            assert choice.probabilities is None
            assert choice.q is not None
            assert names is not None
            assert len(choice.q) == len(names)
            allowed = [value for value in choice.q if value is not None]
            assert choice.value == choice.q[choice.chosen[0]] == max(allowed)
        else:
            assert choice.probabilities is not None
            assert names is not None
            assert len(choice.probabilities) == len(names)
        if not case.startswith(("SAC", "DQN")):
            assert choice.value is not None
            assert np.isfinite(choice.value)


def test_probabilities_and_value_are_those_of_the_policy(pole: RunFolder) -> None:
    viewer = Viewer(pole)
    episode = list(viewer.episode(SEED))
    policy, network = viewer._policy, viewer._policy.network
    for before, moment in itertools.pairwise(episode):
        assert moment.choice is not None
        assert moment.choice.probabilities is not None
        inputs = (torch.tensor([before.observation], dtype=torch.float32),)
        with torch.no_grad():
            logits = policy._outputs(inputs)[0, :2]
            value = network.value(network.arranged(inputs))  # type: ignore[operator]
        assert moment.choice.probabilities == pytest.approx(logits.softmax(-1).tolist(), abs=1e-5)
        assert moment.choice.value == pytest.approx(float(value), abs=1e-4)
        assert moment.choice.chosen == [int(np.argmax(moment.choice.probabilities))] == [moment.action]
    viewer.close()


def test_parts_of_actions_and_observations_have_names(tmp_path: Path) -> None:
    """The environment draws nothing; the camera of its observation is the picture."""
    viewer = Viewer(train(tmp_path, "PPO", Composite, ON_POLICY), trust=True)
    view = viewer.view
    assert view.action_names == ["gear 1", "gear 2", "gear 3", "lamps 0", "lamps 1"]
    assert view.observation_names == ["on", "place[0]", "place[1]"]
    assert view.has_pictures
    episode = list(viewer.episode(SEED))
    for moment in episode[1:]:
        choice = moment.choice
        assert choice is not None
        assert choice.probabilities is not None
        assert sum(choice.probabilities[:3]) == pytest.approx(1)
        assert choice.chosen[0] == moment.action["gear"] - 1
        assert [i - 3 for i in choice.chosen[1:]] == np.flatnonzero(moment.action["lamps"]).tolist()
        assert moment.picture is not None
        assert moment.picture.shape == (16, 12, 3)
        assert moment.picture[0, 0, 0] == moment.step
    viewer.close()


def test_a_masked_action_has_no_probability(tmp_path: Path) -> None:
    viewer = Viewer(train(tmp_path, "PPO", "outplay.testing.probes:Forbidding", ON_POLICY), trust=True)
    listed = [moment.choice for moment in viewer.episode(SEED) if moment.choice is not None]
    viewer.close()
    assert any(0.0 in (choice.probabilities or []) for choice in listed)
    for choice in listed:
        assert choice.probabilities is not None
        assert choice.probabilities[choice.chosen[0]] > 0


def test_pictures_of_atari_games_keep_up_with_the_game(tmp_path: Path) -> None:
    config = {**ON_POLICY, "evaluation_max_episode_steps": 30}
    viewer = Viewer(train(tmp_path, "PPO", "ALE/Pong-v5", config))
    assert viewer.view.action_names == ["NOOP", "FIRE", "RIGHT", "LEFT", "RIGHTFIRE", "LEFTFIRE"]
    assert viewer.view.observation_names == []
    assert viewer.view.fps == 15
    every = [moment.picture for moment in viewer.episode(SEED)]
    turn = iter(range(1000))
    some = [moment.picture for moment in viewer.episode(SEED, wants_picture=lambda: next(turn) % 7 == 0)]
    viewer.close()
    assert every[0] is not None
    assert every[0].shape == (210, 160, 3)
    for number, (picture, same) in enumerate(zip(every, some, strict=True)):
        assert (same is None) == (number % 7 != 0)
        assert same is None or np.array_equal(picture, same)


def test_without_pictures_there_are_observations(tmp_path: Path) -> None:
    viewer = Viewer(train(tmp_path, "PPO", "outplay.testing.probes:Walk", ON_POLICY), trust=True)
    assert (viewer.view.has_pictures, viewer.view.no_pictures) == (False, "")
    assert viewer.view.observation_names == ["0", "1"]
    assert all(moment.picture is None and len(moment.observation) == 2 for moment in viewer.episode(SEED))
    viewer.close()


def test_a_missing_package_is_named_and_the_episode_plays_without_pictures(
    pole: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    viewer = Viewer(pole)
    assert not viewer.view.has_pictures
    assert "DependencyNotInstalled" in viewer.view.no_pictures
    check_whole(list(viewer.episode(SEED)))
    viewer.close()


def test_checkpoints_are_loaded_by_name(pole: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(pole.path, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert [path.name for path in folder.checkpoints()] == [f"checkpoint_00000{i}" for i in (1, 2, 3)]
    viewer = Viewer(folder)
    assert (viewer.checkpoint, viewer.newest()) == ("checkpoint_000003",) * 2
    newest = [moment.choice for moment in viewer.episode(SEED)]
    viewer.load("checkpoint_000001")
    oldest = [moment.choice for moment in viewer.episode(SEED)]
    assert newest != oldest
    direct = Viewer(folder, "checkpoint_000001")
    assert [moment.choice for moment in direct.episode(SEED)] == oldest
    direct.close()
    shutil.rmtree(folder.checkpoints_path / "checkpoint_000002")
    with pytest.raises(CheckpointError, match="has no checkpoint_000002 any more"):
        viewer.load("checkpoint_000002")
    with pytest.raises(CheckpointError, match=r"has no \.\./secret any more"):
        viewer.load("../secret")
    shutil.rmtree(folder.path)  # what plays is in memory
    assert [moment.choice for moment in viewer.episode(SEED)] == oldest
    with pytest.raises(CheckpointError, match="has no checkpoint yet"):
        viewer.load()
    viewer.close()


def test_import_paths_need_trust(tmp_path: Path) -> None:
    folder = train(tmp_path, "PPO", "tests.probes:Frames", ON_POLICY)
    with pytest.raises(CheckpointError, match="start the dashboard with --trust") as refused:
        Viewer(folder)
    assert len(str(refused.value).splitlines()) == 1


def test_an_environment_that_raises_is_an_error_in_one_sentence(tmp_path: Path) -> None:
    config = {**ON_POLICY, "env_config": {"flaw": "raises", "after": 2_000}}
    folder = train(tmp_path, "PPO", "tests.probes:Flawed", config)
    text = (folder.checkpoints()[-1] / "state.json").read_text()
    assert '"after": 2000' in text
    viewer = Viewer(folder, trust=True)
    env: Any = viewer.view.vector
    env.envs[0].unwrapped.after = env.envs[0].unwrapped.count + 3
    with pytest.raises(EnvError, match="the gripper is stuck"):
        list(viewer.episode(SEED))
    viewer.close()


def test_labels_of_actions() -> None:
    assert action_labels(spaces.Discrete(2, start=-1)) == ["-1", "0"]
    assert action_labels(spaces.MultiDiscrete([2, 1], start=[0, 5])) == ["0: 0", "0: 1", "1: 5"]
    assert action_labels(spaces.MultiBinary(2)) == ["0", "1"]
    assert action_labels(spaces.Box(-1, 1, (2,))) is None
    assert action_labels(spaces.Discrete(10_000)) is None
    assert action_labels(spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1)])) == ["0 0", "0 1"]


def test_long_observations_are_cut(tmp_path: Path) -> None:
    class Wide(probes.Walk):
        observation_space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (500,), np.float32)

        def _observe(self) -> Any:
            return np.full(500, self.place, np.float32)

    gymnasium.register("Wide-v0", lambda **_: Wide())
    try:
        viewer = Viewer(train(tmp_path, "PPO", "Wide-v0", ON_POLICY), trust=True)
        assert len(viewer.view.observation_names) == MAX_OBSERVATION
        assert {len(moment.observation) for moment in viewer.episode(SEED)} == {MAX_OBSERVATION}
        viewer.close()
    finally:
        del gymnasium.registry["Wide-v0"]
