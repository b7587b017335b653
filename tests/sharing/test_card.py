"""Model cards: complete, true, and made without a network; and the commands that share runs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from outplay.errors import RunError
from outplay.runs.experiments import load_file
from outplay.runs.run import Run
from outplay.serve import load_policy
from outplay.sharing.card import write_card
from outplay.sharing.curve import learning_curve
from tests.cli.conftest import cli as cli
from tests.runs.common import make

Outcome = tuple[int, str, str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = {"evaluation_interval": 1, "evaluation_duration": 2, "seed": 7}
    run = make(tmp_path_factory.mktemp("runs"), stop={"training_iteration": 3}, config=config)
    run.train()
    run.folder.videos_path.mkdir()
    (run.folder.videos_path / "checkpoint_000003.mp4").write_bytes(b"film")
    return run


def test_a_card_has_all_that_a_hub_shows(run: Run, tmp_path: Path) -> None:
    card = write_card(run.folder, tmp_path / "card")
    files = {"README.md", "learning_curve.svg", "config.yaml", "model.zip", "replay.mp4"}
    assert {path.name for path in card.iterdir()} == files
    text = (card / "README.md").read_text()
    _, front, body = text.split("---\n", 2)
    metadata = yaml.safe_load(front)
    assert metadata["library_name"] == "outplay"
    assert {"reinforcement-learning", "outplay", "PPO", "CartPole-v1"} <= set(metadata["tags"])
    (model,) = metadata["model-index"]
    (result,) = model["results"]
    assert result["dataset"]["name"] == "CartPole-v1"
    evaluated = run.folder.metrics().results[-1]["evaluation"]
    assert result["metrics"][0]["value"] == evaluated["episode_return_mean"]
    assert "| evaluation during training |" in body
    assert "| seed | 7 |" in body
    assert "120" in re.findall(r"environment steps \| (\S+)", body)[0]
    for name in files - {"README.md"}:
        assert name in body
    experiment = load_file(card / "config.yaml")[0]
    assert (experiment.env, experiment.config["seed"]) == ("CartPole-v1", 7)
    policy = load_policy(card / "model.zip")
    assert policy.iteration == 3


def test_the_curve_is_valid_svg_with_both_lines(run: Run) -> None:
    svg = learning_curve(run.folder.metrics().results)
    assert svg is not None
    root = ElementTree.fromstring(svg)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    paths = [path for path in root.iter("{http://www.w3.org/2000/svg}path") if "L" in path.attrib["d"]]
    assert [path.attrib["class"] for path in paths] == ["line training", "line evaluation"]
    assert learning_curve([]) is None
    assert learning_curve([{"timesteps_total": 5, "episode_return_mean": None}]) is None
    one = learning_curve([{"timesteps_total": 5, "episode_return_mean": 1.0}])
    assert one is not None
    ElementTree.fromstring(one)


def test_text_of_a_run_does_not_break_the_card(run: Run, tmp_path: Path) -> None:
    evaluation = {"episode_return_mean": 5.25, "episode_return_min": 5.0, "episode_return_max": 5.5, "episodes": 2}
    card = write_card(run.folder, tmp_path / "card", lambda _: evaluation)
    front = yaml.safe_load((card / "README.md").read_text().split("---\n", 2)[1])
    assert front["model-index"][0]["results"][0]["metrics"][0]["value"] == 5.25


def test_nothing_is_overwritten_and_nothing_half_written(run: Run, tmp_path: Path) -> None:
    (tmp_path / "card").mkdir()
    with pytest.raises(RunError, match="exists already"):
        write_card(run.folder, tmp_path / "card")
    new = make(tmp_path / "results")
    with pytest.raises(RunError, match="has no checkpoint yet"):
        write_card(new.folder, tmp_path / "other")
    new.pause()
    assert sorted(os.listdir(tmp_path)) == ["card", "results"]


def test_the_commands(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    run = make(tmp_path / "results", stop={"training_iteration": 1})
    run.train()
    code, out, err = cli("card", "it", "-o", "card", "--episodes", "2")
    assert (code, err) == (0, "")
    assert out == "the model card is in card\n"
    assert "evaluation for this card" in (tmp_path / "card" / "README.md").read_text()
    assert cli("card", "it", "-o", "card")[0] == 2
    code, out, _ = cli("bundle", "it", "out.zip")
    assert code == 0
    assert out.startswith("out.zip: it/PPO_CartPole-v1_")
    assert cli("bundle", "it", "out.zip")[0] == 2
    code, out, _ = cli("evaluate", "out.zip", "--episodes", "1")
    assert code == 0
    assert out.startswith("PPO on CartPole-v1, iteration 1")
    code, out, _ = cli("unbundle", "out.zip", "--results-dir", "there")
    assert code == 0
    assert "verified" in out
    assert out.rstrip().endswith(" --stop METRIC=VALUE --results-dir there")
    assert len(list((tmp_path / "there").glob("it/*/config.yaml"))) == 1
    code, _, err = cli("train", "--resume", "out.zip")
    assert code == 2
    assert "outplay unbundle out.zip" in err
    (tmp_path / "out.zip").write_bytes(b"PK\3\4")
    for command in (("unbundle", "out.zip"), ("evaluate", "out.zip"), ("serve", "out.zip")):
        code, _, err = cli(*command)
        assert code == 2
        assert "is not a bundle, or is damaged" in err
        assert len(err.splitlines()) == 1


@pytest.mark.slow
def test_the_commands_of_a_card_work(run: Run, cli: Callable[..., Outcome], tmp_path: Path) -> None:
    """Where the card lies, as its README says; servers are tested elsewhere."""
    card = write_card(run.folder, tmp_path / "card")
    os.chdir(card)
    block = re.search(r"```sh\n(.*?)```", (card / "README.md").read_text(), re.DOTALL)
    assert block is not None
    commands = [line.split("  #")[0].split() for line in block[1].splitlines() if not line.startswith("outplay serve")]
    assert len(commands) == 4
    for command in commands:
        code, _, err = cli(*command[1:])
        assert code == 0, err


def test_folders_of_this_machine_are_left_out(tmp_path: Path) -> None:
    recorded = make(tmp_path / "results", config={"output": str(tmp_path / "recorded")})
    recorded.train()
    card = write_card(recorded.folder, tmp_path / "card")
    assert str(tmp_path) not in (card / "config.yaml").read_text() + (card / "README.md").read_text()
    evaluated: list[Path] = []

    def evaluate(checkpoint: Path) -> dict[str, float]:
        evaluated.append(checkpoint)
        recorded.folder.remove_checkpoint(recorded.folder.checkpoints()[-1])  # as a run that trains does
        return {"episode_return_mean": 1.0}

    write_card(recorded.folder, tmp_path / "other", evaluate)
    assert load_policy(tmp_path / "other" / "model.zip").iteration == int(evaluated[0].name.rpartition("_")[2])
