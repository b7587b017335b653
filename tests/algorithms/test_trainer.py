"""A trainer in scripts and notebooks: settings as keywords, predict, learn, repr, help, mistakes in one sentence."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from outplay import A2C, DQN, PPO, Callback, ConfigError, EnvError, PPOConfig, Result, Run, RunError
from outplay.errors import OutplayError
from outplay.runs.progress import progress_bar
from tests import probes
from tests.policies.test_recurrent_and_masked import CountingPPO, Maze

SMALL: dict[str, Any] = {
    "num_envs": 4, "num_workers": 0, "train_batch_size": 40, "sgd_minibatch_size": 20, "num_sgd_iter": 1,
    "model": {"fcnet_hiddens": [8]},
}  # fmt: skip


@pytest.fixture
def trainer() -> PPO:
    return PPO("CartPole-v1", **SMALL)


# Settings.


def test_settings_are_keywords_and_override_config() -> None:
    one = PPO("CartPole-v1", {**SMALL, "lr": 0.5, "gamma": 0.8}, lr=0.25)
    assert (one.config.lr, one.config.gamma, one.config.num_envs) == (0.25, 0.8, 4)
    assert PPO("CartPole-v1", PPOConfig(gamma=0.7), lr=0.1).config.gamma == 0.7


@pytest.mark.parametrize("config", [{"lambda": 0.8}, {"lambda_": 0.8}, {"lambda_": 0.8, "lambda": 0.7}])
def test_a_keyword_overrides_both_names_of_a_setting(config: dict[str, float]) -> None:
    assert PPO("CartPole-v1", config, lambda_=0.5).config.lambda_ == 0.5


def test_async_is_a_keyword_with_an_underscore() -> None:
    assert DQN("CartPole-v1", async_=True, num_workers=1).config.is_async


def test_keywords_are_validated_with_config_in_the_same_words() -> None:
    sentences = []
    for make in (lambda: PPO("CartPole-v1", lrr=1), lambda: PPO("CartPole-v1", {"lrr": 1})):
        with pytest.raises(ConfigError) as caught:
            make()
        sentences.append(str(caught.value))
    assert sentences[0] == sentences[1]
    assert "unknown setting 'lrr'" in sentences[0]
    with pytest.raises(ConfigError, match="batch_mode: use_critic: false needs complete episodes"):
        PPO("CartPole-v1", {"use_critic": False}, batch_mode="truncate_episodes")  # only wrong together


def test_help_lists_the_settings() -> None:
    text = inspect.getdoc(PPO)
    assert text is not None
    assert text.startswith("Proximal policy optimisation.")
    assert "clip_param: a number of at least 0; default 0.2\n    PPO clip range ε." in text
    assert "lr: a number of at least 0; default 0.001\n    Learning rate." in text
    assert "    fcnet_activation: tanh or relu" in text  # of `model`
    assert "clip_param" not in str(inspect.getdoc(A2C))


def test_repr(trainer: PPO) -> None:
    assert repr(trainer) == "<PPO on CartPole-v1: iteration 0, 0 steps>"
    trainer.learn(2_000)
    mean = trainer.last_result["episode_return_mean"]
    assert repr(trainer) == f"<PPO on CartPole-v1: iteration 50, 2,000 steps, return {mean:.1f}>"


# Acting and evaluating.


def test_predict_takes_one_observation_or_a_batch(trainer: PPO) -> None:
    observations = np.random.default_rng(0).normal(size=(5, 4))
    single = [trainer.predict(row, deterministic=True)[0] for row in observations]
    assert single == [trainer.compute_single_action(row.astype(np.float32), explore=False) for row in observations]
    actions, state = trainer.predict(observations, deterministic=True)
    assert actions.tolist() == single
    assert state is None
    assert {int(trainer.predict(observations[0])[0]) for _ in range(50)} == {0, 1}  # it explores
    gymnasium.make("CartPole-v1").action_space.contains(single[0])


@pytest.mark.parametrize("env", [probes.Nested, "Pendulum-v1", "FrozenLake-v1"])
def test_predictions_fit_the_spaces(env: Any) -> None:
    trainer = PPO(env, **SMALL)
    observation_space, action_space = trainer.probe.observation_space, trainer.probe.action_space
    vector = gymnasium.vector.utils.batch_space(observation_space, 3)
    vector.seed(0)
    observation_space.seed(0)
    assert action_space.contains(np.asarray(trainer.predict(observation_space.sample())[0], action_space.dtype))
    actions, _ = trainer.predict(vector.sample())
    assert len(actions) == 3
    assert all(action_space.contains(np.asarray(action, action_space.dtype)) for action in actions)


def test_the_recurrent_state_is_reset_where_an_episode_starts() -> None:
    trainer = CountingPPO("CartPole-v1", **SMALL)
    batch = np.zeros((3, 4), np.float32)
    _, state = trainer.predict(batch)
    assert state is not None
    assert state["count"].tolist() == [1, 1, 1]
    _, state = trainer.predict(batch, state, episode_start=[False, True, False])
    assert state is not None
    assert state["count"].tolist() == [2, 1, 2]
    _, state = trainer.predict(batch[0], {"count": np.array([7])}, episode_start=np.array([False]))
    assert state is not None
    assert state["count"].tolist() == [8]
    with pytest.raises(ConfigError, match=r"episode_start has shape \(2,\); one boolean per observation is needed"):
        trainer.predict(batch, {"count": np.zeros(3, np.int64)}, episode_start=[True, False])


def test_masked_actions_are_not_predicted() -> None:
    trainer = PPO(Maze, **SMALL)
    masks = np.array([[False, True, False], [True, False, False]])
    for _ in range(20):
        assert trainer.predict(np.zeros((2, 2), np.float32), action_masks=masks)[0].tolist() == [1, 0]
        assert trainer.predict(np.zeros(2, np.float32), action_masks=masks[0])[0] == 1
    with pytest.raises(ConfigError, match="2 observations need 2 action masks, not 1"):
        trainer.predict(np.zeros((2, 2), np.float32), action_masks=masks[:1])


def test_evaluations_of_a_number_of_episodes(trainer: PPO) -> None:
    assert trainer.evaluate(episodes=3)["episodes"] == 3
    assert trainer.evaluate()["episodes"] == 10


# Mistakes.


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        (
            lambda t: t.evaluate(10),
            r"evaluate\(10\): the first argument is a checkpoint; .*evaluate\(episodes=10\)$",
        ),
        (lambda t: t.evaluate(episodes=0), r"evaluate\(\): episodes must be an integer of at least 1, not 0$"),
        (lambda t: t.compute_actions(np.zeros((2, 4))), r"takes observations by name.* use predict\(array\), and"),
        (
            lambda t: setattr(t.config, "lr", 1.0),
            r"^lr cannot be changed: .*from_checkpoint\(trainer.save\(\), ",
        ),
        (lambda t: setattr(t.config.model, "use_bias", 1), "^use_bias cannot be changed: "),
        (lambda t: t.learn(), r"^learn\(\) needs an end: learn\(100_000\), or learn\(stop="),
        (lambda t: t.learn(stop={}), r"^learn\(\) needs an end"),
        (lambda t: t.learn(0), r"learn\(\): total_timesteps must be an integer of at least 1, not 0"),
        (lambda t: t.learn(1.5), r"learn\(\): total_timesteps must be an integer of at least 1, not 1.5"),
        (lambda t: t.learn(float("inf")), r"learn\(\): total_timesteps must be an integer of at least 1, not inf"),
        (lambda t: t.learn(stop=100), r"learn\(\): stop must be conditions {metric: value}, not 100"),
        (lambda t: t.learn(stop={"timestep_total": 9}), r"learn\(\): .*Did you mean 'timesteps_total'"),
        (lambda t: t.learn(stop={"evaluation/episode_return_mean": 9}), "needs evaluation_interval"),
        (lambda t: t.learn(40, callbacks=Callback), r"callbacks: .*; pass an instance: Callback\(\)"),
        (lambda t: t.last_result, r"there is no result yet: call learn\(\) or train\(\) first"),
        (
            lambda _: PPO("MlpPolicy", "CartPole-v1"),
            r"the environment is the first argument, as in PPO\('CartPole-v1'",
        ),
    ],
)
def test_a_mistake_is_one_sentence(trainer: PPO, mistake: Callable[[PPO], Any], sentence: str) -> None:
    with pytest.raises(OutplayError, match=sentence) as caught:
        mistake(trainer)
    assert "\n" not in str(caught.value)
    assert trainer.iteration == 0


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (
            lambda: gymnasium.make("CartPole-v1"),
            r"env=lambda: gymnasium.make\('CartPole-v1'\), or its id, env='Cart",
        ),
        (probes.Walk, r"env=lambda: Walk\(…\)$"),
        (
            lambda: gymnasium.wrappers.FlattenObservation(gymnasium.make("CartPole-v1")),
            r"env=lambda: FlattenObservation\(gymnasium.make\('CartPole-v1'\)\)$",
        ),
        (
            lambda: gymnasium.make_vec("CartPole-v1", num_envs=3),
            r"env=lambda: gymnasium.make\('CartPole-v1'\), and num_envs=3$",
        ),
    ],
)
def test_an_environment_object_is_refused_with_the_lambda_to_write(make: Callable[[], Any], remedy: str) -> None:
    env = make()
    with pytest.raises(ConfigError, match=remedy):
        PPO(env)
    with pytest.raises(ConfigError, match=remedy):
        PPO(config={"env": env})
    env.close()


@pytest.mark.parametrize("observation", [np.zeros(3), np.zeros((2, 3)), np.zeros((0, 4)), "four", (np.zeros(4), {})])
def test_what_is_no_observation_is_not_predicted(trainer: PPO, observation: Any) -> None:
    with pytest.raises(EnvError, match=r"^(the )?observation"):
        trainer.predict(observation)


# Learning.


def test_learn_returns_the_trainer_after_that_many_more_steps(trainer: PPO) -> None:
    assert trainer.learn(100) is trainer  # iterations are not split
    assert trainer.timesteps == 120
    assert trainer.learn(40.0).timesteps == 160  # type: ignore[arg-type]
    assert trainer.last_result["timesteps_total"] == 160
    assert trainer.train()["training_iteration"] == 5


def test_the_first_condition_ends_learning(trainer: PPO) -> None:
    assert trainer.learn(400, stop={"training_iteration": 2}).iteration == 2
    assert trainer.learn(40, stop={"training_iteration": 9}).iteration == 3
    assert trainer.learn(4000, stop={"timesteps_total": 160}).iteration == 4
    assert trainer.learn(stop={"episode_reward_mean": -1}).iteration == 4  # RLlib's name; it is reached already


@settings(max_examples=5, deadline=None)
@given(parts=st.lists(st.integers(1, 3), min_size=2, max_size=3), progress=st.booleans())
def test_several_calls_continue_exactly(parts: list[int], progress: bool) -> None:
    def learned(calls: list[int]) -> tuple[bytes, list[float]]:
        with PPO(probes.Walk, **SMALL) as trainer:
            for iterations in calls:
                trainer.learn(40 * iterations, progress=progress)
            return trainer.policy.flat.detach().numpy().tobytes(), list(trainer.episodes.returns)

    assert learned(parts) == learned([sum(parts)])


class Recording(Callback):
    """Records what is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_train_start(self, run: Run) -> None:
        self.calls.append("start")

    def on_result(self, run: Run, result: dict[str, Any]) -> None:
        self.calls.append(f"result {result['training_iteration']}")
        result["own"] = 7
        if result["training_iteration"] == 4:
            run.request_stop("enough")

    def on_train_end(self, run: Run, reason: str) -> None:
        self.calls.append(reason)


