"""Nevergrad as a searcher: what it takes to plug any search tool into Outplay's studies.

>>> tune.run(train, config={"lr": tune.loguniform(1e-5, 1e-1)}, num_samples=100, metric="loss", mode="min",
...          search_alg=NevergradSearch(budget=100))
"""

import math

import nevergrad as ng
import numpy as np

from outplay.errors import ConfigError
from outplay.tune.domains import Categorical, Domain, Float, Normal
from outplay.tune.objective import Objective
from outplay.tune.search import Searcher
from outplay.tune.spaces import Space, Values
from outplay.tune.trial import Metrics


def parameter(name: str, domain: Domain) -> ng.p.Parameter:
    """A variable as Nevergrad describes it: choices by their index, multiples of q by their factor."""
    if isinstance(domain, Categorical):
        if any(isinstance(value, dict) and Space(value).names for value in domain.values):
            raise ConfigError(f"{name}: NevergradSearch does not support variables within the values of choice")
        return ng.p.Choice(range(len(domain.values)))
    if isinstance(domain, Normal):
        return ng.p.Scalar(init=domain.mean).set_mutation(sigma=domain.sd)
    low, high, q = domain.low, domain.high if isinstance(domain, Float) else domain.last, domain.q
    low, high = (low, high) if q is None else (math.ceil(low / q), math.floor(high / q))
    scalar = ng.p.Log(lower=low, upper=high) if domain.log else ng.p.Scalar(lower=low, upper=high)
    return scalar if q is None else scalar.set_integer_casting()


class NevergradSearch(Searcher):
    """Suggestions of an optimizer of Nevergrad. They follow from the seed and the calls: nothing needs to be saved."""

    def __init__(self, optimizer: str = "TwoPointsDE", budget: int = 100, num_workers: int = 1) -> None:
        self.make = ng.optimizers.registry[optimizer]
        self.budget, self.num_workers = budget, num_workers

    def setup(self, space: Space, objective: Objective, seed: int) -> None:
        super().setup(space, objective, seed)
        parameters = ng.p.Dict(**{name: parameter(name, domain) for name, domain in space.domains.items()})
        parameters.random_state = np.random.RandomState(seed)
        self.optimizer = self.make(parametrization=parameters, budget=self.budget, num_workers=self.num_workers)
        self.asked: dict[str, ng.p.Parameter] = {}

    def suggest(self, trial_id: str) -> Values:
        found = self.asked[trial_id] = self.optimizer.ask()
        return {name: self.value(domain, found.value[name]) for name, domain in self.space.domains.items()}

    def value(self, domain: Domain, number: float) -> object:
        if isinstance(domain, Categorical):
            return domain.values[number]
        return number if domain.q is None else type(domain.q)(round(number * domain.q, 12))

    def on_complete(self, trial_id: str, result: Metrics | None, error: bool = False) -> None:
        candidate, score = self.asked.pop(trial_id), self.objective.score(result or {})
        if not error and not math.isnan(score):
            self.optimizer.tell(candidate, -score)  # it minimises
