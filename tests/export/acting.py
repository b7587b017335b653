"""Acts with an exported policy by its contract alone, beside the policy itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from outplay import spaces
from outplay.export.verifying import random_masks, random_rows
from outplay.masks import mask_sizes
from outplay.policies import Policy

Array = np.ndarray
Run = Callable[[dict[str, Array]], dict[str, Array]]

NUMBER, LANES = 1000, 50


def check_same_actions(
    policy: Policy, contract: dict[str, Any], run: Run, number: int = NUMBER, varied: bool = True
) -> None:
    """`run` gives the policy's actions for `number` observations: exactly, and within 1e-5 for floats.

    `varied`: several actions must occur, otherwise the comparison would show little.
    """
    rng = np.random.default_rng(5)
    state = policy.initial_state(LANES)
    inputs = {entry["name"]: entry for entry in contract["inputs"]}
    own = {
        name: np.broadcast_to(np.asarray(entry["initial"], entry["dtype"]), (LANES, *entry["shape"][1:]))
        for name, entry in inputs.items()
        if entry["role"] == "state"
    }
    seen = set()
    for _ in range(number // LANES):
        rows = random_rows(policy.leaves, LANES, rng)
        rewards = rng.standard_normal(LANES).astype(np.float32)
        masks = random_masks(mask_sizes(policy.action_space), LANES, rng) if policy.spec.with_masks else None
        leaves = {leaf.path: row for leaf, row in zip(policy.leaves, rows, strict=True)}
        feed: dict[str, Array] = {name: np.ascontiguousarray(array) for name, array in own.items()}
        for name, entry in inputs.items():
            if entry["role"] == "observation":
                feed[name] = leaves[tuple(entry["path"])]
            elif entry["role"] == "action_mask":
                assert masks is not None
                feed[name] = masks
            elif entry["role"] == "previous_reward":
                feed[name] = rewards
            assert feed[name].dtype == entry["dtype"]
            assert feed[name].shape == (LANES, *entry["shape"][1:])
        outputs = run(feed)
        state = policy.with_rewards(state, rewards)
        expected, state, _ = policy.act_on_rows(rows, state, masks, False, rng)
        check_outputs(policy, contract, outputs, expected)
        seen |= {repr(row.round(3).tolist()) for row in expected}
        own = {name: outputs[inputs[name]["next"]] for name in own}
    assert len(seen) > 1 or not varied


def check_outputs(policy: Policy, contract: dict[str, Any], outputs: dict[str, Array], expected: Array) -> None:
    assert list(outputs) == [entry["name"] for entry in contract["outputs"]]
    nested = [spaces.nested_action(policy.action_space, row) for row in expected]
    for entry in contract["outputs"]:
        found = outputs[entry["name"]]
        assert found.dtype == entry["dtype"]
        assert found.shape == (LANES, *entry["shape"][1:])
        if entry["role"] == "action":
            wanted = np.stack([np.asarray(followed(action, entry["path"])) for action in nested])
            if found.dtype.kind == "f":
                np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
            else:
                np.testing.assert_array_equal(found, wanted)


def followed(value: Any, path: list[Any]) -> Any:
    for key in path:
        value = value[key]
    return value
