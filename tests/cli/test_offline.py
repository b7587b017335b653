"""The command line with recorded data."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from outplay import PPO
from tests.cli.common import Outcome

SMALL = {"num_workers": 0, "num_envs": 4, "train_batch_size": 400}


def test_a_saved_policy_is_evaluated_without_its_data(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    with PPO("CartPole-v1", {**SMALL, "output": str(tmp_path / "data")}) as trainer:
        trainer.train()
    (tmp_path / "file.yml").write_text(
        "clone:\n  env: CartPole-v1\n  run: BC\n  stop: {training_iteration: 2}\n  config:\n    input: data\n"
        "    train_batch_size: 256\n    evaluation_interval: 1\n    evaluation_duration: 2\n"
    )
    code, out, err = cli("train", "-f", "file.yml")
    assert code == 0, err
    assert "iteration 2  steps 256" in out + err or "steps 512" in out + err
    assert re.search(r"steps [\d,]+  policy loss [\d.]+  epochs [\d.]+  ", out)
    assert "no episode yet" not in out
    (tmp_path / "data").rename(tmp_path / "moved")
    code, out, err = cli("evaluate", "clone", "--episodes", "2")
    assert code == 0, err
    assert "BC on CartPole-v1, iteration 2" in out
    code, out, err = cli("train", "--resume", "clone", "--stop", "training_iteration=3")
    assert code == 2
    assert "does not exist" in err
    assert "Traceback" not in err
    code, out, err = cli("train", "--run", "BC", "--env", "CartPole-v1", "--config", "input=nowhere")
    assert (code, "does not exist" in err) == (2, True)


def test_the_command_line(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    config = {**SMALL, "output": str(tmp_path / "out")}
    with PPO("CartPole-v1", config) as trainer:
        trainer.train()
        path = trainer.save(tmp_path)
    code, out, err = cli("ope", path, "out", "--method", "wis", "--explore", "--json")
    assert code == 0, err
    assert 1 < json.loads(out)["wis"]["return_mean"] < 100
    code, out, err = cli("ope", path, "out", "--method", "is", "--explore")
    assert out.startswith("is: discounted return ")
    fitted = []
    for updates in (1, 50):
        code, out, err = cli("ope", path, "out", "--method", "fqe", "--fqe-updates", str(updates), "--json")
        assert code == 0, err
        fitted.append(json.loads(out)["fqe"]["return_mean"])
        assert json.loads(out)["fqe"]["converged"] is False
    assert fitted[0] != fitted[1]
    code, out, err = cli("ope", path, "out", "--method", "fqe", "--fqe-updates", "50")
    assert (code, out.endswith(" (not converged after 50 updates)\n")) == (0, True)
    assert cli("ope", path, "out", "--method", "fqe", "--fqe-updates", "0")[0] == 2
    assert cli("ope", path, "none")[0] == 2
