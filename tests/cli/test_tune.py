"""`outplay tune`: search files, resumed studies, reports, and trials as runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import outplay
from tests.cli.common import Outcome, wait_for

Cli = Callable[..., Outcome]

SEARCH = """
poles:
  env: CartPole-v1
  stop: {training_iteration: 2}
  config:
    lr: {loguniform: [1.0e-5, 1.0e-2]}
    gamma: {choice: [0.9, 0.99]}
    model: {fcnet_hiddens: {grid_search: [[8], [16]]}}
    num_envs: 2
    train_batch_size: 20
    num_workers: 0
  tune:
    num_samples: 2
    seed: 7
"""


@pytest.fixture(autouse=True)
def file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "search.yml"
    path.write_text(SEARCH)
    yield path
    outplay.shutdown()


def changed(file: Path, old: str, new: str) -> None:
    assert old in SEARCH
    file.write_text(SEARCH.replace(old, new))


def test_a_dry_run_prints_the_variables_and_the_first_configs(cli: Cli, tmp_path: Path) -> None:
    code, out, _ = cli("tune", "-f", "search.yml", "--dry-run", "--num-samples", "3")
    assert code == 0
    lines = out.splitlines()
    assert lines[:5] == [
        "trials: 6",
        "variables:",
        "  lr: {loguniform: [1.0e-05, 0.01]}",
        "  gamma: {choice: [0.9, 0.99]}",
        "  model/fcnet_hiddens: {grid_search: [[8], [16]]}",
    ]
    assert [line.split()[0] for line in lines[6:]] == [f"{i:05d}:" for i in range(5)]
    assert [line.endswith("fcnet_hiddens [8]") for line in lines[6:]] == [True, False, True, False, True]
    assert not (tmp_path / "results").exists()


def test_a_dry_run_prints_no_more_configs_than_there_are_trials(cli: Cli, file: Path) -> None:
    random = SEARCH.replace("{grid_search: [[8], [16]]}", "[8]")
    file.write_text(random.replace("num_samples: 2", "num_samples: 4\n    search: optuna"))
    code, out, _ = cli("tune", "-f", "search.yml", "--dry-run")
    assert code == 0
    assert out.splitlines()[0] == "trials: 4"
    assert [line.split()[0] for line in out.splitlines()[-5:]] == ["first", *(f"{i:05d}:" for i in range(4))]


def test_keys_of_env_config_are_no_variables(file: Path) -> None:
    """Keys of env_config are the environment's own: {choices: […]} is not a misspelt choice."""
    from outplay.tune.files import SearchFile

    changed(file, "num_envs: 2", "env_config: {choices: [1, 2]}")
    assert SearchFile.load(file).template["config"]["env_config"] == {"choices": [1, 2]}


