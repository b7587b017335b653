"""What tune.py searches: a grid, test functions of optimisation, and synthetic learning curves.

All of it is a deterministic function of its arguments, so all libraries get the same problems. Standard library only:
the libraries run in environments of their own.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# A grid of 25 points, as the example of Ray Tune in many tutorials has it.

GRID = [-1, -0.5, 0, 0.5, 1]


def grid_score(x: float, y: float) -> float:
    return math.sqrt((x**2 + y**2) / 2)


# Test functions, to be minimised: https://www.sfu.ca/~ssurjano/optimization.html


@dataclass(frozen=True)
class Function:
    value: Callable[[Sequence[float]], float]
    bounds: list[tuple[float, float]]
    minimum: float

    @property
    def names(self) -> list[str]:
        return [f"x{i}" for i in range(len(self.bounds))]


def sphere(x: Sequence[float]) -> float:
    return sum(v * v for v in x)


def branin(x: Sequence[float]) -> float:
    a, b = x
    parabola = b - 5.1 * a * a / (4 * math.pi**2) + 5 * a / math.pi - 6
    return parabola**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(a) + 10


def rosenbrock(x: Sequence[float]) -> float:
    return sum(100 * (b - a * a) ** 2 + (1 - a) ** 2 for a, b in itertools.pairwise(x))


def ackley(x: Sequence[float]) -> float:
    root = math.sqrt(sum(v * v for v in x) / len(x))
    cosines = sum(math.cos(2 * math.pi * v) for v in x) / len(x)
    return -20 * math.exp(-0.2 * root) - math.exp(cosines) + 20 + math.e


_ALPHA = [1.0, 1.2, 3.0, 3.2]
_A = [
    [10, 3, 17, 3.5, 1.7, 8],
    [0.05, 10, 17, 0.1, 8, 14],
    [3, 3.5, 1.7, 10, 17, 8],
    [17, 8, 0.05, 10, 0.1, 14],
]
_P = [
    [0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886],
    [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
    [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650],
    [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381],
]


def hartmann6(x: Sequence[float]) -> float:
    total = 0.0
    for alpha, a, p in zip(_ALPHA, _A, _P, strict=True):
        total += alpha * math.exp(-sum(w * (v - c) ** 2 for w, v, c in zip(a, x, p, strict=True)))
    return -total


FUNCTIONS = {
    "sphere": Function(sphere, [(-5, 5)] * 4, 0.0),
    "branin": Function(branin, [(-5, 10), (0, 15)], 0.397887),
    "rosenbrock": Function(rosenbrock, [(-5, 10)] * 4, 0.0),
    "hartmann6": Function(hartmann6, [(0, 1)] * 6, -3.32237),
    "ackley": Function(ackley, [(-32.768, 32.768)] * 4, 0.0),
}


# Learning curves for ASHA and HyperBand. A high learning rate learns fast, up to a lower score: curves cross.

CURVES, MAX_T = 50, 27
_NOISE = 0.02


@dataclass(frozen=True)
class Curve:
    """The scores of one configuration, by iteration."""

    seed: int
    index: int
    final: float
    tau: float  # iterations until 63 % of the final score

    @classmethod
    def of(cls, seed: int, index: int) -> Curve:
        rng = random.Random(f"{seed}/{index}")
        log_lr, width = rng.uniform(-4, 0), rng.random()
        final = 1 - 0.1 * (log_lr + 2.5) ** 2 - 0.4 * (width - 0.6) ** 2
        return cls(seed, index, final, 6 * 10 ** (-0.3 * (log_lr + 2.5)))

    def mean(self, iteration: int) -> float:
        return self.final * (1 - math.exp(-iteration / self.tau))

    def score(self, iteration: int) -> float:
        """What a trial reports: with noise, the same one each time."""
        return self.mean(iteration) + random.Random(f"{self.seed}/{self.index}/{iteration}").gauss(0, _NOISE)


def curve_regret(seed: int, chosen: int) -> float:
    """How much worse the chosen curve ends than the best of all."""
    finals = [Curve.of(seed, index).mean(MAX_T) for index in range(CURVES)]
    return max(finals) - finals[chosen]


# A schedule for population-based training: the best learning rate falls while the score rises.

POPULATION, PBT_T, INTERVAL = 8, 40, 4
LR = (1e-4, 1.0)
_SPEED = 0.1


def progress(score: float, lr: float) -> float:
    """The score after one more iteration with this learning rate; it tends to 1."""
    distance = math.log10(lr) - (-0.5 - 3 * score)
    return score + _SPEED * math.exp(-2 * distance**2) * (1 - score)


def population_rates(seed: int) -> list[float]:
    rng = random.Random(f"population {seed}")
    return [10 ** rng.uniform(math.log10(LR[0]), math.log10(LR[1])) for _ in range(POPULATION)]


def pbt_regret(score: float) -> float:
    """How much less than with the best learning rate in each iteration."""
    return 1 - (1 - _SPEED) ** PBT_T - score
