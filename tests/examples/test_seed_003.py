"""A tour of RLlib 1.9 (commands, YAML files, trainers, settings, a curriculum, a grid search), ported to Outplay.

Names and values are those of RLlib. The page docs/from-rllib.md says what differs.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml

import outplay
from outplay import DQN, PPO, ConfigError, pretty_print, tune
from outplay.experiment import Experiment
from outplay.runs.checkpoint import checkpoints_in
from outplay.settings import has_setting, unknown_setting, validated
from outplay.synonyms import SETTINGS
from tests.cli.common import exit_code, only_run

PAGE = (Path(__file__).parents[2] / "docs" / "from-rllib.md").read_text()
SMALL = {"num_envs": 4, "train_batch_size": 40, "model": {"fcnet_hiddens": [8]}}


class Rendezvous3DOF:
    """Written for Gym 0.21, as RLlib 1.9 needs it: action 1 moves closer, and action 0 does not."""

    observation_space = gymnasium.spaces.Discrete(12)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self) -> int:
        self.steps, self.distance = 0, 5
        return self.distance

    def step(self, action: int) -> tuple[int, float, bool, dict[str, Any]]:
        self.steps += 1
        self.distance -= action
        return self.distance, float(action), self.distance == 0 or self.steps == 20, {}


# Commands


CUSTOM_ENV = "from tests.examples.test_seed_003 import Rendezvous3DOF\n\n\nclass CustomEnv(Rendezvous3DOF):\n    pass\n"
CUSTOM_FILE = """
custom_env:
    env: custom_env.CustomEnv
    run: DQN
    checkpoint_freq: 1
    stop:
        timesteps_total: 10000
