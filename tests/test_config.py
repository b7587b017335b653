"""Settings and experiment files: what is right comes through, what is wrong gets one sentence."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outplay.algorithms import A2CConfig, PPOConfig, find_algorithm
from outplay.config import AlgorithmConfig
from outplay.errors import ConfigError
from outplay.runs.experiments import load_file, load_recipe, nested, parse_setting, recipe_names
from outplay.settings import at, validated


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"num_worker": 2}, "here: unknown setting 'num_worker'. Did you mean 'num_workers'?"),
        ({"model": {"fcnet_hidden": [4]}}, "here: unknown setting 'model.fcnet_hidden'. Did you mean 'fcnet_hiddens'?"),
        ({"optimizer": {"typ": "adam"}}, "unknown setting 'optimizer.typ'. Did you mean 'type'?"),
        ({"lr": "fast"}, "here: lr must be a number of at least 0, not 'fast'"),
        ({"lr": -1}, "here: lr must be a number of at least 0, not -1"),
        ({"gamma": 1.5}, "here: gamma must be a number of at least 0 and at most 1, not 1.5"),
        ({"num_envs": 0}, "here: num_envs must be an integer of at least 1, not 0"),
        ({"num_workers": "many"}, "here: num_workers must be an integer of at least 0 or auto, not 'many'"),
        ({"batch_mode": "whole"}, "here: batch_mode must be truncate_episodes or complete_episodes, not 'whole'"),
        ({"framework": "tf2"}, "here: framework 'tf2' is not supported; 'torch' is the only one"),
        ({"model": 5}, "here: model must be settings (key: value), not 5"),
        (
            {"model": {"fcnet_activation": "sine"}},
            "model.fcnet_activation must be tanh or relu or elu or swish or linear",
        ),
        ({"info_metrics": "won"}, "here: info_metrics must be a list of strings, not 'won'"),
        ({"model": {"fcnet_hiddens": 8}}, "here: model.fcnet_hiddens must be a list of integers of at least 1 or null"),
        ({"lr_schedule": [[0]]}, "here: lr_schedule must be a list of [a number, a number] or null, not "),
        (
            {"exploration_config": {"type": "EpsilonGreedy"}},
            "exploration_config.type: EpsilonGreedy is for algorithms with Q-values: DQN and PQN; Algorithm supports",
        ),
        ({"lr_schedule": [[100, 0.1], [0, 0.2]]}, "a schedule's steps must ascend, and these do not: [100, 0]"),
        ({"grad_clip": 0}, "here: grad_clip must be a number of more than 0 or null, not 0"),
        ({"num_envs": 10**5000}, "here: num_envs must be at most 1,000,000, not an integer of thousands of digits"),
        ({"lr": 10**5000}, "here: lr must be a number of at least 0, not an integer of thousands of digits"),
        ({"num_workers": [10**5000]}, "or auto, not a list with an integer of thousands of digits"),
    ],
)
def test_what_is_wrong_gets_one_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validated(AlgorithmConfig, given, "here")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_rllib_users_write_is_understood() -> None:
    config = validated(
        PPOConfig,
        {
            "env": "CartPole-v1", "num_workers": 2, "lambda": 0.9, "lr": "1e-3", "gamma": 0.9, "optimizer": {},
            "framework": "torch", "explore": True, "exploration_config": {"type": "StochasticSampling"},
            "model": {"fcnet_hiddens": [64], "conv_filters": [[16, [8, 8], 4]], "vf_share_layers": True},
            "evaluation_interval": 5, "evaluation_duration": 10, "evaluation_duration_unit": "episodes",
            "sgd_minibatch_size": 128, "num_sgd_iter": 30, "kl_coeff": 0.2, "vf_clip_param": 10.0, "log_level": "WARN",
        },
        "here",
    )  # fmt: skip
    assert (config.lambda_, config.lr, config.model.conv_filters) == (0.9, 1e-3, [(16, 8, 4)])
    assert validated(PPOConfig, {"lambda_": 0.8}, "here").lambda_ == 0.8


def test_fragments_are_as_long_as_the_batch_needs() -> None:
    assert A2CConfig(num_envs=10, train_batch_size=101).fragment_length == 11
    assert A2CConfig(num_envs=10, rollout_fragment_length=5).fragment_length == 5
    assert A2CConfig(num_envs_per_worker=3, num_workers=4).total_envs == 12
    assert A2CConfig(num_envs_per_worker=3, num_workers=0).total_envs == 3


def test_algorithms_by_name() -> None:
    assert {name: find_algorithm(name).__name__ for name in ("ppo", "PPO", "A2C", "pg")} == {
        "ppo": "PPO", "PPO": "PPO", "A2C": "A2C", "pg": "PG",
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"no algorithm 'PPPO'. Did you mean 'PPO'?"):
        find_algorithm("PPPO")


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.floats(-1, 1)), min_size=1, max_size=5, unique_by=lambda p: p[0]),
    st.integers(0, 2000),
)
def test_a_schedule_stays_between_its_values(points: Any, step: int) -> None:
    values = [value for _, value in points]
    points = sorted(points)
    assert min(values) - 1e-9 <= at([(float(x), y) for x, y in points], 9.0, step) <= max(values) + 1e-9
    for x, y in points:
        assert at([(float(a), b) for a, b in points], 9.0, x) == pytest.approx(y)


# Experiment files


def write(folder: Path, text: str) -> Path:
    path = folder / "file.yml"
    path.write_text(text)
    return path


def test_a_file_holds_experiments_in_rllibs_form(tmp_path: Path) -> None:
    first, second = load_file(
        write(
            tmp_path,
            "custom_env:\n    env: custom_env.CustomEnv\n    run: PPO\n    checkpoint_freq: 1\n    stop:\n"
            "        timesteps_total: 10000\nother:\n  run: A2C\n  stop: {episode_reward_mean: 1e2}\n"
            "  config: {env: CartPole-v1, lr: 1e-3}\n",
        )
    )
    assert (first.name, first.env, first.run, first.checkpoint_freq) == ("custom_env", "custom_env.CustomEnv", "PPO", 1)
    assert first.stop == {"timesteps_total": 10000}
    # The environment may stand in config, and RLlib's name of the metric is understood.
    assert (second.env, second.stop, second.config) == ("CartPole-v1", {"episode_return_mean": 100.0}, {"lr": 1e-3})


# "Billion laughs": each line is nine times as long as the one before.
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in itertools.pairwise("abcdefghi")
)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a:\n\tenv: x\n", "line 2: YAML must be indented with spaces, not with tabs"),
        ("a:\n  env: x\n  env: y\n", "line 3: duplicate key 'env'"),
        ("a:\n  env: x\na:\n  env: y\n", "line 3: duplicate key 'a'"),
        (
            "a: {env: x, stop: {timestep_total: 5}}",
            "stop: there is no metric 'timestep_total'. Did you mean 'timesteps_total'?",
        ),
        ("a: {env: x, stops: {}}", "a: unknown setting 'stops'. Did you mean 'stop'?"),
        ("a: {run: PPO}", "a: env is missing"),
        ("a: [1, 2]", "the experiment 'a' must be settings"),
        ("", "expected experiments"),
        ("a: {env: x, stop: {timesteps_total: soon}}", "a: stop.timesteps_total must be a number, not 'soon'"),
        ("a: {env: x, checkpoint_freq: -1}", "checkpoint_freq must be an integer of at least 0, not -1"),
        ("a: {env: x, loggers: [excel]}", "loggers"),
        ("a: {env: *nobody}", "line 1"),
        ("a: !!python/object/apply:os.system [ls]", "line 1"),
        ("? [a, b]\n: 1", "line 1: keys must be strings"),
        ("a: {env: x, yes: 1}", "a: keys must be strings, not True (YAML reads yes, no, on and off as booleans"),
        ("a: {env: x, config: {1: 2}}", "a: keys must be strings, not 1"),
        ("a: {env: !!int x}", "line 1: 'x' cannot be read as int"),
        ("a: {env: x, name: 2024-13-45}", "line 1: '2024-13-45' cannot be read as timestamp"),
        ("a: &a {env: *a}", "line 1: an alias refers to a node that contains it"),
        ("[" * 3000 + "]" * 3000, "line 1: nested more than 64 levels deep"),
        ("a: &a [" + "[" * 50 + "]" * 50 + "]\nb: " + "[" * 50 + "*a" + "]" * 50, "line 2: nested more than 64"),
        ('a: {env: x, name: "a\\0b"}', r"the string 'a\x00b' contains NUL or a lone surrogate"),
        ('a: {env: x, name: "a\\x07b"}', r"the name 'a\x07b' cannot be used for a folder"),
        ('a: {env: "\\ud800"}', r"the string '\ud800' contains NUL or a lone surrogate"),
        ('a: {env: "\\UFFFFFFFF"}', "an escape sequence names no Unicode character"),
        ("a: {env: x, checkpoint_freq: 0x" + "f" * 5000 + "}", "an integer of 20,000 bits"),
        (LAUGHS, "line 5: aliases expand to more than 100,000 nodes"),
        ("a: '" + "x" * 50_000_000 + "'", "is larger than 1,000,000 bytes"),
        ("a: {env: x, stop: {timesteps_total: -5}}", "a: stop.timesteps_total must be more than 0, not -5"),
    ],
)
def test_a_file_that_is_wrong_gets_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_file(write(tmp_path, text))
    assert sentence in str(caught.value)
    assert "file.yml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"there is no file /nowhere/x.yml"):
        load_file(Path("/nowhere/x.yml"))


def test_every_recipe_is_valid() -> None:
    assert "cartpole" in recipe_names()
    for name in recipe_names():
        recipe = load_recipe(name)
        assert recipe.description
        assert recipe.stop or name == "pong-pg"  # which goes on until Ctrl-C, as its tutorial does
        validated(find_algorithm(recipe.run).Config, {**recipe.config, "env": recipe.env}, name)
    with pytest.raises(ConfigError, match=r"no recipe 'cartpol'. Did you mean 'cartpole'"):
        load_recipe("cartpol")


def test_an_alias_is_fine_as_long_as_it_is_short(tmp_path: Path) -> None:
    text = "a: {env: x, config: &shared {lr: 0.1}}\nb: {env: y, config: {<<: *shared, gamma: 0.9}}\n"
    first, second = load_file(write(tmp_path, text))
    assert (first.config, second.config) == ({"lr": 0.1}, {"lr": 0.1, "gamma": 0.9})


def test_what_no_machine_could_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"here: num_envs must be at most 1,000,000, not 1000000000"):
        validated(PPOConfig, {"num_envs": 10**9}, "here")
    with pytest.raises(ConfigError, match=r"here: train_batch_size must be at most 1,000,000,000,000, not 1000"):
        validated(PPOConfig, {"train_batch_size": 10**30}, "here")


def test_what_could_not_be_read_again_is_not_saved() -> None:
    itself: list[Any] = []
    itself.append(itself)
    for value, sentence in ((itself, "nested more than"), ("a\0", "contains NUL"), (1 << 600, "of 601 bits")):
        with pytest.raises(ConfigError, match=sentence):
            validated(PPOConfig, {"env_config": {"a": value}}, "here")


def test_settings_on_the_command_line() -> None:
    assert parse_setting("lr=1e-3", "--config") == ("lr", 0.001)
    assert parse_setting("model.fcnet_hiddens=[64, 64]", "--config") == ("model.fcnet_hiddens", [64, 64])
    assert nested({"a": {"b": 1}}, "a.c", 2) == {"a": {"b": 1, "c": 2}}
    with pytest.raises(ConfigError, match="--stop takes KEY=VALUE, not 'soon'"):
        parse_setting("soon", "--stop")