def test_callbacks_of_learn_are_called_in_this_call_only(trainer: PPO) -> None:
    callback = Recording()
    trainer.learn(80, callbacks=callback)
    assert trainer.last_result.get("own") == 7
    trainer.learn(40)
    trainer.learn(4000, callbacks=[callback])
    assert callback.calls == [
        *("start", "result 1", "result 2", "timesteps_total reached 80"),
        *("start", "result 4", "enough"),
    ]
    assert trainer.learn(40).iteration == 5  # the request to stop is over


def test_without_a_run_nothing_is_written(trainer: PPO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTPLAY_RESULTS", str(tmp_path / "results"))
    monkeypatch.chdir(tmp_path)

    class Asking(Callback):
        def on_result(self, run: Run, result: dict[str, Any]) -> None:
            with pytest.raises(RunError, match=r"this run has no folder; .* PPO\(…, run='name'\)"):
                run.save()

    trainer.learn(80, callbacks=Asking())
    assert trainer.run is None
    assert list(tmp_path.iterdir()) == []


def test_a_failure_in_learn_leaves_a_trainer_that_goes_on(trainer: PPO) -> None:
    class Failing(Callback):
        def on_result(self, run: Run, result: dict[str, Any]) -> None:
            raise ValueError("no")

    with pytest.raises(OutplayError, match="on_result raised ValueError: no"):
        trainer.learn(80, callbacks=Failing())
    assert trainer.learn(40).iteration == 2


def test_the_progress_bar_shows_percent_speed_return_and_time_left(trainer: PPO) -> None:
    screen = io.StringIO()
    trainer.learn(40)
    run = Run.without_folder(trainer, "CartPole-v1")
    run.set_stop({"timesteps_total": 840})
    shown: list[Result] = []
    with progress_bar(run, Console(file=screen, force_terminal=True, width=100, legacy_windows=False)) as show:

        def both(result: Result) -> None:
            shown.append(result)
            show(result)

        run.train(both)
    text = screen.getvalue()
    assert len(shown) == 20
    assert " 0%" in text  # it begins at 0, though 40 steps are done
    assert "PPO on CartPole-v1" in text
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text.rpartition("PPO on CartPole-v1")[2])
    assert "100%" in last
    assert f"{shown[-1]['env_steps_per_s']:,.0f} steps/s" in last
    assert f"return {shown[-1]['episode_return_mean']:.1f}" in last
    assert "0:00:00" in last
    assert "left" in last
    assert text.endswith("\x1b[?25h")  # the cursor is back