"""

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command in this process, from a folder with custom.yml and custom_env.py."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTPLAY_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "custom_env", raising=False)
    Path("custom_env.py").write_text(CUSTOM_ENV)
    Path("custom.yml").write_text(CUSTOM_FILE)

    def run(*arguments: str) -> tuple[int, str, str]:
        return exit_code(monkeypatch, *arguments), *capsys.readouterr()

    return run


QUICK = ["--config", "train_batch_size=40", "--num-workers", "0", "--stop", "timesteps_total=400"]


@pytest.mark.parametrize(
    ("options", "steps", "iterations"),
    [(QUICK, 400, 10), pytest.param([], 10240, 40, marks=pytest.mark.slow)],
    ids=["quick", "as written"],
)
def test_train_from_a_file_and_evaluate_a_checkpoint(
    cli: Cli, tmp_path: Path, options: list[str], steps: int, iterations: int
) -> None:
    """`rllib train -f custom.yml`; `rllib evaluate CHECKPOINT --run DQN --env custom_env.CustomEnv --steps 100`."""
    code, out, err = cli("train", "-f", "custom.yml", *options)
    assert code == 0, err
    assert f"steps {steps:,} " in out
    folder = only_run(tmp_path)
    assert folder.parent.name == "custom_env"
    assert folder.name.startswith("DQN_custom_env.CustomEnv_")
    checkpoints = checkpoints_in(folder / "checkpoints")
    assert len(checkpoints) in (10, 11)  # keep_checkpoints: the newest ones, and the best
    assert checkpoints[-1].name == f"checkpoint_{iterations:06}"

    same = ["--run", "DQN", "--env", "custom_env.CustomEnv", "--steps", "100"]
    for name in (str(checkpoints[-1]), "custom_env"):
        code, out, err = cli("evaluate", name, *same)
        assert code == 0, err
        assert "100 steps" in out


# Trainers


@pytest.fixture(scope="module")
def trained(process_engine: None) -> Iterator[tuple[DQN, Any]]:
    """The trainer of the tour with two workers, after ten iterations, and its last result."""
    with DQN(env=Rendezvous3DOF, config={**SMALL, "num_workers": 2, "learning_starts": 40}) as trainer:
        for _ in range(10):
            result = trainer.train()
        yield trainer, result


@pytest.fixture
def trainer(trained: tuple[DQN, Any]) -> DQN:
    return trained[0]


def test_settings_and_results_are_printed(trained: tuple[DQN, Any]) -> None:
    trainer, result = trained
    config = trainer.get_config()
    assert config["num_workers"] == trainer.num_workers == 2
    assert "num_workers: 2\n" in pretty_print(config)
    assert "training_iteration: 10" in pretty_print(result)
    assert "timesteps_total: 400" in pretty_print(result)


def test_without_workers_the_main_process_trains_and_the_result_is_the_same(trainer: DQN) -> None:
    with DQN(env=Rendezvous3DOF, config={**SMALL, "num_workers": 0, "learning_starts": 40}) as local:
        for _ in range(10):
            local.train()
        assert len(local.workers.foreach_worker(lambda worker: worker)) == 1
        assert local.get_policy().flat.equal(trainer.get_policy().flat)


def test_save_evaluate_and_restore(trainer: DQN, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTPLAY_RESULTS", str(tmp_path))
    checkpoint = trainer.save()
    assert Path(checkpoint).name == "checkpoint_000010"

    evaluation = trainer.evaluate(checkpoint)
    assert "episodes: 10" in pretty_print(evaluation)
    assert evaluation == trainer.evaluate()

    with DQN(env=Rendezvous3DOF, config=SMALL) as restored_trainer:
        restored_trainer.restore(checkpoint)
        assert restored_trainer.iteration == 10
        assert restored_trainer.get_policy().flat.equal(trainer.get_policy().flat)


def test_actions_in_a_loop_of_an_older_gym(trainer: DQN) -> None:
    env = Rendezvous3DOF()
    done = False
    total_reward = 0.0
    observation = env.reset()

    while not done:
        action = trainer.compute_single_action(observation)
        observation, reward, done, _ = env.step(action)
        total_reward += reward
    assert 0 <= total_reward <= 5


def test_actions_of_several_observations(trainer: DQN) -> None:
    actions = trainer.compute_actions({"obs1": 1, "obs2": 2})
    assert actions.keys() == {"obs1", "obs2"}
    assert set(actions.values()) <= {0, 1}


def test_weights_of_the_policy_and_of_all_workers(trainer: DQN) -> None:
    policy = trainer.get_policy()
    present = policy.get_weights()
    assert all(isinstance(array, np.ndarray) for array in present.values())

    workers = trainer.workers
    found = workers.foreach_worker(lambda remote_trainer: remote_trainer.get_policy().get_weights())
    assert len(found) == 2
    for weights in found:
        assert all(np.array_equal(weights[name], present[name]) for name in present)


def test_the_model_describes_itself(trainer: DQN, capsys: pytest.CaptureFixture[str]) -> None:
    model = trainer.get_policy().model
    returned: Any = model.base_model.summary()
    assert returned is None  # a notebook would show it again
    out = capsys.readouterr().out
    assert "advantage_head" in out
    assert f"{sum(parameter.numel() for parameter in model.parameters()):,}" in out.splitlines()[-1]


# Settings


COMMON = {
    "gamma": 0.99, "lr": 0.001, "train_batch_size": 200, "optimizer": {}, "env_task_fn": None, "framework": "torch",
    "explore": True, "exploration_config": {"type": "StochasticSampling"}, "evaluation_interval": None,
    "evaluation_duration_unit": "episodes", "render_env": False, "record_env": False,
    "num_gpus": 0, "num_workers": 0, "log_level": "WARN", "env_config": {},
}  # fmt: skip
OF_PPO = {
    "lr_schedule": None, "use_critic": True, "use_gae": True, "lambda_": 1.0, "kl_coeff": 0.2,
    "sgd_minibatch_size": 128, "num_sgd_iter": 30, "shuffle_sequences": True, "vf_loss_coeff": 0.0,
    "entropy_coeff": 0.0, "entropy_coeff_schedule": None, "clip_param": 0.3, "vf_clip_param": 10.0, "grad_clip": None,
    "kl_target": 0.01,
}  # fmt: skip


def test_all_settings_have_their_names_and_take_their_values() -> None:
    with PPO(env=Rendezvous3DOF, config={**COMMON, **OF_PPO, "num_envs": 4}) as trainer:
        config = trainer.get_config()
        for name, value in {**COMMON, **OF_PPO}.items():
            found = config[name.rstrip("_")]
            assert found == value if value != {} else isinstance(found, dict), name
        assert trainer.train()["timesteps_total"] == 200


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"framework": "tf"}, "framework 'tf' is not supported; 'torch' is the only one"),
        ({"framework": "tf2"}, "framework 'tf2' is not supported; 'torch' is the only one"),
        ({"framework": "tfe"}, "framework 'tfe' is not supported; 'torch' is the only one"),
        ({"evaluation_duration": None}, "evaluation_duration must be an integer of at least 1, not None"),
        (
            {"exploration_config": {"type": "EpsilonGreedy"}},
            "EpsilonGreedy is for algorithms with Q-values: DQN and PQN; PPO supports StochasticSampling",
        ),
        ({"record_env": True}, "record_env needs evaluation_interval, the iterations between evaluations"),
        ({"num_gpus": 2}, "num_gpus must be an integer of at least 0 and at most 1, not 2"),
        ({"lr": {"grid_search": [0.01, 0.001]}}, "lr: grid_search is for a search over settings: outplay tune -f FILE"),
    ],
)
def test_other_values_get_one_sentence(setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)) as caught:
        PPO(env=Rendezvous3DOF, config=setting)
    assert "\n" not in str(caught.value)


def test_an_environment_of_none_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="PPO needs an environment"):
        PPO(config={"env": None})


LSTM_FILE = """
repeat-after-me-ppo-w-lstm:
    env: outplay.envs.examples:RepeatAfterMe
    run: PPO
    stop: {timesteps_total: 100}
    config:
        # Make env partially observable.
        env_config:
          config:
            repeat_delay: 2
        num_workers: 0
        num_envs_per_worker: 20
        model:
            use_lstm: true
            lstm_cell_size: 64
            max_seq_len: 20
            fcnet_hiddens: [64]
            vf_share_layers: true
