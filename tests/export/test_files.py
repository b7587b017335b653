"""The files of an exported policy: contract, hash, weights; and what is wrong gets one sentence and leaves no files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from safetensors import safe_open
from safetensors.numpy import load_file
from torch import Tensor, nn

from outplay import PPO, ConfigError, ExportError, RunError, export_policy
from outplay.export import PolicyModule, Verified, formats, verifying
from outplay.export.exporting import checked_format
from outplay.policies import Policy, PolicySpec
from outplay.policies.distributions import DiagonalGaussian
from outplay.spaces import leaves
from tests.export.kinds import BOUNDED, DICT, VECTOR, on_policy, policy_of

Array = np.ndarray


def test_safetensors_are_the_weights_with_the_contract(tmp_path: Path) -> None:
    policy = policy_of("lstm, previous")
    exported = export_policy(policy, tmp_path / "policy.safetensors", about={"env": "Maze-v0"})
    stated = json.loads((tmp_path / "policy.safetensors.json").read_text())
    assert stated == exported.contract
    assert stated["sha256"] == hashlib.sha256(exported.path.read_bytes()).hexdigest()
    assert (stated["format"], stated["env"], stated["contract_version"]) == ("safetensors", "Maze-v0", 1)
    other = on_policy(actions=policy.action_space, model=policy.spec.model.model_dump(exclude_unset=True)).make()
    other.set_weights(load_file(exported.path))
    for name, array in policy.get_weights().items():
        np.testing.assert_array_equal(other.get_weights()[name], array)
    with safe_open(exported.path, "np") as file:
        assert file.metadata()["outplay_version"] == stated["outplay_version"]


def test_the_contract_says_what_goes_in_and_out(tmp_path: Path) -> None:
    stated = export_policy(policy_of("lstm, previous"), tmp_path / "policy.safetensors").contract
    inputs = {entry["name"]: (entry["role"], entry["dtype"], entry["shape"]) for entry in stated["inputs"]}
    assert inputs == {
        "observation": ("observation", "float32", ["batch", 5]),
        "previous_reward": ("previous_reward", "float32", ["batch"]),
        "state.h": ("state", "float32", ["batch", 12]),
        "state.c": ("state", "float32", ["batch", 12]),
        "state.previous_action": ("state", "float32", ["batch", 4 + 2 + 5 + 1 + 2]),
    }
    outputs = {entry["name"]: (entry["role"], entry["dtype"], entry["shape"]) for entry in stated["outputs"]}
    assert list(outputs)[:5] == ["action.gear", "action.more.0", "action.more.1", "action.more.2", "action.wheel"]
    assert outputs["action.more.2"] == ("action", "int32", ["batch", 1])
    assert outputs["value"] == ("value", "float32", ["batch"])
    paths = {entry["name"]: entry["path"] for entry in stated["outputs"] if entry["role"] == "action"}
    assert paths["action.more.1"] == ["more", 1]
    assert stated["action_space"]["spaces"]["gear"] == {
        "type": "Discrete", "dtype": "int64", "shape": [], "n": 4, "start": 1
    }  # fmt: skip


def test_an_initial_state_that_is_not_constant_is_written_out(tmp_path: Path) -> None:
    stated = export_policy(policy_of("custom model, recurrent"), tmp_path / "policy.safetensors").contract
    (entry,) = [entry for entry in stated["inputs"] if entry["role"] == "state"]
    assert entry["initial"] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])


def test_unbounded_spaces_and_sequences_are_json(tmp_path: Path) -> None:
    stated = export_policy(policy_of("box"), tmp_path / "policy.safetensors").contract
    assert stated["action_space"]["low"] == [-2.0, 0.0, None]
    stated = export_policy(policy_of("sequence, attention"), tmp_path / "policy.safetensors").contract
    assert stated["observation_space"]["type"] == "Sequence"
    assert stated["inputs"][0]["meaning"] == "observation: each element minus its space's start plus 1, then zeros"


def test_names_of_inputs_are_unique(tmp_path: Path) -> None:
    space = spaces.Dict({"a.b": VECTOR, "a": spaces.Dict({"b": VECTOR})})
    stated = export_policy(on_policy(space).make(), tmp_path / "policy.safetensors").contract
    named = {entry["name"]: entry["path"] for entry in stated["inputs"]}
    assert named == {"observation.a.b": ["a", "b"], "observation.a.b_2": ["a.b"]}


def test_bfloat16_becomes_float32(tmp_path: Path) -> None:
    stated = export_policy(policy_of("bfloat16"), tmp_path / "policy.safetensors").contract
    assert (stated["precision"], stated["trained_precision"]) == ("float32", "bfloat16")


def test_exporting_does_not_change_training(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"num_envs": 4, "train_batch_size": 64, "num_workers": 0, "seed": 1}
    weights = []
    for exports in (False, True):
        with PPO("CartPole-v1", settings) as trainer:
            trainer.train()
            if exports:
                exported = trainer.export(tmp_path / "policy.pt2")
                assert exported.contract["training_iteration"] == 1
                assert exported.contract["env"] == "CartPole-v1"
            trainer.train()
            weights.append(trainer.get_policy().get_weights())
    for name, array in weights[0].items():
        np.testing.assert_array_equal(weights[1][name], array)


# Mistakes.


@pytest.mark.parametrize(
    ("path", "chosen", "message"),
    [
        ("policy.zip", None, "has the suffix '.zip'; .onnx, .pt2 and .safetensors are known"),
        ("policy", None, "has no suffix; .onnx, .pt2 and .safetensors are known"),
        ("policy.onnx", "onxx", "there is no format 'onxx'. Did you mean 'onnx'?"),
        ("policy.onnx", "pt2", "has the suffix of onnx, and the format is pt2"),
        ("missing/policy.onnx", None, "the folder .*missing does not exist"),
        ("", "onnx", "is a folder; name a file"),
    ],
)
def test_wrong_paths_and_formats(path: str, chosen: str | None, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        checked_format(tmp_path / path, chosen)


def test_a_format_can_be_chosen(tmp_path: Path) -> None:
    assert checked_format(tmp_path / "policy.bin", "pt2") == (tmp_path / "policy.bin", "pt2")
    assert checked_format(str(tmp_path / "POLICY.ONNX")) == (tmp_path / "POLICY.ONNX", "onnx")


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats.util, "find_spec", lambda name: None if name == "onnxscript" else object())
    with pytest.raises(ExportError, match=r"needs onnxscript: pip install 'outplay\[export\]'"):
        checked_format(tmp_path / "policy.onnx")


def test_a_policy_too_large_for_onnx_gets_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_LARGEST_ONNX", 100)
    with pytest.raises(ExportError, match=r"larger than 2 GB, the limit of one ONNX file; export .pt2 or .safetensors"):
        export_policy(policy_of("discrete"), tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_converted_to_onnx_gets_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise TypeError("no such operator\nand more")

    monkeypatch.setattr(torch.onnx, "export", refuse)
    with pytest.raises(
        ExportError, match=r"cannot convert this policy to ONNX \(TypeError: no such operator\); export"
    ):
        export_policy(policy_of("discrete"), tmp_path / "policy.onnx")
    assert list(tmp_path.iterdir()) == []


class Branching(nn.Module):
    """Its path depends on values, which no graph can contain."""

    def __init__(self, space: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = [self.layer(row) if float(row.sum()) > 0 else self.layer(-row) for row in x]
        return torch.stack(rows)


class Foreign(DiagonalGaussian):
    def __init__(self, space: Any) -> None:
        super().__init__(2)

    def mode(self, params: Array) -> Array:
        return np.stack([np.asarray([float(x) for x in row[:2]], np.float32) for row in params])


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (lambda: on_policy(model={"custom_model": Branching}), "model.custom_model Branching"),
        (lambda: on_policy(actions=BOUNDED, model={"custom_action_dist": Foreign}), "model.custom_action_dist Foreign"),
    ],
)
def test_what_torch_cannot_trace_gets_one_sentence(spec: Any, name: str, tmp_path: Path) -> None:
    (tmp_path / "policy.pt2").write_text("old")
    with pytest.raises(ExportError, match=f"{name} cannot be exported, because torch.export cannot trace it") as caught:
        export_policy(spec().make(), tmp_path / "policy.pt2")
    assert "\n" not in str(caught.value)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("policy.pt2", "old")]
    export_policy(spec().make(), tmp_path / "policy.safetensors")  # weights need no graph


class Worst(Policy):
    def _choose(self, params: Array, mask: Array | None, explore: bool, rng: np.random.Generator) -> Array:
        worst: Array = params.argmin(-1)
        return worst


class Doubled(Policy):
    def _actions(self, outputs: Array, *others: Any) -> Any:
        return super()._actions(2 * outputs, *others)


@pytest.mark.parametrize(("kind", "problem"), [(Worst, "its actions are not the mode"), (Doubled, "its logits differ")])
def test_a_policy_class_that_acts_otherwise_is_refused(kind: type[Policy], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=f"does not act as the policy: {problem}"):
        export_policy(PolicySpec(VECTOR, spaces.Discrete(3), policy_class=kind).make(), tmp_path / "policy.pt2")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / ".policy.safetensors.json.part").mkdir()
    with pytest.raises(RunError, match=r"policy.safetensors cannot be written: Is a directory"):
        export_policy(policy_of("discrete"), tmp_path / "policy.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == [".policy.safetensors.json.part"]


@pytest.mark.parametrize(
    "space",
    [
        *(leaf.space for leaf in leaves(DICT)),
        spaces.Box(-1e6, 1e6, (3,), np.float32),
        spaces.Box(np.array([-np.inf, 50, -300]), np.array([-40, np.inf, -200]), dtype=np.float64),
        spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (2,), np.int64),
        spaces.Box(5000, 2**31, (2,), np.uint32),
    ],
    ids=str,
)
def test_random_observations_are_in_their_spaces(space: spaces.Space[Any]) -> None:
    (rows,) = verifying.random_rows(leaves(space), 20, np.random.default_rng(0))
    assert all(space.contains(row if row.ndim else row[()]) for row in rows)
    assert len({row.tobytes() for row in rows}) > 1


def tied() -> tuple[Policy, PolicyModule]:
    """A policy for which all actions are equally good."""
    policy = on_policy().make()
    policy.set_weights({name: 0 * array for name, array in policy.get_weights().items()})
    return policy, PolicyModule(policy)


@pytest.mark.parametrize(("change", "equal"), [(0.0, 50), (1e-6, 0)])
def test_actions_may_differ_where_two_are_equal_up_to_rounding(change: float, equal: int) -> None:
    policy, module = tied()

    def run(inputs: dict[str, Array]) -> dict[str, Array]:
        logits = formats.module_runner(module)(inputs)["logits"] + np.array([0, 0, change], np.float32)
        return {"action": logits.argmax(-1), "logits": logits}

    assert verifying.verify(module, policy, run, 50) == Verified(50, equal)


def test_another_action_than_that_of_the_logits_is_an_error() -> None:
    policy, module = tied()

    def run(inputs: dict[str, Array]) -> dict[str, Array]:
        outputs = formats.module_runner(module)(inputs)
        return {**outputs, "action": outputs["action"] + 1}

    with pytest.raises(ExportError, match="its actions are not the mode of its params"):
        verifying.verify(module, policy, run, 50)
