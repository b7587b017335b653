"""The three Pong programs: short, the same on every engine, and their shared maths right."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = ("pong_tasks", "pong_reusable", "pong_actors")


@pytest.fixture(scope="module")
def policy() -> Iterator[Any]:
    sys.path.insert(0, str(EXAMPLES))
    import pong_policy

    yield pong_policy
    sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def lines(policy: Any) -> list[str]:
    """What a batch of two games prints, played here one after the other."""
    first, second = (policy.compute_gradient(policy.make_env(), policy.new_model(), seed)[1] for seed in (2, 3))
    mean = 0.99 * first + 0.01 * second
    return [
        f"batch 1, reward {first:g}, running mean {first:.2f}",
        f"batch 1, reward {second:g}, running mean {mean:.2f}",
    ]


@pytest.mark.parametrize(
    ("program", "engine"),
    [
        pytest.param(program, engine, marks=[] if engine == "process" else [pytest.mark.slow])
        for program in PROGRAMS
        for engine in ("inline", "process", "ray")
    ],
)
def test_a_batch_is_the_same_on_every_engine(program: str, engine: str, lines: list[str]) -> None:
    path = EXAMPLES / f"{program}.py"
    assert len(path.read_text().splitlines()) < 120
    command = [sys.executable, str(path), "--engine", engine, "--batch-size", "2", "--batches", "1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == lines
    assert "leaked" not in result.stderr


def test_discounted_rewards_start_anew_at_each_point(policy: Any) -> None:
    rewards = np.array([0, 0, 1, 0, -1, 0], np.float32)
    expected = [0.99**2, 0.99, 1, -0.99, -1, 0]
    assert policy.discounted(rewards) == pytest.approx(expected)


def test_the_gradient_is_that_of_the_likelihood_weighted_by_what_paid_off(policy: Any) -> None:
    """Against torch's own derivative of Σ advantage · log p(action)."""
    rng = np.random.default_rng(0)
    model = policy.new_model(1)
    pixels = (rng.random((40, policy.PIXELS)) < 0.01).astype(np.float32) * rng.choice([-1, 1], (40, 1))
    pixels = pixels.astype(np.float32)
    ups = rng.random(40) < 0.5
    rewards = rng.choice([0, 0, 0, 1, -1], 40).astype(np.float32)
    rewards[-1] = 1
    outputs = [policy.forward(model, x) for x in pixels]
    error = np.array([up - chance for up, (chance, _) in zip(ups, outputs, strict=True)], np.float32)
    ours = policy.gradient_of(model, pixels, np.array([hidden for _, hidden in outputs]), error, rewards)

    weights = {name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in model.items()}
    hidden = (torch.tensor(pixels, dtype=torch.float64) @ weights["W1"]).relu()
    logits = hidden @ weights["W2"]
    chosen = torch.where(
        torch.tensor(ups), torch.nn.functional.logsigmoid(logits), torch.nn.functional.logsigmoid(-logits)
    )
    returns = torch.tensor(policy.discounted(rewards), dtype=torch.float64)
    ((returns - returns.mean()) / returns.std(correction=0) * chosen).sum().backward()
    for name, value in weights.items():
        assert ours[name] == pytest.approx(value.grad.numpy(), abs=1e-4), name


def test_preprocessing_keeps_paddles_and_ball(policy: Any) -> None:
    frame = np.full((210, 160, 3), 144, np.uint8)
    frame[:35], frame[195:] = 236, 236  # the score and the lower edge
    frame[100:104, 80:82] = 236  # the ball
    seen = policy.preprocess(frame).reshape(80, 80)
    assert seen.sum() == 2
    assert seen[33:35, 40].tolist() == [1.0, 1.0]