"""


def test_the_file_with_an_lstm(cli: Cli, tmp_path: Path) -> None:
    Path("lstm.yml").write_text(LSTM_FILE)
    code, out, err = cli("train", "-f", "lstm.yml", "--batch-size", "100")
    assert code == 0, err
    assert "steps 100 " in out

    (experiment,) = yaml.safe_load(LSTM_FILE).values()
    with PPO(experiment["env"], experiment["config"]) as trainer:
        assert trainer.workers.foreach_env(lambda env: env.unwrapped.delay) == [[2] * 20]
        state = trainer.get_policy().initial_state(1)
        assert {array.shape for array in state.values()} == {(1, 64)}
        action, following, _ = trainer.compute_single_action(1, state)
        assert action in (0, 1)
        assert following.keys() == state.keys()
        trainer.restore(checkpoints_in(only_run(tmp_path) / "checkpoints")[-1])


# A curriculum


class CurriculumEnv(outplay.TaskSettableEnv[np.ndarray, int]):
    """The goal is `difficulty` steps away."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    difficulty = 1

    def get_task(self) -> int:
        return self.difficulty

    def set_task(self, task: int) -> None:
        self.difficulty = max(1, task)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.place, self.steps, self.goal = 0, 0, self.difficulty
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.place += int(action)
        self.steps += 1
        is_there = self.place == self.goal
        return np.full(1, self.place / 50, np.float32), float(is_there), is_there, self.steps == 50, {}


def curriculum_fn(train_results: Any, task_settable_env: Any, env_ctx: Any) -> int:
    time_steps = train_results.get("timesteps_total")
    difficulty: int = time_steps // 1000
    print(f"Current difficulty: {difficulty}")
    return difficulty


