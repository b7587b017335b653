"""Fitted Q evaluation (Le et al. 2019): Q learns from r + γ Q̄(s', π(s')), until its mean at first steps has settled."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from outplay.data import Dataset, transitions
from outplay.data.checking import check_columns
from outplay.data.columns import Rows, concatenated, count, take
from outplay.errors import DataError
from outplay.groups import OptimizerConfig
from outplay.learning.offline import DataStream
from outplay.learning.optimizers import Optimizer, ParameterGroup
from outplay.learning.targets import TargetNetwork
from outplay.metrics import RunningMoments
from outplay.policies import is_normalisable
from outplay.policies.critics import CriticOptions, Critics
from outplay.policies.flat import flatten
from outplay.streams import seed_for, stream

if TYPE_CHECKING:
    from outplay.algorithms.estimating import Acting

Array = np.ndarray
log = logging.getLogger("outplay")

UPDATES = 20_000  # at most, unless the caller says how many
_BATCH, _LR = 256, 1e-3
# The error of a constant shrinks by 1 − τ(1 − γ) per update: τ = 0.01 and γ = 0.99 would need 10,000 updates for 63%.
_TAU = 0.1
_LEAST_WINDOW = 500  # updates: what the network needs to fit one target
_CHECKS = 10  # estimates per window
_TOLERANCE = 0.02  # relative
_MOST_STARTS = 10_000  # first steps that an estimate is the mean of
_NORMALISER_ROWS = 10_000


@dataclass(frozen=True)
class _Scan:
    """What is known of the data before the first update."""

    starts: Rows  # first steps of episodes
    lowest: float  # reward, or 0
    highest: float
    mean: float
    rms: float
    ended: float  # share of rows that are the last of their episode (terminated)

    def mean_discount(self, gamma: float) -> float:
        return gamma * (1 - self.ended)

    def value_bounds(self, gamma: float) -> tuple[float, float]:
        """No discounted return is outside of them."""
        if gamma >= 1:
            return -np.inf, np.inf
        return self.lowest / (1 - gamma), self.highest / (1 - gamma)

    def value_of_all(self, gamma: float) -> float:
        """V = E[r] + E[γ(1 − terminated)] V: the value if all states had the same one."""
        lost = 1 - self.mean_discount(gamma)
        return self.mean / lost if lost > 0 else 0.0

    def horizon(self, gamma: float) -> float:
        """Steps that matter for a return: 1/(1 − γ), or 3 times the mean length of an episode if that is less."""
        lost = max((1 - self.mean_discount(gamma)) / 3, 1 - gamma)
        return 1 / max(lost, 1e-6)


class Starts:
    """Evenly spaced ones of the first steps of episodes, at most `most`: however many there are, they fit into memory.

    >>> starts = Starts(most=2)
    >>> for step in range(5):
    ...     starts.add({"x": np.array([step])})
    >>> starts.rows["x"].tolist()
    [0, 4]
    """

    def __init__(self, most: int = _MOST_STARTS) -> None:
        self.rows: Rows | None = None
        self._most, self._stride, self._seen = most, 1, 0

    def add(self, rows: Rows) -> None:
        chosen = take(rows, slice(-self._seen % self._stride, None, self._stride))
        self._seen += count(rows)
        self.rows = chosen if self.rows is None else concatenated([self.rows, chosen])
        while count(self.rows) > self._most:
            self.rows, self._stride = take(self.rows, slice(None, None, 2)), 2 * self._stride


@dataclass
class Settling:
    """Decides whether a sequence of estimates has settled: the means of both halves of the last window are equal.

    A window is as long as it takes an error to shrink to 37%, so slow progress is not mistaken for the end of it. The
    first window does not count: a reward at the end of an episode takes that long to reach its start.
    """

    length: int  # estimates per window
    tolerance: float = _TOLERANCE
    estimates: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        """Of the last half of the window."""
        return float(np.mean(self.estimates[-max(1, self.length // 2) :]))

    def is_settled(self, scale: float) -> bool:
        """`scale`: what a difference is compared with, unless the estimate is larger."""
        if len(self.estimates) < 2 * self.length:
            return False
        window = self.estimates[-self.length :]
        half = self.length // 2
        change = abs(float(np.mean(window[-half:])) - float(np.mean(window[:half])))
        return change <= self.tolerance * max(abs(self.mean), scale)


def fitted_q(dataset: Dataset, acting: Acting, gamma: float, updates: int, seed: int) -> dict[str, float]:
    """The mean of Q(s, π(s)) at the first steps of episodes, after `updates` gradient steps at most.

    `converged` says whether the estimate had settled by then.
    """
    policy = acting.policy
    needed = [transitions.ACTION, transitions.REWARD, transitions.TERMINATED, transitions.STEP]
    masks = [transitions.MASK, transitions.NEXT_MASK] if policy.spec.with_masks else []
    names = [*needed, transitions.NEXT_OBSERVATION, *masks]
    check_columns(dataset.columns, policy.leaves, policy.action_space, names, acting.where)
    data = DataStream(dataset, _BATCH, seed)
    scan = _scanned(data.dataset, acting)
    evaluation = _Evaluation(acting, gamma, seed, scan, _moments(data, acting))
    window = max(_LEAST_WINDOW, round(scan.horizon(gamma) / _TAU))
    settling = Settling(_CHECKS)
    every = window // _CHECKS
    is_settled, number = False, 0
    while number < updates and not is_settled:
        loss = evaluation.update(data.batch(number), number)
        number += 1
        if number % every == 0 or number == updates:
            values = evaluation.values_at(scan.starts, number)
            settling.estimates.append(float(values.mean()))
            is_settled = settling.is_settled(max(float(values.std()), scan.rms))
    if not is_settled:
        log.warning(
            "fitted Q evaluation has not converged after %s updates: the estimate %.4g still changes; give more "
            "(fqe_updates, --fqe-updates)", f"{number:,}", settling.mean,
        )  # fmt: skip
    return {"return_mean": settling.mean, "loss": float(loss), "updates": number, "converged": is_settled}


class _Evaluation:
    """The Q-function of a policy, and what trains it."""

    def __init__(
        self, acting: Acting, gamma: float, seed: int, scan: _Scan, moments: dict[int, RunningMoments]
    ) -> None:
        policy = acting.policy
        self._acting, self._gamma, self._seed = acting, gamma, seed
        self._bounds = scan.value_bounds(gamma)
        inputs = 0 if acting.is_discrete else int(np.prod(policy.distribution.shape))
        outputs = policy.distribution.num_params if acting.is_discrete else 1
        generator = torch.Generator().manual_seed(seed_for(seed, "fitted q"))
        self._critic = Critics(policy.leaves, policy.spec.model, CriticOptions(1), inputs, outputs, generator)
        flat = flatten(self._critic, policy.device)
        with torch.no_grad():
            self._critic.head_layer.bias.fill_(scan.value_of_all(gamma))
            _normalise(self._critic, moments)
        self._target = TargetNetwork(self._critic, flat)
        group = ParameterGroup("critic", list(self._critic.parameters()), flat, OptimizerConfig())
        self._optimizer = Optimizer([group])

    def update(self, rows: Rows, number: int) -> Tensor:
        """One gradient step: the loss."""
        goal = self._goal(rows, number)
        loss = (goal - self._taken(rows)).square().mean()
        self._optimizer.step(loss, _LR)
        self._target.update(_TAU)
        return loss.detach()

    @torch.no_grad()
    def values_at(self, rows: Rows, number: int) -> Array:
        """The value of the policy at observations, (B,)."""
        found: Array = self._values(self._critic, rows, number, False).double().cpu().numpy()
        return found

    @torch.no_grad()
    def _goal(self, rows: Rows, number: int) -> Tensor:
        after = self._values(self._target.network, rows, number, True)
        discounts = torch.from_numpy(np.where(rows[transitions.TERMINATED], 0.0, self._gamma).astype(np.float32))
        rewards = torch.from_numpy(rows[transitions.REWARD].astype(np.float32))
        # Where the data has no action of the policy, errors of Q̄ feed on themselves; the bounds end that.
        return (rewards.to(after.device) + discounts.to(after.device) * after).clamp(*self._bounds)

    def _values(self, network: Critics, rows: Rows, number: int, after: bool) -> Tensor:
        acting = self._acting
        params = acting.params(rows, after)
        seen = acting.observations(rows, transitions.NEXT_OBSERVATION if after else transitions.OBSERVATION)
        if acting.is_discrete:
            quality: Tensor = network(seen)[0]
            return (quality * acting.probabilities(params)).sum(-1)
        found: Tensor = network(seen, acting.actions(params, stream(self._seed, "fitted q", number)))[0, :, 0]
        return found

    def _taken(self, rows: Rows) -> Tensor:
        """Q(s, a) of the recorded actions, (B,)."""
        seen = self._acting.observations(rows, transitions.OBSERVATION)
        in_policy = np.array(self._acting.policy.from_env(rows[transitions.ACTION]))
        actions = torch.from_numpy(in_policy).to(seen[0].device)
        found: Tensor = self._critic(seen, None if self._acting.is_discrete else actions.float())[0]
        if self._acting.is_discrete:
            return found.gather(-1, actions.long()[:, None]).squeeze(-1)
        return found[:, 0]


def _normalise(critic: Critics, moments: dict[int, RunningMoments]) -> None:
    critic.normalises = True
    for leaf, found in moments.items():
        variance = found.variance.mean() if critic.leaves[leaf].is_image else found.variance
        getattr(critic, f"observation_mean_{leaf}").copy_(torch.from_numpy(found.mean))
        getattr(critic, f"observation_scale_{leaf}").copy_(torch.as_tensor(1.0 / np.sqrt(variance + 1e-8)))


def _moments(data: DataStream, acting: Acting) -> dict[int, RunningMoments]:
    """Of the observations of the first minibatches, by leaf."""
    leaves = acting.policy.leaves
    moments = {i: RunningMoments(leaf.shape) for i, leaf in enumerate(leaves) if is_normalisable(leaf)}
    columns = transitions.leaf_columns(leaves)
    for number in range(min(data.per_epoch, -(-_NORMALISER_ROWS // data.batch_size))):
        rows = data.batch(number)
        for i, found in moments.items():
            found.update(rows[columns[i]])
    return moments


def _scanned(dataset: Dataset, acting: Acting) -> _Scan:
    """Read and check all rows."""
    starts = Starts()
    number = ended = 0
    total = squares = lowest = highest = 0.0
    for rows in dataset.blocks():
        acting.check(rows, [transitions.REWARD, transitions.NEXT_OBSERVATION])
        rewards = rows[transitions.REWARD].astype(np.float64)
        if not len(rewards):
            continue
        lowest, highest = min(lowest, float(rewards.min())), max(highest, float(rewards.max()))
        total, squares = total + float(rewards.sum()), squares + float(np.square(rewards).sum())
        number, ended = number + len(rewards), ended + int(np.count_nonzero(rows[transitions.TERMINATED]))
        if (chosen := rows[transitions.STEP] == 0).any():
            starts.add(take(rows, chosen))
    if starts.rows is None:
        raise DataError("the data set has no first step of an episode (step 0), where fqe estimates the return")
    return _Scan(starts.rows, lowest, highest, total / number, (squares / number) ** 0.5, ended / number)
