"""Checkpoints from strangers, and from older versions. tests/fuzz/ has thousands more of the former."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from outplay import PPO, Algorithm, CheckpointError
from outplay.runs.checkpoint import read_state
from tests import probes

OLD = Path(__file__).parents[1] / "data" / "checkpoints-0.2.0"
SMALL = {"num_envs": 4, "num_workers": 0, "train_batch_size": 40, "seed": 3, "model": {"fcnet_hiddens": [4]}}


@pytest.mark.parametrize("kind", ["native", "python"])
def test_a_checkpoint_of_version_0_2_0(kind: str, tmp_path: Path) -> None:
    """Written by that version; it lacks what came later."""
    assert "running" not in json.loads((OLD / kind / "state.json").read_bytes())["episodes"]
    with Algorithm.from_checkpoint(OLD / kind) as trainer:
        assert trainer.train()["training_iteration"] == 3
        again = trainer.save(tmp_path)
    with Algorithm.from_checkpoint(again) as resumed:
        assert resumed.train()["training_iteration"] == 4


@pytest.fixture
def crafted(tmp_path: Path) -> Callable[[str, Callable[[Any], Any]], Path]:
    """A checkpoint with one file changed and the manifest made to fit."""
    with PPO(env=probes.Walk, config=SMALL) as trainer:
        trainer.train()
        folder = Path(trainer.save(tmp_path))

    def craft(name: str, change: Callable[[Any], Any]) -> Path:
        data = (folder / name).read_bytes()
        if name.endswith(".json"):
            changed = change(json.loads(data))
            data = changed if isinstance(changed, bytes) else json.dumps(changed).encode()
        else:
            changed = change(load(data))
            data = changed if isinstance(changed, bytes) else save(changed)
        (folder / name).write_bytes(data)
        hashes = json.loads((folder / "manifest.json").read_bytes())
        hashes[name] = hashlib.sha256(data).hexdigest()
        (folder / "manifest.json").write_text(json.dumps(hashes))
        return folder

    return craft


def changed(path: str, value: Any) -> Callable[[Any], Any]:
    """Sets the value at a path such as groups.0.lanes."""

    def change(tree: Any) -> Any:
        inner = tree
        *parts, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        for part in parts:
            inner = inner[part]
        inner[last] = value
        return tree

    return change


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("groups.0.lanes", 10**9, "groups.0.lanes: Input should be less than or equal to 1000000"),
        ("groups.0.lanes", 10**6, "groups.0: Value error, 1000000 lanes, but 1 episodes"),
        ("groups.0.episodes", [10**30], "groups.0.episodes.0"),
        ("groups.0.marks", [], "the EnvGroup has no marks"),
        ("groups.0.task", "\ud800", "lone surrogate"),
        ("training_iteration", -1, "training_iteration"),
        ("training_iteration", "4", "training_iteration: Input should be a valid integer"),
        ("time_total_s", float("nan"), "time_total_s"),
        ("learner", {}, "counts: Field required"),
        ("learner.kl_coeff", [], "kl_coeff"),
        ("learner.counts", {}, "counts.0 is missing"),
        ("config", [], "config: Input should be a valid dictionary"),
        ("env", "a\0b", "contains NUL"),
        ("exact", 10**400, "an integer of 1,329 bits"),
    ],
)
def test_a_value_that_does_not_fit(crafted: Any, path: str, value: Any, sentence: str) -> None:
    folder = crafted("state.json", changed(path, value))
    with PPO(env=probes.Walk, config=SMALL) as trainer, pytest.raises(CheckpointError) as caught:
        trainer.restore(folder)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_deep_nesting(crafted: Any) -> None:
    for levels in (70, 100_000):
        folder = crafted("state.json", lambda _, levels=levels: b"[" * levels + b"]" * levels)
        with pytest.raises(CheckpointError, match=r"state\.json: nested more than 64 levels deep"):
            read_state(folder)


@pytest.mark.parametrize(
    ("file", "change", "sentence"),
    [
        ("weights", lambda t: {**t, "policy_head.bias": t["policy_head.bias"].astype(np.float64)}, "not torch.float32"),
        ("weights", lambda _: b"no tensors", "weights.safetensors: "),
        ("optimizer", lambda t: {**t, "first": t["first"][:1]}, "first is torch.float32 of shape (1,), not"),
        ("optimizer", lambda t: {k: v for k, v in t.items() if k != "second"}, "second is missing"),
        ("envs", lambda t: {k: v.astype(np.float32) for k, v in t.items()}, "0.actions.0 is float32"),
        ("envs", lambda t: {k: np.stack([v, v], 1) for k, v in t.items()}, "0.actions.0 is int64 of shape"),
    ],
)
def test_tensors_that_do_not_fit(crafted: Any, file: str, change: Any, sentence: str) -> None:
    folder = crafted(f"{file}.safetensors", change)
    with PPO(env=probes.Walk, config=SMALL) as trainer:
        before = trainer.policy.flat.clone()
        with pytest.raises(CheckpointError) as caught:
            trainer.restore(folder)
        assert trainer.policy.flat.equal(before)
    assert sentence in str(caught.value)


def test_a_manifest_that_is_none(tmp_path: Path) -> None:
    shutil.copytree(OLD / "native", tmp_path / "changed")
    for text in ("[]", '{"state.json": 5}', '{"../state.json": "' + "0" * 64 + '"}', "[" * 10_000):
        (tmp_path / "changed" / "manifest.json").write_text(text)
        with pytest.raises(CheckpointError):
            Algorithm.from_checkpoint(tmp_path / "changed")
