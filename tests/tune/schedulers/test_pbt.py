"""Population-based training: who copies whom, when, and with which values."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outplay.errors import ConfigError
from outplay.tune import domains
from outplay.tune.objective import Objective
from outplay.tune.schedulers import CONTINUE, PAUSE, STOP, YIELD, Clone, Decisions, PopulationBasedTraining
from outplay.tune.spaces import Space
from outplay.tune.trial import Trial
from tests.tune.schedulers.simulate import Simulation, repeated, simulate

LR = {"lr": domains.uniform(0, 10)}


def pbt(**given: Any) -> PopulationBasedTraining:
    defaults = {"perturbation_interval": 2, "hyperparam_mutations": LR, "resample_probability": 0}
    return PopulationBasedTraining("training_iteration", **{**defaults, **given})


class Fed:
    """A scheduler that gets results by hand. Trial i has lr = i + 1."""

    def __init__(self, count: int, scheduler: PopulationBasedTraining, mode: str = "max", seed: int = 0) -> None:
        self.scheduler = scheduler
        scheduler.setup(Objective.of("score", mode), Space(scheduler.prepare(LR)), seed)
        self.trials: list[Trial] = []
        self.saves = True
        for _ in range(count):
            self.add()

    def add(self) -> None:
        index = len(self.trials)
        self.trials.append(Trial(f"{index:05}", index, {"lr": index + 1.0}, {"lr": index + 1.0}))
        self.scheduler.on_add(self.trials[-1])

    def at(self, index: int, time: float, score: float) -> Decisions:
        trial = self.trials[index]
        trial.last_result = {"training_iteration": time, "score": score}
        if self.saves and self.scheduler.wants_checkpoint(trial, trial.last_result):
            trial.checkpoints.append((int(time), "a checkpoint"))
        return self.scheduler.on_result(trial, trial.last_result)


@pytest.mark.parametrize(("mode", "sign"), [("max", 1), ("min", -1)])
def test_the_lowest_quantile_copies_the_highest(mode: str, sign: int) -> None:
    fed = Fed(8, pbt(), mode)
    assert fed.at(0, 1, 0) == {"00000": CONTINUE}  # before the interval's end
    # One trial after the other, each better than those before: the newest is never in the lowest quarter.
    for index in range(7):
        assert fed.at(index, 2, sign * index) == {f"{index:05}": YIELD}
    # The eighth is the worst. ⌈8/4⌉ = 2 trials are copied: 5 and 6, with lr 6 and 7.
    decision = fed.at(7, 2, sign * -1)["00007"]
    assert isinstance(decision, Clone)
    assert decision.source in ("00005", "00006")
    lr = int(decision.source) + 1
    assert decision.values["lr"] in (pytest.approx(1.2 * lr), pytest.approx(0.8 * lr))
    # Trial 0 is the second-worst. Trial 7 keeps its score, so trial 1 is not in the lowest quarter.
    assert isinstance(fed.at(0, 4, 0)["00000"], Clone)
    assert fed.at(1, 4, sign * 1) == {"00001": YIELD}


def test_both_good_trials_are_copied_with_both_factors() -> None:
    decisions = set()
    for seed in range(40):
        fed = Fed(8, pbt(), seed=seed)
        for index in range(7):
            fed.at(index, 2, index)
        clone = fed.at(7, 2, -1)["00007"]
        assert isinstance(clone, Clone)
        decisions.add((clone.source, round(clone.values["lr"], 6)))
    assert decisions == {("00005", 7.2), ("00005", 4.8), ("00006", 8.4), ("00006", 5.6)}


def test_the_interval_of_a_copy_begins_at_the_time_of_the_checkpoint() -> None:
    fed = Fed(2, pbt(quantile_fraction=0.5))
    for time in (1, 2, 3, 4, 5):
        fed.at(0, time, 10)
    assert [iteration for iteration, _ in fed.trials[0].checkpoints] == [2, 4]  # the ends of its intervals
    assert isinstance(fed.at(1, 2, 0)["00001"], Clone)
    assert fed.at(1, 5, 10) == {"00001": CONTINUE}  # 4 is where it came from
    assert fed.at(1, 6, 11) == {"00001": YIELD}


def test_trials_without_checkpoints_cannot_be_copied() -> None:
    fed = Fed(2, pbt(quantile_fraction=0.5))
    fed.saves = False
    fed.at(0, 2, 1)
    with pytest.raises(ConfigError, match="trial 00000 is to be copied, but it has no checkpoint"):
        fed.at(1, 2, 0)


def test_copies_are_not_copied_before_the_end_of_their_interval() -> None:
    fed = Fed(3, pbt(quantile_fraction=0.5))
    fed.at(0, 2, 5)
    assert isinstance(fed.at(1, 2, 1)["00001"], Clone)
    fed.scheduler.on_complete(fed.trials[0], {})
    assert fed.at(2, 2, 0) == {"00002": YIELD}  # trial 1 is better, but its score is not that of its checkpoint
    assert fed.at(1, 4, 1) == {"00001": YIELD}
    assert isinstance(clone := fed.at(2, 4, 0)["00002"], Clone)
    assert clone.source == "00001"
    assert fed.scheduler.status() == {"population": 2, "copies": 2}


def test_nothing_changes_during_the_burn_in_period() -> None:
    fed = Fed(2, pbt(burn_in_period=6, quantile_fraction=0.5))
    for time in range(1, 6):
        assert fed.at(0, time, 5) == {"00000": CONTINUE}
        assert fed.at(1, time, 1) == {"00001": CONTINUE}
    assert fed.at(0, 6, 5) == {"00000": YIELD}
    assert isinstance(fed.at(1, 6, 1)["00001"], Clone)


def test_an_interval_that_no_trial_reached_is_remarked() -> None:
    fed = Fed(2, pbt(perturbation_interval=10, burn_in_period=4))
    assert fed.scheduler.remark() == ""  # no trial has a result
    fed.at(0, 9, 1.0)
    remark = fed.scheduler.remark()
    assert "has compared no trials: they ended at training_iteration 9 or before, with perturbation_int" in remark
    assert remark.endswith("=10; set a smaller perturbation_interval")
    fed.at(1, 10, 1.0)
    assert fed.scheduler.remark() == ""


def test_the_remedy_for_seconds_is_to_count_iterations() -> None:
    scheduler = PopulationBasedTraining(hyperparam_mutations={"lr": [1, 2]})
    scheduler.setup(Objective.of("score", "max"), Space(scheduler.prepare({"lr": 1})), 0)
    trial = Trial("00000", 0, {"lr": 1}, {"lr": 1})
    scheduler.on_add(trial)
    scheduler.on_result(trial, {"score": 1.0, "time_total_s": 2.5})
    assert "with perturbation_interval=60; time_attr='training_iteration' counts iterations; or " in scheduler.remark()


def test_nan_is_never_copied() -> None:
    fed = Fed(2, pbt(quantile_fraction=0.5))
    assert fed.at(0, 2, math.nan) == {"00000": YIELD}
    assert fed.at(1, 2, math.nan) == {"00001": YIELD}
    assert fed.at(1, 4, 1) == {"00001": YIELD}
    assert isinstance(fed.at(0, 4, math.nan)["00000"], Clone)


def test_synchronous_training_waits_for_all() -> None:
    fed = Fed(4, pbt(synch=True))
    for index in range(4):
        assert fed.at(index, 2, index) == {f"{index:05}": PAUSE}
    decisions = fed.scheduler.on_stall()
    assert isinstance(clone := decisions["00000"], Clone)
    assert clone.source == "00003"
    assert [decisions[f"{index:05}"] for index in (1, 2, 3)] == [CONTINUE] * 3
    # One ends by itself, another fails: the others do not wait for them.
    for index in (0, 1):
        assert fed.at(index, 4, index) == {f"{index:05}": PAUSE}
    fed.scheduler.on_complete(fed.trials[2], {})
    fed.scheduler.on_complete(fed.trials[3], {})
    decisions = fed.scheduler.on_stall()
    assert isinstance(clone := decisions["00000"], Clone)
    assert clone.source == "00001"
    assert decisions["00001"] == CONTINUE
    assert fed.scheduler.on_stall() == {}


def test_custom_explore_fn_and_resampling() -> None:
    fed = Fed(2, pbt(quantile_fraction=0.5, custom_explore_fn=lambda config: {"lr": round(config["lr"] * 100)}))
    fed.at(0, 2, 1)
    assert fed.at(1, 2, 0)["00001"] in (Clone("00000", {"lr": 120}), Clone("00000", {"lr": 80}))
    only = PopulationBasedTraining("training_iteration", custom_explore_fn=lambda config: {"lr": 3.0})
    only.perturbation_interval = 2
    only.quantile_fraction = 0.5
    fed = Fed(2, only)
    fed.at(0, 2, 1)
    assert fed.at(1, 2, 0)["00001"] == Clone("00000", {"lr": 3.0})


def test_the_population_takes_turns_if_slots_are_few() -> None:
    order: list[int] = []

    def curve(trial: Trial, state: float) -> float:
        order.append(trial.index)
        return state + trial.config["lr"]

    study = simulate(pbt(), curve, 3, slots=1, config={}, values=lambda i: {"lr": 1.0 + i}, until=20)
    assert order[:6] == [0, 0, 1, 1, 2, 2]
    assert set(study.iterations.values()) == {20}
    assert min(study.states.values()) > 20 * 2  # trials 0 and 1 became copies


def test_results_without_the_metric() -> None:
    fed = Fed(1, pbt())
    with pytest.raises(ConfigError, match="Training: metric 'score' is not in the result of trial 00000"):
        fed.scheduler.on_result(fed.trials[0], {"training_iteration": 2})
    fed = Fed(1, pbt(require_attrs=False))
    assert fed.scheduler.on_result(fed.trials[0], {"training_iteration": 2}) == {"00000": CONTINUE}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"hyperparam_mutations": None}, "needs hyperparam_mutations or custom_explore_fn"),
        ({"quantile_fraction": 0.6}, "quantile_fraction must be from 0 to 0.5, not 0.6"),
        ({"resample_probability": 2}, "resample_probability must be from 0 to 1, not 2"),
        ({"perturbation_interval": 0}, "perturbation_interval must be a number above 0, not 0"),
        ({"perturbation_factors": ()}, "perturbation_factors must be numbers"),
        ({"population_size": 3}, "belong together; initial_trials is missing"),
        (
            {"population_size": 3, "initial_trials": 2, "warm_up_t": 1},
            "initial_trials must be a number of at least 3, not 2",
        ),
    ],
)
def test_wrong_settings(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        pbt(**given)


def test_a_population_from_a_search() -> None:
    fed = Fed(4, pbt(initial_trials=5, population_size=2, warm_up_t=3, quantile_fraction=0.5))
    assert fed.at(0, 2, 9) == {"00000": CONTINUE}  # no perturbation during the warm-up
    assert fed.at(0, 3, 1) == {"00000": PAUSE}
    assert fed.at(1, 3, 5) == {"00001": PAUSE}
    # The worst of three stops at once: 0. Equal scores: the first to come stays. 3 fails.
    assert fed.at(2, 3, 5) == {"00002": PAUSE, "00000": STOP}
    assert fed.scheduler.on_complete(fed.trials[3], {}) == {}
    fed.add()
    result = {"training_iteration": 3, "score": 0}
    assert fed.scheduler.annotated(fed.trials[4], result)["hyperband_info"] == {"budget": 3}
    assert fed.at(4, 3, 0) == {"00004": STOP, "00001": CONTINUE, "00002": CONTINUE}
    assert fed.scheduler.annotated(fed.trials[1], result) == result
    # From here on it is population-based training, whose first interval begins at 3.
    assert [fed.at(1, 4, 7), fed.at(1, 5, 7)] == [{"00001": CONTINUE}, {"00001": YIELD}]
    assert isinstance(clone := fed.at(2, 5, 6)["00002"], Clone)
    assert clone.source == "00001"


def test_a_warm_up_with_too_few_trials() -> None:
    fed = Fed(3, pbt(initial_trials=9, population_size=2, warm_up_t=3))
    for index in range(3):
        fed.at(index, 3, index)
    assert fed.scheduler.on_stall() == {"00001": CONTINUE, "00002": CONTINUE}
    fed.add()  # a later trial joins the population
    assert fed.at(3, 3, 0) == {"00003": YIELD}


@settings(deadline=None)
@given(
    rates=st.lists(st.floats(0.1, 9.9), min_size=1, max_size=10),
    slots=st.integers(1, 5),
    interval=st.integers(1, 4),
    synch=st.booleans(),
    fraction=st.sampled_from([0.0, 0.25, 0.5]),
    warm=st.booleans(),
    failing=st.sets(st.integers(0, 9), max_size=2),
)
def test_properties(
    rates: list[float], slots: int, interval: int, synch: bool, fraction: float, warm: bool, failing: set[int]
) -> None:
    warm_up = {"initial_trials": len(rates), "population_size": (len(rates) + 1) // 2, "warm_up_t": 3} if warm else {}

    def make() -> PopulationBasedTraining:
        return pbt(
            perturbation_interval=interval, synch=synch, quantile_fraction=fraction, resample_probability=0.3, **warm_up
        )

    def run(sign: int, mode: str) -> Simulation:
        return simulate(
            make(),
            lambda t, state: state + sign * t.config["lr"],
            trials=len(rates),
            slots=slots,
            values=lambda index: {"lr": rates[index]},
            mode=mode,
            until=10,
            duration=lambda t: 1 + t.index / 3,
            fails=lambda t: t.index in failing and t.iteration == 4,
        )

    study = run(1, "max")
    assert len(study.trials) == len(rates)
    assert all(trial.status.is_finished for trial in study.trials)
    assert all(0 <= trial.values["lr"] <= 10 for trial in study.trials)
    assert all(trial.iteration <= 10 for trial in study.trials)
    if not warm and not failing:
        assert {trial.iteration for trial in study.trials} == {10}
    assert repeated(make(), study) == study.decisions
    assert run(-1, "min").decisions == study.decisions
