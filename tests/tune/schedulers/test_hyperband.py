"""HyperBand: the paper's table, halving worked out by hand, brackets that are not full."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outplay.errors import ConfigError
from outplay.tune.objective import Objective
from outplay.tune.schedulers import CONTINUE, PAUSE, STOP, HyperBandForBOHB, HyperBandScheduler
from outplay.tune.schedulers.hyperband import Bracket
from outplay.tune.spaces import Space
from outplay.tune.trial import Trial
from tests.tune.schedulers.simulate import Simulation, repeated, simulate


def test_the_table_of_the_paper() -> None:
    """Li et al. 2018, table 1: R=81, η=3."""
    assert [Bracket(s, 4, 81, 3).sizes() for s in (4, 3, 2, 1, 0)] == [
        [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
        [(27, 3), (9, 9), (3, 27), (1, 81)],
        [(9, 9), (3, 27), (1, 81)],
        [(6, 27), (2, 81)],
        [(5, 81)],
    ]


@pytest.mark.parametrize("slots", [1, 4, 200])
def test_a_whole_band_runs_as_the_table_says(slots: int) -> None:
    """128 = 81 + 27 + 9 + 6 + 5 trials."""
    study = simulate(HyperBandScheduler(max_t=81), lambda t, _: t.index, trials=128, slots=slots)
    starts = [0, 81, 108, 117, 123, 128]
    ends = [
        {time: [*study.iterations.values()][a:b].count(time) for time in (1, 3, 9, 27, 81)}
        for a, b in itertools.pairwise(starts)
    ]
    assert ends == [
        {1: 54, 3: 18, 9: 6, 27: 2, 81: 1},
        {1: 0, 3: 18, 9: 6, 27: 2, 81: 1},
        {1: 0, 3: 0, 9: 6, 27: 2, 81: 1},
        {1: 0, 3: 0, 9: 0, 27: 4, 81: 2},
        {1: 0, 3: 0, 9: 0, 27: 0, 81: 5},
    ]
    # A higher number is a higher score: the best of each bracket are its last ones.
    assert study.reached(81) == {80, 107, 116, 121, 122, *range(123, 128)}
    assert study.reached(27) == {78, 79, 80, 105, 106, 107, 114, 115, 116, *range(117, 128)}


def fed(scheduler: HyperBandScheduler, count: int) -> list[Trial]:
    scheduler.setup(Objective.of("score", "max"), Space({}), 0)
    trials = [Trial(f"{i:05}", i, {}, {}) for i in range(count)]
    for trial in trials:
        scheduler.on_add(trial)
    return trials


def test_the_decisions_of_one_bracket() -> None:
    scheduler = HyperBandScheduler(max_t=4, reduction_factor=2)  # bracket 2: 4 trials at 1, 2 at 2, 1 at 4
    trials = fed(scheduler, 4)

    def at(index: int, time: int, score: float) -> object:
        return scheduler.on_result(trials[index], {"training_iteration": time, "score": score})

    a, b, c, d = (trial.id for trial in trials)
    assert [at(0, 1, 5), at(1, 1, 7), at(2, 1, 6)] == [{a: PAUSE}, {b: PAUSE}, {c: PAUSE}]
    assert at(3, 1, 4) == {a: STOP, b: CONTINUE, c: CONTINUE, d: STOP}
    assert at(2, 2, 9) == {c: PAUSE}
    assert at(1, 2, 8) == {c: CONTINUE, b: STOP}
    assert [at(2, 3, 0), at(2, 4, 0)] == [{c: CONTINUE}, {c: STOP}]


def test_trials_that_end_by_themselves_are_not_waited_for() -> None:
    scheduler = HyperBandScheduler(max_t=4, reduction_factor=2)
    trials = fed(scheduler, 4)
    for index, score in ((0, 5), (1, 7), (2, 6)):
        scheduler.on_result(trials[index], {"training_iteration": 1, "score": score})
    a, b, c = (trial.id for trial in trials[:3])
    assert scheduler.on_complete(trials[3], {}) == {a: STOP, b: CONTINUE, c: CONTINUE}


def test_brackets_that_are_not_full() -> None:
    """5 of 81 trials: of 5 at 1, max(1, ⌊5/3⌋) = 1 continues, alone to the end."""
    study = simulate(HyperBandScheduler(max_t=81), lambda t, _: -t.index, trials=5, slots=2)
    assert study.iterations == {0: 81, 1: 1, 2: 1, 3: 1, 4: 1}
    # 20 of 81: ⌊20/3⌋ = 6 at 3, ⌊20/9⌋ = 2 at 9, 1 at 27.
    study = simulate(HyperBandScheduler(max_t=81), lambda t, _: -t.index, trials=20, slots=3)
    assert [len(study.reached(t)) for t in (1, 2, 3, 4, 9, 10, 27, 81)] == [20, 6, 6, 2, 2, 1, 1, 1]


def test_a_stalled_bracket_takes_no_more_trials() -> None:
    scheduler = HyperBandScheduler(max_t=4, reduction_factor=2)
    trials = fed(scheduler, 2)
    for trial in trials:
        scheduler.on_result(trial, {"training_iteration": 1, "score": trial.index})
    assert scheduler.on_stall() == {"00000": STOP, "00001": CONTINUE}
    late = Trial("00002", 2, {}, {})
    scheduler.on_add(late)
    assert scheduler.choose([late, trials[1]]) is trials[1]
    assert scheduler.on_result(late, {"training_iteration": 1, "score": 0}) == {late.id: CONTINUE}  # bracket 1


def test_odd_times() -> None:
    scheduler = HyperBandScheduler(max_t=100, reduction_factor=3)  # 3⁴ ≤ 100 < 3⁵; 100/81, 100/27, … rounded down
    study = simulate(scheduler, lambda t, _: t.index, trials=81, slots=9)
    assert sorted(set(study.iterations.values())) == [1, 3, 11, 33, 100]
    with pytest.raises(ConfigError, match="max_t must be a number of at least 1, not 0"):
        HyperBandScheduler(max_t=0)


def test_stop_last_trials_false_leaves_the_end_to_the_trial() -> None:
    study = simulate(HyperBandScheduler(max_t=1, stop_last_trials=False), lambda t, _: 1.0, trials=2, until=7)
    assert study.iterations == {0: 7, 1: 7}


def test_bohb_fills_brackets_in_order_and_tells_the_searcher_the_budget() -> None:
    scheduler = HyperBandForBOHB(max_t=4, reduction_factor=2)
    trials = fed(scheduler, 5)  # 4 of bracket 2, 1 of bracket 1, whose first rung is at 2

    def budget(index: int, time: int) -> object:
        result = {"training_iteration": time, "score": index}
        told = scheduler.annotated(trials[index], result)
        scheduler.on_result(trials[index], result)
        assert told.items() >= result.items()
        return told.get("hyperband_info")

    assert [budget(i, 1) for i in range(4)] == [{"budget": 1}] * 4
    assert [budget(4, 1), budget(4, 2)] == [None, {"budget": 2}]
    assert scheduler.choose([trials[4], trials[2]]) is trials[2]  # of the earlier bracket
    assert [budget(2, 2), budget(3, 2)] == [{"budget": 2}] * 2
    assert [budget(3, 3), budget(3, 4)] == [None, {"budget": 4}]


def test_bohb_runs_new_trials_last() -> None:
    order: list[int] = []

    def curve(trial: Trial, _: float) -> float:
        order.append(trial.index)
        return trial.index

    simulate(HyperBandForBOHB(max_t=4, reduction_factor=2), curve, trials=5, slots=1)
    assert order == [0, 1, 2, 3, 3, 2, 3, 3, 4, 4, 4, 4]


@settings(deadline=None)
@given(
    scores=st.lists(st.integers(-50, 50), min_size=1, max_size=40, unique=True),
    slots=st.integers(1, 8),
    max_t=st.integers(1, 30),
    eta=st.integers(2, 4),
    failing=st.sets(st.integers(0, 39), max_size=5),
)
@pytest.mark.parametrize("cls", [HyperBandScheduler, HyperBandForBOHB])
def test_properties(
    cls: type[HyperBandScheduler], scores: list[int], slots: int, max_t: int, eta: int, failing: set[int]
) -> None:
    def run(sign: int, mode: str) -> Simulation:
        return simulate(
            cls(max_t=max_t, reduction_factor=eta),
            lambda t, _: sign * (scores[t.index] + t.iteration),
            trials=len(scores),
            slots=slots,
            mode=mode,
            fails=lambda t: t.index in failing and t.iteration == t.index % 3,
        )

    study = run(1, "max")
    assert len(study.trials) == len(scores)
    assert max(study.iterations.values()) <= max_t
    assert all(trial.status.is_finished for trial in study.trials)
    if (best := scores.index(max(scores))) not in failing:
        assert study.iterations[best] == max_t
    assert repeated(cls(max_t=max_t, reduction_factor=eta), study) == study.decisions
    assert run(-1, "min").decisions == study.decisions