def test_a_curriculum_function(capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "env": CurriculumEnv,
        "env_task_fn": curriculum_fn,
    }
    with PPO(config={**config, "num_workers": 0, "num_envs": 4, "train_batch_size": 1000}) as trainer:
        for _ in range(3):
            trainer.train()
        assert capsys.readouterr().out.splitlines() == [f"Current difficulty: {level}" for level in (1, 2, 3)]
        assert trainer.task == 3
        trainer.train()
        assert trainer.workers.foreach_env(lambda env: env.unwrapped.get_task()) == [[3] * 4]


# Ray and Tune


def objective(x: float, y: float) -> float:
    return math.sqrt((x**2 + y**2) / 2)


def test_a_grid_search(process_engine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tune.run` with two `grid_search`es, and the configuration of the lowest score."""
    monkeypatch.setenv("OUTPLAY_RESULTS", str(tmp_path))

    def training_function(config: dict[str, float]) -> None:
        x, y = config["x"], config["y"]
        time.sleep(0.01)
        tune.report(score=objective(x, y))
        return

    result = tune.run(
        training_function,
        config={
            "x": tune.grid_search([-1, -0.5, 0, 0.5, 1]),
            "y": tune.grid_search([-1, -0.5, 0, 0.5, 1]),
        },
    )
    assert len(result.trials) == 25
    assert result.get_best_config(metric="score", mode="min") == {"x": 0, "y": 0}


# The page


NAMES = (
    "pip install ray[rllib] ray.init() rllib-train rllib-evaluate env run checkpoint_freq stop timesteps_total --run "
    "--env --steps ~/ray_results DQNTrainer get_config() pretty_print train() num_workers save() evaluate( restore( "
    "compute_single_action compute_actions get_policy() get_weights() policy.model foreach_worker base_model.summary() "
    "MODEL_DEFAULTS evaluation_duration num_envs_per_worker use_lstm lstm_cell_size max_seq_len fcnet_hiddens "
    "vf_share_layers TaskSettableEnv get_task set_task repeat_delay tune.run "
    "tune.grid_search tune.report get_best_config tune.suggest tune.schedulers ExperimentAnalysis tune.register_env "
    "Preprocessors AlgorithmConfig .env_runners( build_algo() EnvRunner action_mask"
)


def test_the_page_has_every_name() -> None:
    names = {name.replace("-", " ") if name.startswith("rllib") else name for name in NAMES.split()}
    assert sorted(name for name in {*names, *COMMON, *OF_PPO} if name not in PAGE) == []


def table(heading: str) -> list[list[str]]:
    """The cells of the rows of the table whose first column has this heading, without backquotes."""
    found = re.search(rf"^\| {re.escape(heading)} \|.*\n\|[ -|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert found is not None
    return [[cell.strip().replace("`", "") for cell in line.split("|")[1:-1]] for line in found[1].splitlines()]


def test_the_pages_defaults_are_those_of_the_settings() -> None:
    defaults = PPO.Config().model_dump(mode="json", by_alias=True)
    rows = {name: ours for name, _, ours, *_ in table("PPO setting")}
    assert set(OF_PPO) <= set(rows)
    for name, ours in rows.items():
        assert yaml.safe_load(ours) == defaults[name.rstrip("_")], name


def test_names_of_the_new_api_stack_are_answered_with_the_name_on_the_page() -> None:
    for theirs, ours in table("new setting"):
        assert theirs in SETTINGS
        said = [unknown_setting(cls.Config, theirs, 1, Experiment) for cls in (PPO, DQN)]
        first = re.findall(r"[\w.]+", ours)[0]
        wanted = "Outplay has no such setting" if first == "none" else f"in Outplay it is '{first}'"
        assert any(wanted in sentence for sentence in said), theirs


def test_the_pages_settings_exist() -> None:
    for heading, prefix in (("common setting", ""), ("model setting", "model."), ("PPO setting", "")):
        for theirs, *_ in table(heading):
            for setting in theirs.split(", "):
                assert has_setting(PPO.Config, prefix + setting.rstrip("_")), setting
    assert validated(PPO.Config, {"lambda_": 0.5}, "here") == validated(PPO.Config, {"lambda": 0.5}, "here")
