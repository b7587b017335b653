"""ASHA on curves whose right decisions are worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outplay.errors import ConfigError
from outplay.tune.objective import Objective
from outplay.tune.schedulers import CONTINUE, STOP, ASHAScheduler, AsyncHyperBandScheduler
from outplay.tune.spaces import Space
from outplay.tune.trial import Trial
from tests.tune.schedulers.simulate import repeated, simulate


def test_sixteen_trials_side_by_side() -> None:
    """η=4, rungs at 1 and 4, end at 16. Trial i arrives as number i at each rung, with score i."""
    # Ascending: each trial is the best so far when it arrives, so all pass.
    ascending = simulate(ASHAScheduler(max_t=16), lambda t, _: t.index, trials=16, slots=16)
    assert ascending.reached(16) == set(range(16))
    # Descending: trial 0 is the best. Number n passes if it is among the best ⌈n/4⌉ of n: trial i has rank i+1 ≤
    # ⌈(i+1)/4⌉, which no i > 0 fulfils.
    descending = simulate(ASHAScheduler(max_t=16), lambda t, _: -t.index, trials=16, slots=16)
    assert descending.iterations == {0: 16, **dict.fromkeys(range(1, 16), 1)}


def test_sixteen_trials_with_known_ranks() -> None:
    ranks = [9, 4, 13, 1, 6, 12, 2, 16, 3, 8, 15, 5, 11, 7, 14, 10]
    study = simulate(ASHAScheduler(max_t=16, grace_period=1), lambda t, _: -ranks[t.index], trials=16, slots=16)
    # Rung 1, in the order of arrival (n-th arrival: the best ⌈n/4⌉ of the first n pass):
    #   n=1 (9): passes    n=2 (4): best, passes    n=3 (13): no    n=4 (1): best, passes
    #   n=5 (6): the best 2 are 1, 4: no    n=6 (12): no    n=7 (2): the best 2 are 1, 2: passes    n=8 (16): no
    #   n=9 (3): the best 3 are 1, 2, 3: passes    n=10 (8), n=11 (15), n=12 (5): no
    #   n=13 (11) … n=16 (10): the best 4 are 1, 2, 3, 4: no
    assert study.reached(2) == {0, 1, 3, 6, 8}
    # Rung 4: trials 0 (9), 1 (4), 3 (1) arrive in this order, each the best so far. Then 6 (2): of 4, only 1 passes;
    # and 8 (3): of 5, the best 2 are 1 and 2.
    assert study.reached(16) == {0, 1, 3}
    assert study.scheduler.status() == {"bracket 0": {"1": 16, "4": 5}}


def test_the_best_quarter_passes_a_rung_that_others_have_reached() -> None:
    scheduler = ASHAScheduler(max_t=16, metric="score", mode="max")
    scheduler.setup(Objective.of(None, None), Space({}), 0)
    trials = [Trial(f"{i:05}", i, {}, {}) for i in range(9)]
    decisions = []
    for trial, score in zip(trials, (8, 1, 2, 3, 7, 4, 5, 7, 6), strict=True):
        scheduler.on_add(trial)
        decisions.append(scheduler.on_result(trial, {"training_iteration": 1, "score": score})[trial.id])
    # The fifth is the second of five: ⌈5/4⌉ = 2 pass. The eighth has the same score, and equal scores pass. Of nine, 3
    # pass: 8, 7 and 7, not the ninth.
    assert decisions == [CONTINUE, STOP, STOP, STOP, CONTINUE, STOP, STOP, CONTINUE, STOP]


def test_a_result_that_skips_rungs_counts_at_the_last_one() -> None:
    scheduler = ASHAScheduler(time_attr="timesteps_total", max_t=1000, grace_period=10, reduction_factor=10, metric="s")
    scheduler.setup(Objective.of(None, None), Space({}), 0)
    one, other = (Trial(f"{i:05}", i, {}, {}) for i in range(2))
    scheduler.on_add(one)
    scheduler.on_add(other)
    assert scheduler.on_result(one, {"timesteps_total": 250, "s": 5.0}) == {one.id: CONTINUE}
    assert scheduler.status() == {"bracket 0": {"10": 0, "100": 1}}
    assert scheduler.on_result(one, {"timesteps_total": 260, "s": 5.0}) == {one.id: CONTINUE}
    assert scheduler.on_result(other, {"timesteps_total": 20, "s": 1.0}) == {other.id: CONTINUE}
    assert scheduler.on_result(other, {"timesteps_total": 120, "s": 4.0}) == {other.id: STOP}
    assert scheduler.on_result(one, {"timesteps_total": 1000, "s": 5.0}) == {one.id: STOP}  # the end


def test_later_brackets_skip_the_first_rungs() -> None:
    scheduler = ASHAScheduler(max_t=16, brackets=3)
    study = simulate(scheduler, lambda t, _: -t.index, trials=60, slots=60, seed=1)
    assert [list(rungs) for rungs in scheduler.status().values()] == [["1", "4"], ["4"], []]
    ends = list(study.iterations.values())
    # exp(0), exp(-1), exp(-2), normalised: 67 %, 24 %, 9 % of the trials.
    assert ends.count(1) > ends.count(4) > ends.count(16) >= 3
    with pytest.raises(ConfigError, match="brackets must be at most 3 with this max_t, not 4"):
        ASHAScheduler(max_t=16, brackets=4)


def test_nan_is_the_worst_score() -> None:
    study = simulate(ASHAScheduler(max_t=16), lambda t, _: math.nan if t.index else 0.0, trials=3, slots=3)
    assert study.iterations == {0: 16, 1: 1, 2: 1}


def test_stop_last_trials_false_leaves_the_end_to_the_trial() -> None:
    study = simulate(ASHAScheduler(max_t=4, stop_last_trials=False), lambda t, _: 1.0, trials=2, until=9)
    assert study.iterations == {0: 9, 1: 9}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"max_t": 0}, "max_t must be a number of at least 1, not 0"),
        ({"grace_period": 0}, "grace_period must be a number above 0, not 0"),
        ({"reduction_factor": 1}, "reduction_factor must be a number above 1, not 1"),
        ({"mode": "max"}, "mode='max' needs a metric, too"),
        ({"metric": "x", "mode": "most"}, "mode must be 'min' or 'max', not 'most'"),
    ],
)
def test_wrong_settings(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ASHAScheduler(**settings)  # type: ignore[arg-type]


def test_results_without_the_metric_or_the_time() -> None:
    scheduler = AsyncHyperBandScheduler(metric="reward")
    scheduler.setup(Objective.of("reward", "max"), Space({}), 0)
    trial = Trial("00007", 7, {}, {})
    scheduler.on_add(trial)
    with pytest.raises(
        ConfigError,
        match=r"ASHAScheduler: metric 'reward' is not in the result of trial 00007\. "
        "Its metrics: evaluation/return, loss, training_iteration",
    ):
        scheduler.on_result(trial, {"loss": 1, "evaluation": {"return": 2}, "training_iteration": 1})
    with pytest.raises(ConfigError, match="time_attr 'training_iteration' is not in the result of trial 00007"):
        scheduler.on_result(trial, {"reward": 1})


def test_metric_and_mode_are_given_once() -> None:
    def used(own: dict[str, str], study: Objective) -> Objective:
        scheduler = ASHAScheduler(**own)  # type: ignore[arg-type]
        scheduler.setup(study, Space({}), 0)
        return scheduler.objective

    nothing, loss = Objective.of(None, None), Objective.of("loss", "min")
    assert used({}, loss) == used({"metric": "loss", "mode": "min"}, nothing) == used({"metric": "loss"}, loss) == loss
    assert used({"metric": "b"}, Objective.of(["a", "b"], ["max", "min"])) == Objective.of("b", "min")
    with pytest.raises(ConfigError, match=r"optimises loss \(max\), the study loss \(min\): give metric and mode only"):
        used({"metric": "loss", "mode": "max"}, loss)
    with pytest.raises(ConfigError, match="ASHAScheduler needs a metric"):
        used({}, nothing)


@settings(deadline=None)
@given(
    scores=st.lists(st.integers(-50, 50), min_size=1, max_size=30, unique=True),
    slots=st.integers(1, 8),
    max_t=st.integers(1, 30),
    eta=st.integers(2, 5),
    brackets=st.integers(1, 2),
)
def test_properties(scores: list[int], slots: int, max_t: int, eta: int, brackets: int) -> None:
    def make() -> ASHAScheduler:
        return ASHAScheduler(max_t=max_t, reduction_factor=eta, brackets=1 if max_t == 1 else brackets)

    study = simulate(make(), lambda t, _: scores[t.index] + t.iteration, trials=len(scores), slots=slots)
    assert max(study.iterations.values()) <= max_t
    assert len(study.trials) == len(scores)
    assert all(trial.status.is_finished for trial in study.trials)
    assert study.iterations[scores.index(max(scores))] == max_t
    assert repeated(make(), study) == study.decisions
    mirrored = simulate(
        make(), lambda t, _: -(scores[t.index] + t.iteration), trials=len(scores), slots=slots, mode="min"
    )
    assert mirrored.decisions == study.decisions
