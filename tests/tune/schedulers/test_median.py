"""The median stopping rule, worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outplay.errors import ConfigError
from outplay.tune.objective import Objective
from outplay.tune.schedulers import CONTINUE, PAUSE, STOP, YIELD, Decision, MedianStoppingRule
from outplay.tune.spaces import Space
from outplay.tune.trial import Trial
from tests.tune.schedulers.simulate import Simulation, repeated, simulate


class Fed:
    """A scheduler that gets results by hand."""

    def __init__(self, count: int, mode: str = "max", **settings: object) -> None:
        self.scheduler = MedianStoppingRule("training_iteration", **settings)  # type: ignore[arg-type]
        self.scheduler.setup(Objective.of("score", mode), Space({}), 0)
        self.trials = [Trial(f"{i:05}", i, {}, {}) for i in range(count)]
        for trial in self.trials:
            self.scheduler.on_add(trial)

    def at(self, index: int, time: int, score: float) -> Decision:
        trial = self.trials[index]
        decisions = self.scheduler.on_result(trial, {"training_iteration": time, "score": score})
        assert set(decisions) == {trial.id}
        return decisions[trial.id]


@pytest.mark.parametrize(("mode", "sign"), [("max", 1), ("min", -1)])
def test_by_hand(mode: str, sign: int) -> None:
    fed = Fed(5, mode, grace_period=2, min_samples_required=3)
    # Means from time 2 to 3 of the first three: (2+4)/2 = 3, (5+7)/2 = 6, (1+1)/2 = 1. Their median is 3.
    for index, scores in enumerate([(100, 2, 4), (0, 5, 7), (50, 1, 1)]):
        assert [fed.at(index, time, sign * score) for time, score in enumerate(scores, 1)] == [CONTINUE] * 3
    # Trial 3: at 2 the means are 2, 5, 1, their median is 2. Its best is 2: not below. At 3 its best is 2 < 3.
    assert [fed.at(3, 1, sign * -9), fed.at(3, 2, sign * 2), fed.at(3, 3, sign * 2)] == [CONTINUE, CONTINUE, STOP]
    # Trial 4: the best score counts, even if it is older: 3.5 at 2, then 0. Trial 3 is one of the others:
    # at 3 the means are 3, 6, 1, 2, their median is 2.5.
    assert [fed.at(4, 1, 0), fed.at(4, 2, sign * 3.5), fed.at(4, 3, 0)] == [CONTINUE] * 3


def test_too_few_trials_to_compare_with() -> None:
    fed = Fed(3, grace_period=1, min_samples_required=2)
    assert [fed.at(0, 1, 5), fed.at(0, 2, 5), fed.at(1, 1, 5)] == [CONTINUE] * 3
    assert fed.at(2, 2, 0) == CONTINUE  # only trial 0 has reached time 2
    assert fed.at(1, 2, 5) == CONTINUE
    assert fed.at(2, 3, 0) == CONTINUE
    assert [fed.at(0, 4, 5), fed.at(1, 4, 5), fed.at(2, 4, 0)] == [CONTINUE, CONTINUE, STOP]


def test_nan_is_the_worst_score() -> None:
    fed = Fed(3, grace_period=0, min_samples_required=2)
    assert [fed.at(0, 1, 1), fed.at(1, 1, 1), fed.at(2, 1, math.nan)] == [CONTINUE, CONTINUE, STOP]


def test_results_that_are_repeated_count_once() -> None:
    fed = Fed(2, grace_period=0, min_samples_required=1)
    for time, score in ((1, 0), (2, 9), (2, 3), (3, 3)):  # restarted after time 1
        fed.at(0, time, score)
    assert [fed.at(1, 1, 0), fed.at(1, 2, 1.5), fed.at(1, 3, 1.9)] == [CONTINUE, CONTINUE, STOP]  # 0, 3/2, 6/3


def test_soft_stops_pause_until_all_others_have_ended() -> None:
    fed = Fed(3, grace_period=0, min_samples_required=2, hard_stop=False)
    assert fed.scheduler.needs_checkpoints
    assert [fed.at(0, 1, 1), fed.at(1, 1, 1), fed.at(2, 1, 0)] == [CONTINUE, CONTINUE, PAUSE]
    assert fed.scheduler.on_stall() == {"00002": CONTINUE}
    assert fed.at(2, 2, -5) == CONTINUE  # not judged again
    assert fed.scheduler.on_stall() == {}
    order: list[int] = []
    study = simulate(
        MedianStoppingRule("training_iteration", grace_period=1, min_samples_required=2, hard_stop=False),
        lambda t, _: order.append(t.index) or -t.index,  # type: ignore[func-returns-value]
        trials=4,
        slots=2,
        until=3,
    )
    assert study.iterations == dict.fromkeys(range(4), 3)
    assert order[-4:] == [2, 3, 2, 3]


def test_time_slices_until_there_is_something_to_compare_with() -> None:
    fed = Fed(4, grace_period=0, min_time_slice=2)
    assert [fed.at(0, time, 0) for time in range(1, 6)] == [CONTINUE, YIELD, CONTINUE, YIELD, CONTINUE]
    assert fed.scheduler.choose([fed.trials[0], fed.trials[3], fed.trials[2]]) is fed.trials[2]
    order: list[int] = []
    scheduler = MedianStoppingRule("training_iteration", grace_period=0, min_time_slice=2, min_samples_required=1)
    simulate(scheduler, lambda t, _: order.append(t.index) or 1.0, trials=2, slots=1, until=5)  # type: ignore[func-returns-value]
    # Trial 0 yields at 2, and trial 1 runs.
    assert order[:4] == [0, 0, 1, 1]
    assert sorted(order) == [0] * 5 + [1] * 5


def test_a_grace_period_that_no_trial_reached_is_remarked() -> None:
    fed = Fed(2, grace_period=5)
    assert fed.scheduler.remark() == ""  # no trial has a result
    fed.at(0, 4, 1.0)
    assert fed.scheduler.remark() == (
        "MedianStoppingRule has compared no trials: they ended at training_iteration 4 or before, with grace_period=5; "
        "set a smaller grace_period"
    )
    fed.at(1, 5, 1.0)
    assert fed.scheduler.remark() == ""


def test_wrong_settings() -> None:
    with pytest.raises(ConfigError, match="MedianStoppingRule: min_samples_required must be a number of at least 1"):
        MedianStoppingRule(min_samples_required=0)


@settings(deadline=None)
@given(
    scores=st.lists(st.integers(-50, 50), min_size=1, max_size=20, unique=True),
    slots=st.integers(1, 6),
    grace=st.integers(0, 4),
    samples=st.integers(1, 4),
    time_slice=st.integers(0, 3),
    hard=st.booleans(),
)
def test_properties(scores: list[int], slots: int, grace: int, samples: int, time_slice: int, hard: bool) -> None:
    def make() -> MedianStoppingRule:
        return MedianStoppingRule("training_iteration", None, None, grace, samples, time_slice, hard)

    def run(sign: int, mode: str) -> Simulation:
        count = len(scores)
        return simulate(
            make(), lambda t, _: sign * (scores[t.index] + t.iteration), trials=count, slots=slots, mode=mode, until=7
        )

    study = run(1, "max")
    assert len(study.trials) == len(scores)
    assert all(trial.status.is_finished for trial in study.trials)
    # Noise-free parallel curves that rise: the best score of the best trial is above all means.
    assert study.iterations[scores.index(max(scores))] == 7
    assert hard or set(study.iterations.values()) == {7}
    assert repeated(make(), study) == study.decisions
    assert run(-1, "min").decisions == study.decisions
