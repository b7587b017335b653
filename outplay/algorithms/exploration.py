"""Exploration by Q-values: the settings that DQN and PQN share."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from outplay.groups import ExplorationConfig
from outplay.settings import Fraction, NotNegative, Positive, Schedule, at


class QExplorationConfig(ExplorationConfig):
    """Exploration by Q-values."""

    # The types that have ε settings. A subclass may add types.
    with_epsilon: ClassVar[tuple[str, ...]] = ("EpsilonGreedy",)

    type: Literal["EpsilonGreedy", "SoftQ", "Random"] = Field(  # type: ignore[assignment]
        "EpsilonGreedy",
        description="EpsilonGreedy: a random action with probability ε. SoftQ: an action with probability ∝ "
        "exp(Q/temperature). Random: all actions are random.",
    )
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(1.0, description="SoftQ: temperature.")
    temperature_schedule: Schedule | None = Field(
        None, description="SoftQ: temperature as [[step, value], …], linearly interpolated; replaces temperature."
    )
    initial_epsilon: Fraction = Field(1.0, description="Initial ε.")
    final_epsilon: Fraction = Field(0.05, description="Final ε.")
    epsilon_timesteps: Positive = Field(
        10_000, description="Environment steps over which ε is annealed linearly from initial to final."
    )
    epsilon_schedule: Schedule | None = Field(
        None,
        description="ε as [[step, value], …], linearly interpolated; replaces initial_epsilon, final_epsilon and "
        "epsilon_timesteps.",
    )
    epsilon_spread: NotNegative = Field(
        0.0, description="Per-environment ε: environment i of N uses ε^(1 + spread · i/(N − 1)); 0: the same for all."
    )

    @model_validator(mode="after")
    def _check_temperature(self) -> Self:
        if self.temperature_schedule and min(value for _, value in self.temperature_schedule) <= 0:
            raise ValueError("temperature_schedule: all temperatures must be greater than 0")
        return self

    @model_validator(mode="after")
    def _check_type(self) -> Self:
        for name, kinds in self.only_for().items():
            if self.type not in kinds and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"exploration_config.{name} is for type {' or '.join(kinds)}, and the type is {self.type}; leave "
                    f"{name} out (exploration_config={{type: {self.type}}} replaces the whole group), or set the type "
                    f"to {kinds[0]}"
                )
        return self

    @classmethod
    def only_for(cls) -> dict[str, tuple[str, ...]]:
        """Settings that only some types have, and those types."""
        epsilon = [name for name in cls.model_fields if "epsilon" in name]
        temperature = [name for name in cls.model_fields if "temperature" in name]
        return {**dict.fromkeys(temperature, ("SoftQ",)), **dict.fromkeys(epsilon, cls.with_epsilon)}

    def values(self, timesteps: int) -> dict[str, float]:
        """The exploration values of the policy at a step."""
        if self.type == "SoftQ":
            return {"temperature": at(self.temperature_schedule, self.temperature, timesteps)}
        if self.type == "Random":
            return {"epsilon": 1.0}
        points = [(0.0, self.initial_epsilon), (float(self.epsilon_timesteps), self.final_epsilon)]
        return {"epsilon": at(self.epsilon_schedule or points, 0.0, timesteps)}
