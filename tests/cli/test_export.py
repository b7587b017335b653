"""`outplay export`: what it writes and says, and mistakes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from outplay import PPO
from outplay.export import formats
from tests.cli.common import SMALL, Outcome, only_run

EXAMPLE = Path(__file__).parents[2] / "examples" / "act_with_onnx.py"


@pytest.fixture
def run_name(cli: Callable[..., Outcome], tmp_path: Path) -> str:
    code, _, err = cli("train", "--env", "CartPole-v1", *SMALL, "--stop", "training_iteration=2")
    assert code == 0, err
    return only_run(tmp_path).name


def test_it_writes_a_policy_and_says_that_it_was_checked(
    cli: Callable[..., Outcome], run_name: str, tmp_path: Path
) -> None:
    code, out, err = cli("export", run_name, "policy.onnx")
    assert (code, err) == (0, "")
    first, second, third = out.splitlines()
    assert first.startswith("PPO on CartPole-v1, iteration 2 (")
    assert second.startswith("policy.onnx: onnx, ")
    assert second.endswith(" kB; inputs and outputs: policy.onnx.json")
    assert third.startswith("checked: onnxruntime ")
    assert third.endswith(" gives the policy's actions for 1,000 random observations")
    contract = json.loads((tmp_path / "policy.onnx.json").read_text())
    about = {key: contract[key] for key in ("algorithm", "env", "training_iteration", "timesteps_total")}
    assert about == {"algorithm": "PPO", "env": "CartPole-v1", "training_iteration": 2, "timesteps_total": 80}


def test_what_was_not_checked_is_said(
    cli: Callable[..., Outcome], run_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = cli("export", run_name, "policy.bin", "--format", "safetensors")
    assert (code, err) == (0, "")
    assert out.endswith("weights only: there is no graph to check\n")
    monkeypatch.setattr(formats, "has_onnxruntime", lambda: False)
    monkeypatch.setattr(formats, "onnx_bytes", lambda *_: b"graph")  # it is tested above
    code, out, err = cli("export", run_name, "policy.onnx")
    assert (code, err) == (0, "")
    assert out.endswith("not checked in onnxruntime, which is not installed: pip install onnxruntime\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RUN", "policy.zip"], "outplay: policy.zip has the suffix '.zip'; .onnx, .pt2 and .safetensors are known"),
        (["RUN", "no/policy.onnx"], "outplay: no/policy.onnx cannot be written: the folder no does not exist"),
        (["RUN", "policy.onnx", "--format", "onnxx"], "outplay: --format: there is no format 'onnxx'. Did you mean"),
        (["RUN", "policy.onnx"], "outplay: there is no run at RUN"),
    ],
)
def test_mistakes_get_one_sentence(
    cli: Callable[..., Outcome], tmp_path: Path, arguments: list[str], message: str
) -> None:
    code, out, err = cli("export", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("policy")]


def test_a_missing_package_gets_one_sentence(cli: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats.util, "find_spec", lambda name: None)
    code, out, err = cli("export", "RUN", "policy.onnx")
    assert (code, out, err) == (2, "", "outplay: exporting ONNX needs onnx: pip install 'outplay[export]'\n")


@pytest.mark.slow
def test_messages_of_the_exporters_do_not_reach_the_terminal(run_name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "outplay", "export", run_name]
    for name in ("policy.onnx", "policy.pt2"):
        result = subprocess.run(
            [*command, name], cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=100
        )
        assert (result.returncode, result.stderr) == (0, "")
        assert len(result.stdout.splitlines()) == 3


def test_the_example_acts_without_torch_and_outplay(tmp_path: Path) -> None:
    """A recurrent policy: the example plays the episodes that the policy itself plays."""
    settings = {"num_envs": 4, "train_batch_size": 64, "model": {"use_lstm": True, "lstm_cell_size": 8}}
    with PPO("CartPole-v1", settings) as trainer:
        trainer.train()
        trainer.export(tmp_path / "policy.onnx")
        returns = [own_return(trainer, seed) for seed in range(5)]
    blocked = "import runpy, sys; sys.modules['torch'] = sys.modules['outplay'] = None; "
    program = f"{blocked}sys.argv = ['example', 'policy.onnx']; runpy.run_path({str(EXAMPLE)!r})"
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [f"episode {i}: return {total:g}" for i, total in enumerate(returns)]


def own_return(trainer: PPO, seed: int) -> float:
    env = gymnasium.make("CartPole-v1")
    observation, _ = env.reset(seed=seed)
    state, total, is_over = None, 0.0, False
    while not is_over:
        action, state = trainer.predict(observation, state, deterministic=True)
        observation, reward, terminated, truncated, _ = env.step(action)
        total, is_over = total + float(reward), terminated or truncated
    return total


USAGE = "usage: python act_with_onnx.py policy.onnx (written by outplay export, with policy.onnx.json beside it)\n"
LIMITS = "this example takes ONNX files of a Gymnasium id with one array as observation and as action\n"


def run_example(*files: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(EXAMPLE), *map(str, files)], capture_output=True, text=True, timeout=100)


def test_the_example_needs_a_policy_and_its_contract(tmp_path: Path) -> None:
    policy = tmp_path / "policy.onnx"
    assert (run_example().returncode, run_example().stderr) == (1, USAGE)
    assert run_example(policy).stderr == USAGE
    policy.touch()
    assert run_example(policy).stderr == USAGE


CONTRACT: dict[str, Any] = {
    "format": "onnx",
    "inputs": [{"name": "observation", "role": "observation"}],
    "outputs": [{"name": "action", "role": "action"}, {"name": "logits", "role": "params"}],
    "env": "CartPole-v1",
    "env_config": {},
    "stacked_frames": 1,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        {"inputs": [*CONTRACT["inputs"], {"name": "previous_reward", "role": "previous_reward"}]},
        {"inputs": [{"name": "observation.camera", "role": "observation"}]},
        {"outputs": [{"name": "action.wheel", "role": "action"}]},
        {"format": "pt2"},
        {"stacked_frames": 4},
        {"env": "my.module:Env"},
    ],
)
def test_the_example_refuses_what_it_does_not_handle(tmp_path: Path, changed: dict[str, Any]) -> None:
    """The graph is not read before the contract is checked, so an empty file is enough."""
    file = tmp_path / "policy.onnx"
    file.touch()
    file.with_name("policy.onnx.json").write_text(json.dumps({**CONTRACT, **changed}))
    result = run_example(file)
    assert (result.returncode, result.stdout, result.stderr) == (1, "", f"{file}: {LIMITS}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "settings", "plays"),
    [
        ("CartPole-v1", {"model": {"use_lstm": True, "lstm_cell_size": 4, "lstm_use_prev_action": True}}, True),
        ("FrozenLake-v1", {}, True),
        ("CartPole-v1", {"model": {"use_lstm": True, "lstm_cell_size": 4, "lstm_use_prev_reward": True}}, False),
        ("CartPole-v1", {"frame_stack": 3}, False),
        ("Taxi-v4", {}, False),  # it has action masks
    ],
)
def test_the_example_and_real_policies(tmp_path: Path, env: str, settings: dict[str, Any], plays: bool) -> None:
    with PPO(env, {"num_envs": 1, "train_batch_size": 64, **settings}) as trainer:
        trainer.export(tmp_path / "policy.onnx")
    result = run_example(tmp_path / "policy.onnx")
    if plays:
        assert (result.returncode, len(result.stdout.splitlines())) == (0, 5), result.stderr
    else:
        assert result.stderr == f"{tmp_path / 'policy.onnx'}: {LIMITS}"


def test_the_document_shows_the_example() -> None:
    code = EXAMPLE.read_text().split('"""', 2)[2].lstrip()
    document = EXAMPLE.parents[1] / "docs" / "export.md"
    assert f"```python\n# {EXAMPLE.name}\n{code}```\n" in document.read_text()


def test_the_example_is_short() -> None:
    lines = EXAMPLE.read_text().split('"""')[2].splitlines()
    code = [line for line in lines if line.strip() and not line.startswith(("import", "from"))]
    assert len(code) <= 20
