"""MARWIL: monotonic advantage re-weighted imitation learning (Wang et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from outplay.algorithms.algorithm import Algorithm
from outplay.cudagraphs import Minibatch
from outplay.data import Dataset, transitions
from outplay.data.checking import check_finite
from outplay.data.columns import Rows
from outplay.errors import ConfigError
from outplay.learning import returns
from outplay.learning.learner import Segments
from outplay.learning.offline import OfflineConfig, OfflineLearner
from outplay.learning.offlinelosses import exponential_weights
from outplay.policies import masked
from outplay.settings import Fraction, NotNegative

_LARGEST_WEIGHT = 20.0
_VALUE_ROWS = 4096  # final observations whose values are computed together


class MARWILConfig(OfflineConfig):
    """Settings of MARWIL."""

    beta: NotNegative = Field(
        1.0, description="Scaling β of advantages in the weights exp(β·A/c); 0 is behaviour cloning."
    )
    vf_coeff: NotNegative = Field(1.0, description="Coefficient of the value loss.")
    moving_average_sqd_adv_norm_start: Annotated[float, Field(gt=0)] = Field(
        100.0, description="Initial value of c², the moving average of squared advantages that they are divided by."
    )
    moving_average_sqd_adv_norm_update_rate: Fraction = Field(
        0.01, description="Update rate of the moving average per update."
    )


@dataclass
class WeightedBatch(Minibatch):
    """Rows on the learner's device."""

    observations: tuple[Tensor, ...]
    actions: Tensor
    returns: Tensor
    mask: Tensor | None = None


