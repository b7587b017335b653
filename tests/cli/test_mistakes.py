"""What is wrong is one sentence and exit code 2; what nobody foresaw, one sentence and a file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from outplay.runs import experiments
from tests.cli.common import Outcome


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train"], "nothing to train: name a recipe"),
        (["train", "cartpol"], "no recipe 'cartpol'. Did you mean 'cartpole'?"),
        (["train", "cartpole", "-f", "x.yml"], "a recipe and -f cannot be combined"),
        (["train", "-f", "nowhere.yml"], "there is no file nowhere.yml"),
        (["train", "--env", "CartPole-v9"], "no environment 'CartPole-v9'. Did you mean 'CartPole-v1'?"),
        (["train", "--env", "nowhere.Env"], "no module 'nowhere' for the environment 'nowhere.Env'"),
        (["train", "--env", "CartPole-v1", "--run", "PPPO"], "no algorithm 'PPPO'. Did you mean 'PPO'?"),
        (["train", "--env", "CartPole-v1", "--stop", "timestep=5"], "there is no metric 'timestep'. Did you mean"),
        (
            ["train", "--env", "CartPole-v1", "--stop", "timesteps_total"],
            "--stop takes KEY=VALUE, not 'timesteps_total'",
        ),
        (["train", "--env", "CartPole-v1", "--config", "env=Acrobot-v1"], "two environments are named"),
        (["train", "--env", "CartPole-v1", "--stop", "training_iteration=.nan"], "stop.training_iteration must be"),
        (["train", "--env", "CartPole-v1", "--config", "lrr=1"], "unknown setting 'lrr'. Did you mean 'lr'?"),
        (["train", "--env", "CartPole-v1", "--config", "lr=fast"], "lr must be a number of at least 0, not 'fast'"),
        (["train", "--env", "CartPole-v1", "--num-workers", "many"], "--num-workers takes an integer or auto"),
        (["train", "--env", "CartPole-v1", "--engine", "sparks"], "no engine 'sparks'"),
        (["train", "--env", "CartPole-v1", "--results-dir", "file"], "cannot be created: "),
        (["train", "--resume", "nothing"], "there is no run at nothing"),
        (["train", "--resume", "x", "--init-from", "y"], "cannot be combined: one resumes a run"),
        (["evaluate", "nothing"], "there is no run at nothing"),
        (["evaluate", "x", "--episodes", "3", "--steps", "3"], "cannot be combined"),
        (["check-env", "nowhere:Env"], "no module 'nowhere'"),
        (["train", "--env", "Blackjack-v1", "--config", "framework=tf2"], "framework 'tf2' is not supported"),
        (["train", "--resume", "**x"], "there is no run at **x"),
        (["train", "--resume", "x" * 5000], "cannot be used: File name too long"),
        (["train", "--resume", "abc/" * 1250], "cannot be used: File name too long"),
        (["train", "--env", "CartPole-v1", "--init-from", "x" * 5000], "cannot be used: File name too long"),
        (["train", "--env", "CartPole-v1", "--results-dir", "x" * 5000], "cannot be used: File name too long"),
        (["train", "-f", "x" * 5000], "cannot be read: File name too long"),
        (["evaluate", "~nobody-of-that-name/run"], "cannot be used: Could not determine home directory"),
        (["evaluate", "x", "--video", "x" * 5000], "cannot be used: File name too long"),
        (["runs", "--results-dir", "x" * 5000], "cannot be used: File name too long"),
        (["train", "--env", "CartPole-v1", "--stop", "timesteps_total=-5"], "stop.timesteps_total must be more than 0"),
        (
            ["train", "--env", "CartPole-v1", "--dry-run", "--engine", "nope"],
            "--engine: no engine 'nope'; valid: inline",
        ),
        (["train", "--env", "CartPole-v1", "--dry-run", "--engine", "inline", "--address", "x"], "is for engine='ray'"),
        (
            ["train", "--env", "CartPole-v1", "--config", "model.fcnet_hiddens=[1000000, 1000000]"],
            "model.fcnet_hiddens: 1,000,004,000,000 parameters need 16,000 GB",
        ),
        (["train", "--env", "CartPole-v1", "--config", "." * 5000 + "=1"], "no setting is nested that deep"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    cli: Callable[..., Outcome], tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    (tmp_path / "file").write_text("")
    code, out, err = cli(*arguments)
    assert code == 2
    assert sentence in err
    assert len(err.strip().splitlines()) == 1
    assert out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["file"]  # nothing half-written


def test_what_nobody_foresaw_is_one_sentence_and_a_file(
    cli: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise KeyError("an oversight")

    monkeypatch.setattr(experiments, "recipe_names", fail)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code, _, err = cli("recipes")
    assert code == 1
    (sentence,) = err.strip().splitlines()
    assert sentence.startswith("outplay: KeyError: 'an oversight'; this is a bug in Outplay")
    (file,) = tmp_path.glob("outplay-traceback-*.txt")
    assert str(file) in sentence
    assert "in fail" in file.read_text()
    assert "'recipes'" in file.read_text()
    for arguments in (["recipes", "--traceback"], ["--traceback", "recipes"]):
        code, _, err = cli(*arguments)
        assert code == 1
        assert "Traceback (most recent call last)" in err
        assert "in fail" in err
    monkeypatch.setenv("OUTPLAY_TRACEBACK", "1")
    assert "in fail" in cli("recipes")[2]


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (SystemExit(3), 3), (EOFError("cut"), 1)])
def test_other_ways_to_end(
    cli: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(experiments, "recipe_names", fail)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended, _, err = cli("recipes")
    assert ended == code
    assert ("this is a bug in Outplay" in err) == isinstance(error, EOFError)
    assert len(list(tmp_path.glob("outplay-traceback-*"))) == isinstance(error, EOFError)


def test_the_traceback_of_a_mistake_is_shown_when_asked_for(cli: Callable[..., Outcome]) -> None:
    code, _, err = cli("train", "cartpol", "--traceback")
    assert code == 2
    assert "Traceback (most recent call last)" in err
    assert err.splitlines()[-1].startswith("outplay: no recipe 'cartpol'")
