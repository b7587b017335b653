"""Replaying population-based training: lineages made by hand, and a simulated population."""

from __future__ import annotations

import pytest

from outplay.errors import ConfigError
from outplay.tune import domains
from outplay.tune.objective import Objective
from outplay.tune.schedulers import CONTINUE, Clone, Decisions, PopulationBasedTraining, PopulationBasedTrainingReplay
from outplay.tune.schedulers.replay import lineage
from outplay.tune.spaces import Space
from outplay.tune.trial import Ancestor, Trial
from tests.tune.schedulers.simulate import simulate


def trial(name: str, lr: float, *copies: Ancestor) -> Trial:
    made = Trial(name, ord(name) - ord("A"), {"lr": lr}, {"lr": lr})
    made.lineage.extend(copies)
    if copies:
        made.values = copies[-1].values
    return made


def after(scheduler: PopulationBasedTrainingReplay, only: Trial, iteration: int, saves: bool = True) -> Decisions:
    """The decisions after this iteration."""
    only.last_result = {"training_iteration": iteration}
    if saves and scheduler.wants_checkpoint(only, only.last_result):
        only.checkpoints.append((iteration, "a checkpoint"))
    return scheduler.on_result(only, only.last_result)


def copy(source: str, iteration: int, lr: float, generation: int | None = None) -> Ancestor:
    return Ancestor(source, iteration, f"{source}/{iteration}", {"lr": lr}, generation)


@pytest.mark.parametrize("known", [True, False])
def test_a_copy_of_a_copy(known: bool) -> None:
    """A was copied from B at 10, which was copied from C at 5."""

    def generation(number: int) -> int | None:
        return number if known else None

    trials = {
        "A": trial("A", 1, copy("D", 3, 1.1, generation(0)), copy("B", 10, 7, generation(1))),
        "B": trial("B", 2, copy("C", 5, 6, generation(0)), copy("D", 15, 9, generation(0))),  # the second came later
        "C": trial("C", 3, copy("D", 20, 8, generation(0))),  # so C's present values are not those it began with
        "D": trial("D", 4),
    }
    assert lineage(trials, "A") == [(0, {"lr": 3}), (5, {"lr": 6}), (10, {"lr": 7})]
    assert lineage(trials, "B") == [(0, {"lr": 4}), (15, {"lr": 9})]
    assert lineage(trials, "D") == [(0, {"lr": 4})]
    with pytest.raises(ConfigError, match="the study has no trial 'E'; it has A to D"):
        lineage(trials, "E")


def test_copies_of_younger_trials_are_told_apart_by_their_generation() -> None:
    """A copied B at 10. Later B became a copy of C at 8: this is no part of A's history, although 8 is before 10."""
    trials = {
        "A": trial("A", 1, copy("B", 10, 5, generation=0)),
        "B": trial("B", 2, copy("C", 8, 6, generation=0)),
        "C": trial("C", 3),
    }
    assert lineage(trials, "A") == [(0, {"lr": 2}), (10, {"lr": 5})]


def test_a_trial_that_was_its_own_source() -> None:
    trials = {"A": trial("A", 1, copy("A", 4, 2, generation=0), copy("A", 8, 3, generation=1))}
    assert lineage(trials, "A") == [(0, {"lr": 1}), (4, {"lr": 2}), (8, {"lr": 3})]


def test_a_checkpoint_that_was_copied_twice() -> None:
    trials = {
        "A": trial("A", 1, copy("B", 5, 7, generation=1)),
        "B": trial("B", 2, copy("C", 5, 6, generation=0)),
        "C": trial("C", 3),
    }
    assert lineage(trials, "A") == [(0, {"lr": 3}), (5, {"lr": 7})]


def test_values_change_at_the_iterations() -> None:
    scheduler = PopulationBasedTrainingReplay([(0, {"lr": 1}), (3, {"lr": 2}), (5, {"lr": 3, "layers": 7})])
    space = Space(scheduler.prepare({"lr": 0.5, "env": "Pong"}))
    scheduler.setup(Objective.of(None, None), space, 0)
    values = scheduler.suggested({"lr": 0.5, "layers": None})
    assert space.config(values) == {"lr": 1, "layers": None, "env": "Pong"}
    only = Trial("00000", 0, values, space.config(values))
    scheduler.on_add(only)
    decisions = [after(scheduler, only, i)["00000"] for i in range(1, 7)]
    assert decisions == [
        CONTINUE,
        CONTINUE,
        Clone("00000", {"lr": 2, "layers": None}),
        CONTINUE,
        Clone("00000", {"lr": 3, "layers": 7}),
        CONTINUE,
    ]
    assert scheduler.status() == {"steps": "3 of 3"}
    with pytest.raises(ConfigError, match="trains one trial: set num_samples=1"):
        scheduler.on_add(Trial("00001", 1, {}, {}))


def test_results_that_skip_iterations() -> None:
    scheduler = PopulationBasedTrainingReplay([(3, {"lr": 2}), (5, {"lr": 3})])
    scheduler.setup(Objective.of(None, None), Space(scheduler.prepare({"lr": 1})), 0)
    assert scheduler.suggested({"lr": 1}) == {"lr": 1}
    only = Trial("00000", 0, {"lr": 1}, {})
    scheduler.on_add(only)
    with pytest.raises(ConfigError, match="change at iteration 4, but the trial has no checkpoint of it"):
        after(scheduler, only, 4, saves=False)
    assert after(scheduler, only, 6) == {"00000": Clone("00000", {"lr": 3})}
    assert after(scheduler, only, 2) == {"00000": CONTINUE}  # restarted: done is done


def test_wrong_steps() -> None:
    with pytest.raises(ConfigError, match="needs at least one step"):
        PopulationBasedTrainingReplay([])
    with pytest.raises(ConfigError, match="step 3 must come before step 5"):
        PopulationBasedTrainingReplay([(5, {}), (3, {})])


@pytest.mark.parametrize("synch", [True, False])
def test_a_replayed_population_reaches_the_same_scores(synch: bool) -> None:
    """For every trial of a population: one trial with its values at its iterations computes exactly the same state."""
    config = {"lr": domains.uniform(0, 10)}
    population = simulate(
        PopulationBasedTraining(
            "training_iteration", perturbation_interval=2, hyperparam_mutations=config, synch=synch
        ),
        lambda t, state: 0.9 * state + t.config["lr"],
        trials=6,
        slots=3,
        config=config,
        values=lambda i: {"lr": 1.0 + i},
        until=20,
        duration=lambda t: 1 + 0.3 * t.index,  # so that trials of different age are copied
    )
    assert sum(len(t.lineage) for t in population.trials) > 6
    for copied in population.trials:
        replay = simulate(
            PopulationBasedTrainingReplay.of_trial(population.trials, copied.id),
            lambda t, state: 0.9 * state + t.config["lr"],
            trials=1,
            config=config,
            values=lambda i: {"lr": 5.0},
            until=20,
        )
        assert replay.states["00000"] == population.states[copied.id]