class MARWILLearner(OfflineLearner[MARWILConfig]):
    """Behaviour cloning, weighted by exp(β·A/c); A = G − V(s) with returns G of the data.

    Where an episode was truncated, or the data ends, the value of the last observation follows the rewards.
    """

    needs = (
        transitions.ACTION,
        transitions.REWARD,
        transitions.TERMINATED,
        transitions.EPISODE,
        transitions.STEP,
        transitions.NEXT_OBSERVATION,
    )
    network: Any

    @classmethod
    def check_settings(cls, config: MARWILConfig) -> None:
        if config.cut_returns_at_rewards:
            raise ConfigError(
                "cut_returns_at_rewards: MARWIL does not support it, since its returns are those of whole episodes; "
                "remove it, or use IQL or CQL"
            )

    def _finite_columns(self) -> list[str]:
        """Rewards and final observations are checked when returns are computed."""
        none = self.policy.spec.preprocessor is not None
        return [] if none else transitions.leaf_columns(self.policy.leaves)

    def make_networks(self) -> None:
        self.norm = torch.tensor(self.config.moving_average_sqd_adv_norm_start)  # c²
        self.final_observations: list[tuple[Tensor, ...]] = []  # of episodes that did not terminate
        self.final_values = np.zeros(0, np.float32)

    def prepared(self, dataset: Dataset) -> Dataset:
        """Add the returns. They and the numbers that they follow from are in memory; observations stay on disk."""
        scalars = dataset.select(
            [name for name in self.needs if name not in (transitions.NEXT_OBSERVATION, transitions.ACTION)]
        )
        rows = scalars.to_arrays()
        check_finite(rows, [transitions.REWARD], self.where)
        episodes, steps = rows[transitions.EPISODE], rows[transitions.STEP]
        transitions.check_steps(episodes, steps, self.where)
        rewards = rows[transitions.REWARD].astype(np.float32) * np.float32(self.config.reward_scale)
        if (limit := self.config.clip_rewards) is not None:
            rewards = rewards.clip(-limit, limit)
        found, discounts, last = returns.episode_returns(
            rewards, episodes, steps, rows[transitions.TERMINATED].astype(bool, copy=False), self.config.gamma
        )
        finals = np.unique(last[discounts > 0])
        self._read_finals(dataset, finals)
        places = np.searchsorted(finals, last).clip(max=max(0, len(finals) - 1))
        return dataset.with_columns(
            {
                "return": found.astype(np.float32),
                "return_discount": discounts.astype(np.float32),
                "return_final": places,
            }
        )

    def _read_finals(self, dataset: Dataset, finals: np.ndarray) -> None:
        """Keep the observations after these rows."""
        names = transitions.leaf_columns(self.policy.leaves, transitions.NEXT_OBSERVATION)
        first, self.final_observations = 0, []
        for block in dataset.select(names).blocks():
            rows = len(block[names[0]])
            if len(own := finals[(finals >= first) & (finals < first + rows)] - first):
                chosen = {name: array[own] for name, array in block.items()}
                if self.policy.spec.preprocessor is None:
                    check_finite(chosen, names, self.where)
                self.final_observations.append(self.observations(chosen, transitions.NEXT_OBSERVATION))
            first += rows

    @torch.no_grad()
    def start_updates(self) -> None:
        """The values of final observations, by the present network."""
        values = [
            self.network.value(tuple(leaf[start : start + _VALUE_ROWS] for leaf in part)).cpu().numpy()
            for part in self.final_observations
            for start in range(0, len(part[0]), _VALUE_ROWS)
        ]
        self.final_values = np.concatenate(values) if values else np.zeros(1, np.float32)

    def to_device(self, rows: Rows) -> Any:
        following = rows["return_discount"] * self.final_values[rows["return_final"]]
        mask = self.tensor(rows[transitions.MASK]) if self.policy.spec.with_masks else None
        observations = self.observations(rows, transitions.OBSERVATION)
        return WeightedBatch(
            observations, self.actions(rows[transitions.ACTION]), self.tensor(rows["return"] + following), mask
        )

    def step(self, batch: WeightedBatch, lr: float) -> tuple[Tensor, dict[str, Tensor]]:
        config, distribution = self.config, self.distribution
        params, values = self.network.both(batch.observations)
        params = self.floored(masked(params, batch.mask))
        advantages = batch.returns - self.network.denormalised(values)
        squared = advantages.square().mean()
        rate = config.moving_average_sqd_adv_norm_update_rate
        self.norm = self.norm + rate * (self.mean_of_parts(squared.detach()).cpu() - self.norm)
        weights = exponential_weights(advantages / float(self.norm.sqrt() + 1e-8), config.beta, _LARGEST_WEIGHT)
        log_prob = distribution.log_prob(params, batch.actions)  # type: ignore[attr-defined]
        policy_loss = -(weights * log_prob).mean()
        loss = policy_loss + config.vf_coeff * 0.5 * squared
        norm = self.optimizer.step(loss, lr, config.grad_clip)
        metrics = {"policy_loss": policy_loss.detach(), "vf_loss": squared.detach(), "weight_mean": weights.mean()}
        return norm, {**metrics, "advantage_norm": self.norm.sqrt()}

    def values_of(self, observations: tuple[np.ndarray, ...]) -> np.ndarray:
        """V(s) of observations."""
        with torch.no_grad():
            found: np.ndarray = self.network.value(self.tensors(observations)).cpu().numpy()
        return found

    def fixed_tensors(self) -> dict[str, Tensor]:
        return {**super().fixed_tensors(), "advantage_norm": self.norm.clone()}

    def load(self, state: dict[str, Any], tensors: dict[str, Tensor], segments: Segments) -> bool:
        self.norm = tensors["advantage_norm"].clone()
        return super().load(state, tensors, segments)


class MARWIL(Algorithm[MARWILConfig]):
    """Advantage-weighted imitation of recorded data.

    >>> with MARWIL(env="CartPole-v1", config={"input": "recorded/", "beta": 1.0}) as trainer:
    ...     result = trainer.train()
    """

    Config = MARWILConfig
    Learner = MARWILLearner

    learner: MARWILLearner
