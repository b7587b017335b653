"""Replays what population-based training has found: the values of a trial and of all trials that it descends from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from outplay.errors import ConfigError
from outplay.tune.domains import Categorical
from outplay.tune.schedulers.base import CONTINUE, Clone, Decisions, Scheduler
from outplay.tune.schedulers.mutation import with_variables
from outplay.tune.spaces import Values
from outplay.tune.trial import Metrics, Trial

Step = tuple[int, Values]  # from this iteration on, these values


class PopulationBasedTrainingReplay(Scheduler):
    """Trains one trial, whose values change at given iterations.

    >>> tune.run(train, config={"lr": 0.1}, stop={"training_iteration": 100},
    ...          scheduler=PopulationBasedTrainingReplay([(0, {"lr": 0.1}), (10, {"lr": 0.12}), (30, {"lr": 0.096})]))

    The population's best trial is a copy of a copy of … another trial. `of_study` finds the values that led to it:

    >>> PopulationBasedTrainingReplay.of_study("~/outplay_results/my_population")  # its best trial

    At each step the trial loads its own checkpoint, as the trials of the population did. So the same values give the
    same weights, if the training itself is reproducible.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        """`steps`: (iteration, values), in the order of the iterations. Values of iteration 0 are the initial ones."""
        self.steps = [(int(iteration), dict(values)) for iteration, values in steps]
        if not self.steps:
            raise ConfigError("PopulationBasedTrainingReplay needs at least one step (iteration, values)")
        for (earlier, _), (later, _) in pairwise(self.steps):
            if earlier >= later:
                raise ConfigError(f"PopulationBasedTrainingReplay: step {later} must come before step {earlier}")
        self._trial_id: str | None = None
        self._done = 1 if self.steps[0][0] <= 0 else 0

    @classmethod
    def of_trial(cls, trials: Iterable[Trial], trial_id: str) -> PopulationBasedTrainingReplay:
        """Replay a trial of a finished study. `trials`: all of the study."""
        return cls(lineage({trial.id: trial for trial in trials}, trial_id))

    @classmethod
    def of_study(cls, path: str | Path, trial_id: str | None = None) -> PopulationBasedTrainingReplay:
        """Replay a trial of the study in this folder; by default the best one."""
        from outplay.tune.analysis import ExperimentAnalysis  # which needs schedulers itself

        analysis = ExperimentAnalysis(path)
        if trial_id is None:
            if (best := analysis.best_trial) is None:
                raise ConfigError(f"the study {path} has no result")
            trial_id = best.id
        return cls.of_trial(analysis.trials, trial_id)

    @property
    def needs_checkpoints(self) -> bool:
        return True

    def wants_checkpoint(self, trial: Trial, result: Metrics) -> bool:
        return self._due(result) > self._done

    def prepare(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        names = dict.fromkeys(name for _, values in self.steps for name in values)
        first = self.steps[0][1]
        return with_variables(config, {name: Categorical((first.get(name),)) for name in names})

    def suggested(self, values: Values) -> Values:
        return {**values, **self.steps[0][1]} if self.steps[0][0] <= 0 else values

    def on_add(self, trial: Trial) -> None:
        if self._trial_id is not None:
            raise ConfigError("PopulationBasedTrainingReplay trains one trial: set num_samples=1, and no grid_search")
        self._trial_id, self._values = trial.id, dict(trial.values)

    def on_result(self, trial: Trial, result: Metrics) -> Decisions:
        due = self._due(result)
        if due <= self._done:
            return {trial.id: CONTINUE}
        if not trial.checkpoints or trial.checkpoint_iteration < trial.iteration:
            raise ConfigError(
                f"PopulationBasedTrainingReplay: the values change at iteration {trial.iteration}, but the trial has "
                f"no checkpoint of it; functions save one with tune.report(…, checkpoint=…)"
            )
        for _, values in self.steps[self._done : due]:
            self._values = {**self._values, **values}
        self._done = due
        return {trial.id: Clone(trial.id, dict(self._values))}

    def _due(self, result: Metrics) -> int:
        """How many steps have been reached."""
        return sum(iteration <= int(result["training_iteration"]) for iteration, _ in self.steps)

    def status(self) -> dict[str, Any]:
        return {"steps": f"{self._done} of {len(self.steps)}"}


def lineage(trials: Mapping[str, Trial], trial_id: str) -> list[Step]:
    """All values that led to a trial's weights, from the trial that began the chain to the last copy.

    >>> lineage(trials, "00000")  # a copy of 00001 at iteration 10, which was a copy of 00002 at 5
    [(0, {'lr': 0.1}), (5, {'lr': 0.12}), (10, {'lr': 0.096})]
    """
    if trial_id not in trials:
        known = list(trials)
        listed = f"it has {known[0]} to {known[-1]}" if known else "it has none"
        raise ConfigError(f"the study has no trial {trial_id!r}; {listed}")
    trial = trials[trial_id]
    steps: list[Step] = []
    copies = trial.lineage
    while copies:
        # A copy replaces all that the trial was before: only the last one counts.
        last = copies[-1]
        steps.append((last.iteration, dict(last.values)))
        trial = trials[last.trial_id]
        copies = (
            [copy for copy in trial.lineage if copy.iteration < last.iteration]
            if last.generation is None
            else trial.lineage[: last.generation]
        )
    # If a checkpoint was copied twice without a result in between, the values of the first copy were never used.
    return list({0: dict(trial.initial_values), **dict(reversed(steps))}.items())
