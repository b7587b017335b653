"""The policy that the three Pong programs share: preprocessing, network, gradient of a game, RMSProp. numpy alone.

The network sees the difference of two frames of 80 × 80 pixels, has 200 hidden units, and says with which probability
to move up. It is Andrej Karpathy's "Pong from Pixels" (2016), written for this place.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import cache
from typing import Any

import gymnasium
import numpy as np

PIXELS, HIDDEN = 80 * 80, 200
GAMMA, DECAY, RATE = 0.99, 0.99, 1e-4
UP, DOWN = 2, 3
BACKGROUNDS = (144, 109)  # the two colours of the field, in the red channel

Model = dict[str, np.ndarray]


def options(description: str | None) -> argparse.ArgumentParser:
    """The options of the three programs."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["inline", "process", "ray"], default="process")
    parser.add_argument("--address", help='of a Ray cluster: "auto" or "host:port"')
    parser.add_argument("--batch-size", type=int, default=10, help="games per update")
    parser.add_argument("--batches", type=int, default=1_000_000, help="updates")
    return parser


def make_env() -> Any:
    """One game of Pong: every fourth frame, no action repeated by chance."""
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # without its greeting
    gymnasium.register_envs(ale_py)
    return gymnasium.make("ALE/Pong-v5", frameskip=4, repeat_action_probability=0.0)


cached_env = cache(make_env)  # for workers that play many games: making the emulator takes longer than a reset


def new_model(seed: int = 0) -> Model:
    rng = np.random.default_rng(seed)
    return {
        "W1": (rng.normal(size=(PIXELS, HIDDEN)) / np.sqrt(PIXELS)).astype(np.float32),
        "W2": (rng.normal(size=HIDDEN) / np.sqrt(HIDDEN)).astype(np.float32),
    }


def preprocess(frame: np.ndarray) -> np.ndarray:
    """The field without its frame, every second pixel: 1 for paddles and ball, 0 for the rest."""
    field = frame[35:195:2, ::2, 0]
    return np.where(np.isin(field, (0, *BACKGROUNDS)), np.float32(0), np.float32(1)).ravel()


def forward(model: Model, pixels: np.ndarray) -> tuple[float, np.ndarray]:
    """The probability of moving up, and the hidden units."""
    (set_pixels,) = np.nonzero(pixels)  # a few dozen of 6400: the others add nothing
    hidden = np.maximum(pixels[set_pixels] @ model["W1"][set_pixels], 0)
    return float(1 / (1 + np.exp(-(hidden @ model["W2"])))), hidden


def discounted(rewards: np.ndarray) -> np.ndarray:
    """What each step led to. A point ends a rally, so the sum starts anew there."""
    returns, running = np.zeros_like(rewards), 0.0
    for t in reversed(range(len(rewards))):
        running = rewards[t] + (0.0 if rewards[t] else GAMMA * running)
        returns[t] = running
    return returns


def gradient_of(model: Model, pixels: np.ndarray, hidden: np.ndarray, error: np.ndarray, rewards: np.ndarray) -> Model:
    """The direction that makes what paid off more likely; `error` is, for each step, (moved up) − (its probability)."""
    returns = discounted(rewards)
    error = error * (returns - returns.mean()) / returns.std()
    back = np.outer(error, model["W2"]) * (hidden > 0)
    return {"W1": pixels.T @ back, "W2": hidden.T @ error}


def compute_gradient(env: Any, model: Model, seed: int) -> tuple[Model, float]:
    """Play one game to its end; its gradient, and the points won minus those lost."""
    rng = np.random.default_rng(seed)
    frame, _ = env.reset()  # without a seed: the game draws no lots, and seeding would load it anew, which takes long
    before, over = np.zeros(PIXELS, np.float32), False
    steps: list[tuple[np.ndarray, np.ndarray, float, float]] = []
    while not over:
        now = preprocess(frame)
        seen = now - before if steps else np.zeros_like(now)
        before = now
        chance, hidden = forward(model, seen)
        up = rng.random() < chance
        frame, reward, terminated, truncated, _ = env.step(UP if up else DOWN)
        over = terminated or truncated
        steps.append((seen, hidden, float(up) - chance, float(reward)))
    pixels, hiddens, errors, rewards = (np.array(column, np.float32) for column in zip(*steps, strict=True))
    return gradient_of(model, pixels, hiddens, errors, rewards), float(rewards.sum())


def train(model: Model, batches: int, play: Callable[[Model, int], list[tuple[Model, float]]]) -> Model:
    """Let `play(model, batch)` give gradients and rewards of a batch of games, add them up, update; a line per game."""
    squares = {name: np.zeros_like(value) for name, value in model.items()}
    running: float | None = None
    for batch in range(1, batches + 1):
        games = play(model, batch)
        for _, reward in games:
            running = reward if running is None else 0.99 * running + 0.01 * reward
            print(f"batch {batch}, reward {reward:g}, running mean {running:.2f}", flush=True)
        updated = {}
        for name, value in model.items():
            total = sum(gradient[name] for gradient, _ in games)
            squares[name] = DECAY * squares[name] + (1 - DECAY) * total**2
            updated[name] = value + RATE * total / (np.sqrt(squares[name]) + 1e-5)
        model = updated
    return model