_INTERRUPTED = """
import os, signal
from outplay import PPO, Callback

class Interrupting(Callback):
    def on_result(self, run, result):
        if result["training_iteration"] == 30:
            os.kill(os.getpid(), signal.SIGINT)

trainer = PPO("CartPole-v1", num_envs=4, num_workers=0, train_batch_size=40, num_sgd_iter=1)
try:
    trainer.learn(100_000, callbacks=Interrupting(), progress=True)
except KeyboardInterrupt:
    print("stopped at", trainer.iteration)
trainer.learn(40)
print("goes on:", trainer)
"""


@pytest.mark.slow
def test_ctrl_c_leaves_the_terminal_and_the_trainer_in_order(tmp_path: Path) -> None:
    main, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "24"}
    command = [sys.executable, "-c", _INTERRUPTED]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdin=terminal, stdout=terminal, stderr=terminal
    ) as run:
        os.close(terminal)
        screen = bytearray()
        with contextlib.suppress(OSError):  # the end of a terminal
            while data := os.read(main, 65536):
                screen += data
    os.close(main)
    text = screen.decode()
    assert run.returncode == 0, text
    assert "PPO on CartPole-v1" in text
    assert "steps/s" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is back
    assert re.search(r"stopped at (29|30)\r\n", text)
    assert re.search(r"goes on: <PPO on CartPole-v1: iteration 3[01], ", text)