def test_a_study_its_report_and_its_runs(cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli("tune", "-f", "search.yml", "--name", "first", "--engine", "inline")
    assert (code, err) == (0, "")
    study = tmp_path / "results" / "first"
    assert out.splitlines()[-3].startswith("4 done in ")
    assert out.splitlines()[-1] == "to see all trials: outplay tune report first"
    assert sorted(path.name for path in study.iterdir() if path.name.startswith("trial")) == [
        f"trial_{i:05d}" for i in range(4)
    ]

    code, out, _ = cli("tune", "report", "fir", "--top", "2", "--csv", "trials.csv")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == [
        "rank",
        "trial",
        "status",
        "iter",
        "episode_return_mean",
        "lr",
        "gamma",
        "model/fcnet_hiddens",
    ]
    assert lines[3:] == ["… 2 more", "table: trials.csv", f"page: {study / 'report.html'}"]
    assert len((tmp_path / "trials.csv").read_text().splitlines()) == 5
    best = lines[1].split()[1]
    assert f"outplay evaluate first/trial_{best}" in (study / "report.html").read_text()

    assert "first (4 trials)  finished" in cli("runs")[1]
    assert cli("runs", "--trials")[1].count("first/trial_") == 4
    assert len(cli("runs", "--json")[1].splitlines()) == 4
    code, out, _ = cli("evaluate", "first/trial_00003", "--episodes", "1")
    assert code == 0
    assert "PPO on CartPole-v1, iteration 2" in out
    code, out, _ = cli("train", "--resume", "first/trial_00003", "--stop", "training_iteration=3")
    assert code == 0
    assert "to train further: outplay train --resume first/trial_00003" in out

    # It is finished; with more samples, it continues.
    code, out, _ = cli("tune", "--resume", "first", "--num-samples", "3", "--engine", "inline", "--json")
    assert code == 0
    results = [json.loads(line) for line in out.splitlines()]
    assert sorted((result["trial_id"], result["training_iteration"]) for result in results) == [
        ("00004", 1), ("00004", 2), ("00005", 1), ("00005", 2),
    ]  # fmt: skip
    assert set(results[0]["values"]) == {"config/lr", "config/gamma", "config/model/fcnet_hiddens"}
    code, _, err = cli("tune", "-f", "search.yml", "--name", "first")
    assert (code, err) == (
        2,
        "outplay: there is a study 'first' already; continue it with --resume first, or use another --name\n",
    )


def test_options_change_the_file_and_are_kept(cli: Cli, tmp_path: Path) -> None:
    options = ["--config", "lr={uniform: [0.1, 0.2]}", "--config", "gamma=0.5", "--stop", "training_iteration=1"]
    code, _, err = cli(
        "tune", "-f", "search.yml", "--name", "x", *options, "--seed", "3", "--engine", "inline", "--json"
    )
    assert (code, err) == (0, "")
    kept = yaml.safe_load((tmp_path / "results/x/search.yml").read_text())["poles"]
    assert kept["config"]["lr"] == {"uniform": [0.1, 0.2]}
    assert kept["config"]["gamma"] == 0.5
    assert kept["stop"] == {"training_iteration": 1}
    assert kept["tune"] == {"num_samples": 2, "seed": 3}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("num_samples: 2", "num_sample: 2", "tune has no setting 'num_sample'. Did you mean 'num_samples'?"),
        ("lr: {log", "lrr: {log", "unknown setting 'lrr'. Did you mean 'lr'?"),
        ("CartPole-v1", "CartPol-v1", "no environment 'CartPol-v1'. Did you mean 'CartPole-v1'?"),
        ("  env: CartPole-v1\n", "", "env is missing; add an environment, as env: CartPole-v1"),
        ("loguniform: [1.0e-5,", "loguniform: [0,", "config/lr: loguniform: on a logarithmic scale the lower"),
        ("{loguniform:", "{logunifrm:", "config/lr: there is no variable 'logunifrm'. Did you mean 'loguniform'?"),
        ("gamma: {choice: [0.9, 0.99]}", "gamma: {sample_from: f}", "config/gamma: sample_from is a Python function"),
        (
            "seed: 7",
            "scheduler: {type: pbt, hyperparam_mutations: {lr: {unifrm: [0, 1]}}}",
            "hyperparam_mutations/lr: there is no variable 'unifrm'. Did you mean 'uniform'?",
        ),
        (
            "seed: 7",
            "scheduler: {type: pb2, hyperparam_bounds: {lr: [1, 0]}}",
            "PB2: hyperparam_bounds of 'config/lr' must be [lowest, highest], not [1, 0]",
        ),
        ("seed: 7", "scheduler: {type: ash, max_t: 2}", "there is no scheduler 'ash'. Did you mean 'asha'?"),
        ("seed: 7", "scheduler: {type: asha, maxt: 2}", "ASHAScheduler has no setting 'maxt'. Did you mean 'max_t'?"),
        ("seed: 7", "search: optun", "there is no search 'optun'. Did you mean 'optuna'?"),
        ("seed: 7", "search: optuna", "grid_search cannot be combined with OptunaSearch"),
        ("seed: 7", "metric: episode_returns", "metric: there is no metric 'episode_returns'"),
        ("seed: 7", "points_to_evaluate: [{gama: 1}]", "points_to_evaluate: no variable 'gama'. Did you mean 'gamma'?"),
        ("seed: 7", "aggregate: median", "aggregate must be 'mean' or 'iqm', not 'median'"),
        ("seed: 7", "max_concurrent_trials: 0", "max_concurrent_trials must be an integer of at least 1, not 0"),
        ("  stop: {training_iteration: 2}\n", "", "without a stop condition the trials never end"),
        ("poles:\n", "other: {env: x}\npoles:\n", "expected one experiment, not 2 (other, poles)"),
    ],
)  # fmt: skip
def test_mistakes_are_one_sentence_and_nothing_is_written(
    cli: Cli, file: Path, tmp_path: Path, old: str, new: str, message: str
) -> None:
    changed(file, old, new)
    code, out, err = cli("tune", "-f", "search.yml")
    assert (code, out) == (2, "")
    assert err.startswith("outplay: search.yml")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to search: give a file (-f FILE), or a study to continue (--resume STUDY)"),
        (["-f", "search.yml", "--resume", "x"], "-f and --resume cannot be combined: a study keeps its file"),
        (["--resume", "x"], "there is no study 'x'; there is no study in "),
        (["--resume", "x", "--seed", "3"], "--seed cannot be combined with --resume: a study keeps its settings"),
        (["--nam", "x"], "no option --nam. Did you mean --name?"),
        (["report", "x"], "there is no study 'x'"),
        (["report", "x", "--bogus"], "no option --bogus; `outplay tune report --help` lists all"),
        (["report", "x", "--tap"], "no option --tap. Did you mean --top?"),
    ],
)
def test_wrong_arguments(cli: Cli, arguments: list[str], message: str) -> None:
    code, out, err = cli("tune", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("custom")
def test_imports_of_a_recorded_file_have_to_be_trusted(cli: Cli, file: Path) -> None:
    """As for runs: a file that the user names is trusted; one that lies in a study's folder is not."""
    changed(file, "CartPole-v1", "custom_env:CustomEnv")
    short = ("--engine", "inline", "--json")
    assert cli("tune", "-f", "search.yml", "--name", "own", "--num-samples", "1", *short)[0] == 0
    code, _, err = cli("tune", "--resume", "own", *short)
    assert code == 2
    assert "names the environment 'custom_env:CustomEnv', which would be imported; if you trust it, add --trust" in err
    code, out, _ = cli("tune", "--resume", "own", "--trust", "--num-samples", "2", *short)
    assert code == 0
    assert len(out.splitlines()) == 4


BROKEN = """
import os
import custom_env

class Broken(custom_env.CustomEnv):
    def step(self, action):
        if os.path.exists("results/bad/study.json"):  # not when it is checked, before the study starts
            raise RuntimeError("the robot is out of order")
        return super().step(action)
"""


@pytest.mark.usefixtures("custom")
def test_a_study_in_which_all_trials_fail(cli: Cli, file: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    changed(file, "CartPole-v1", "broken:Broken")
    code, out, err = cli("tune", "-f", "search.yml", "--name", "bad", "--engine", "inline")
    assert code == 2
    assert err.startswith("outplay: all 4 trials have failed; trial 00000: ")
    assert out.count("the robot is out of order") == 1  # not once per trial
    assert "Failed trials: 4" in _page(cli, tmp_path)


def _page(cli: Cli, tmp_path: Path) -> str:
    code, out, _ = cli("tune", "report", "bad", "--html", "page.html")
    assert code == 0
    assert out.splitlines()[-1] == "page: page.html"
    return (tmp_path / "page.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("where", [[], ["--engine", "ray"]], ids=["process", "ray"])
def test_ctrl_c_ends_a_study_which_is_resumed(tmp_path: Path, file: Path, where: list[str]) -> None:
    changed(file, "stop: {training_iteration: 2}", "checkpoint_freq: 10\n  stop: {training_iteration: 60}")
    environment = {**os.environ, "OUTPLAY_RESULTS": str(tmp_path / "results"), "PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, "-m", "outplay", "tune"]
    options: dict[str, Any] = {
        "cwd": tmp_path,
        "env": environment,
        "text": True,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    first = [*command, "-f", "search.yml", "--name", "long", *where]
    running = subprocess.Popen(first, start_new_session=True, **options)
    journal = tmp_path / "results/long/journal.jsonl"
    wait_for(lambda: journal.exists() and journal.read_text().count('"result"') > 5)
    os.killpg(running.pid, signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert err.splitlines()[-1] == " ".join(["interrupted; to resume: outplay tune --resume long", *where])
    assert "Traceback" not in err
    assert "unfinished in " in out

    done = subprocess.run([*command, "--resume", "long", *where], timeout=100, check=False, **options)
    assert done.returncode == 0, done.stderr
    assert "4 done in " in done.stdout
