"""Every kind of policy gives the same actions in onnxruntime and torch.export as in Outplay, on 1,000 observations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch

from outplay.export import PolicyModule, export_policy
from outplay.export.contract import contract
from outplay.export.formats import module_runner
from tests.export.acting import Run, check_same_actions
from tests.export.kinds import KINDS, in_float32, policy_of

QUICK = ("lstm, previous",)  # the others take a second or two each


def session_runner(path: Path) -> Run:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options)
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_the_module_acts_as_the_policy(kind: str) -> None:
    policy = policy_of(kind)
    module = PolicyModule(policy, in_numpy=True)
    check_same_actions(in_float32(policy), contract(module), module_runner(module), number=200)


@pytest.mark.parametrize("kind", [k if k in QUICK else pytest.param(k, marks=pytest.mark.slow) for k in KINDS])
def test_onnxruntime_acts_as_the_policy(kind: str, tmp_path: Path) -> None:
    policy = policy_of(kind)
    exported = export_policy(policy, tmp_path / "policy.onnx")
    stated = json.loads(exported.contract_path.read_text())
    assert stated == exported.contract
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy.onnx", "policy.onnx.json"]
    check_same_actions(in_float32(policy), stated, session_runner(exported.path))
    check_graph(exported.path, stated)
    assert exported.verified is not None
    assert exported.verified.observations == exported.verified.equal == 1000


def check_graph(path: Path, stated: dict[str, Any]) -> None:
    """The inputs and outputs of the graph are those of the contract."""
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [entry.version for entry in model.opset_import if entry.domain == ""] == [stated["opset"]]
    for values, entries in ((model.graph.input, stated["inputs"]), (model.graph.output, stated["outputs"])):
        found = [
            [value.name, [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]]
            for value in values
        ]
        assert found == [[entry["name"], entry["shape"]] for entry in entries]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_torch_export_acts_as_the_policy(kind: str, tmp_path: Path) -> None:
    policy = policy_of(kind)
    exported = export_policy(policy, tmp_path / "policy.pt2")
    loaded = torch.export.load(exported.path).module()
    check_same_actions(in_float32(policy), exported.contract, module_runner(loaded))
