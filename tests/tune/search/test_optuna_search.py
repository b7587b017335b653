"""OptunaSearch: what it tells Optuna, points, warm starts, constraints, several objectives, wrong settings."""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from outplay.errors import ConfigError
from outplay.testing.searcher import CONDITIONAL
from outplay.tune import domains
from outplay.tune.objective import Objective
from outplay.tune.search import OptunaSearch, TuneBOHB
from outplay.tune.spaces import Space, Values
from outplay.tune.trial import Trial

SPACE = Space({"x": domains.uniform(-5, 5), "model": {"n": domains.randint(0, 10)}})
LOSS = Objective.of("loss", "min")
POINT = {"x": 1.0, "model/n": 3}


def started(searcher: OptunaSearch | None = None, space: Space = SPACE, objective: Objective = LOSS) -> OptunaSearch:
    searcher = searcher or OptunaSearch()
    searcher.setup(space, objective, seed=3)
    return searcher


def run(searcher: OptunaSearch, trials: int, result: Callable[[Values], dict[str, Any]]) -> list[Values]:
    found = []
    for i in range(trials):
        values = searcher.suggest(f"{i:05}")
        assert values is not None
        found.append(values)
        searcher.on_complete(f"{i:05}", result(values))
    return found


def states(searcher: OptunaSearch) -> list[TrialState]:
    return [trial.state for trial in searcher.study.get_trials()]


# What Optuna is told.


def test_optuna_knows_trials_that_run_fail_and_end() -> None:
    searcher = started()
    for i in range(6):
        searcher.suggest(f"{i:05}")
    searcher.on_complete("00002", {"loss": 0.5})
    searcher.on_complete("00001", {"loss": 0.5}, error=True)
    searcher.on_complete("00003", None, error=True)
    searcher.on_result("00000", {"loss": 7.0})
    assert states(searcher) == [
        TrialState.RUNNING, TrialState.FAIL, TrialState.COMPLETE, TrialState.FAIL, TrialState.RUNNING,
        TrialState.RUNNING,
    ]  # fmt: skip
    trials = searcher.study.get_trials()
    assert trials[2].value == 0.5
    assert trials[0].intermediate_values == {}


@pytest.mark.parametrize("result", [{"loss": math.nan}, {"loss": None}, {"loss": "low"}, {}, None])
def test_a_metric_that_is_not_a_number_counts_as_failed_with_one_line(result: Any, caplog: Any) -> None:
    searcher = started()
    searcher.suggest("00000")
    with caplog.at_level(logging.WARNING, logger="outplay"):
        searcher.on_complete("00000", result)
    assert states(searcher) == [TrialState.FAIL]
    assert [record.message for record in caplog.records] == [
        "trial 00000: loss is not a number in its last result; the searcher counts the trial as failed"
    ]


@pytest.mark.parametrize(("value", "told"), [(True, 1.0), (-3, -3.0), (math.inf, math.inf)])
def test_other_numbers_are_told_as_they_are(value: Any, told: float) -> None:
    searcher = started()
    searcher.suggest("00000")
    searcher.on_complete("00000", {"loss": value})
    assert searcher.study.get_trials()[0].value == told


def test_running_trials_keep_tpe_from_suggesting_the_same_point() -> None:
    """Constant liar: of suggestions that are all asked for at once, none is near another one."""

    def spread(at_once: bool) -> float:
        space = Space({"x": domains.uniform(-5, 5)})
        searcher = started(space=space)
        run(searcher, 30, lambda values: {"loss": values["x"] ** 2})
        new = []
        for i in range(30, 42):
            values = searcher.suggest(f"{i:05}")
            assert values is not None
            new.append(values["x"])
            if not at_once:
                searcher.on_complete(f"{i:05}", None, error=True)  # forgotten: as if nothing had been asked
        mean = sum(new) / len(new)
        return sum((x - mean) ** 2 for x in new) / len(new)

    assert spread(at_once=True) > 1.5 * spread(at_once=False)


def test_a_trial_that_ends_twice_is_an_error() -> None:
    searcher = started()
    searcher.suggest("00000")
    searcher.on_complete("00000", {"loss": 1})
    with pytest.raises(ValueError, match="trial '00000' has ended already"):
        searcher.on_complete("00000", {"loss": 1})


def test_a_known_suggestion_is_not_asked_for_again() -> None:
    """Repeating 300 suggestions of a Gaussian process would take minutes."""
    asked = 0

    class Counting(optuna.samplers.RandomSampler):
        def sample_independent(self, *arguments: Any) -> Any:
            nonlocal asked
            asked += 1
            return super().sample_independent(*arguments)

    searcher = started(OptunaSearch(sampler="gp"))
    searcher.sampler.kind = type(searcher.sampler.kind)(lambda seed, _: Counting(seed=seed), is_stateless=True)
    for i in range(5):
        searcher.repeat(f"{i:05}", POINT)
        searcher.on_complete(f"{i:05}", {"loss": i})
    assert asked == 0
    searcher.suggest("00005")
    assert asked == 2


@pytest.mark.parametrize("make", [OptunaSearch, lambda: OptunaSearch(sampler="nsga2"), TuneBOHB])
def test_values_that_were_written_as_json_can_be_repeated(make: Callable[[], OptunaSearch]) -> None:
    """A journal holds no domains: those within the values of a choice are their repr."""
    space = Space(CONDITIONAL)
    undisturbed, resumed = started(make(), space), started(make(), space)
    for i in range(20):
        values = undisturbed.suggest(f"{i:05}")
        resumed.repeat(f"{i:05}", json.loads(json.dumps(values, default=repr)))
        for searcher in (undisturbed, resumed):
            searcher.on_complete(f"{i:05}", {"loss": i % 7, "training_iteration": 1})
    for i in range(20, 30):
        assert undisturbed.suggest(f"{i:05}") == resumed.suggest(f"{i:05}")


def test_the_searcher_has_its_own_seed() -> None:
    def first(own: int | None, of_study: int) -> Any:
        searcher = OptunaSearch(seed=own)
        searcher.setup(SPACE, LOSS, of_study)
        return searcher.suggest("00000")

    assert first(5, 1) == first(5, 2) == first(None, 5)
    assert first(None, 1) != first(None, 2)


def test_optuna_writes_nothing_and_the_package_imports_it_when_it_is_used() -> None:
    program = (
        "import sys, outplay.tune.search as s\n"
        "assert not {'optuna', 'torch', 'gymnasium', 'pandas', 'scipy', 'sqlalchemy'} & set(sys.modules)\n"
        "from outplay.tune.domains import uniform\nfrom outplay.tune.spaces import Space\n"
        "from outplay.tune.objective import Objective\n"
        "o = s.OptunaSearch(sampler='cmaes')\nspace = Space({'x': uniform(0, 1), 'y': uniform(0, 1)})\n"
        "o.setup(space, Objective.of('a', 'max'), 0)\n"
        "for i in range(9):\n    o.suggest(str(i))\n    o.on_complete(str(i), {'a': i})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# Points and warm starts.


def test_points_come_first_and_the_sampler_chooses_what_they_leave_open() -> None:
    searcher = started(OptunaSearch(points_to_evaluate=[POINT, {"model": {"n": 9}}, {"x": -5}]))
    first, second, third, fourth = run(searcher, 4, lambda values: {"loss": values["x"]})
    assert first == POINT
    assert second["model/n"] == 9
    assert -5 <= second["x"] <= 5
    assert third["x"] == -5
    assert searcher.study.get_trials()[1].params["model/n"] == 9
    assert fourth["x"] not in (1.0, -5)


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "cmaes", "qmc"])
def test_evaluated_points_are_known_and_not_tried(sampler: str) -> None:
    searcher = started(
        OptunaSearch(sampler=sampler, points_to_evaluate=[POINT, {"x": 2.0, "model/n": 0}], evaluated_rewards=[0.25, 4])
    )
    assert [(trial.value, trial.params["x"]) for trial in searcher.study.get_trials()] == [(0.25, 1.0), (4.0, 2.0)]
    assert searcher.suggest("00000") not in ({"x": 2.0, "model/n": 0}, POINT)


def test_a_warm_start_takes_pairs_and_trials_and_says_how_many_it_does_not_use(caplog: Any) -> None:
    def trial(values: Values, result: dict[str, Any]) -> Trial:
        return Trial("00000", 0, values, {}, last_result=result)

    earlier = [
        (POINT, {"loss": 0.5}),
        ({"x": 7.0, "model/n": 3}, {"loss": 0.1}),  # outside
        ({"x": 1.0}, {"loss": 0.1}),  # incomplete
        ({**POINT, "batch": 32}, {"loss": 0.1}),  # of another space
        (POINT, {}),
    ]
    searcher = OptunaSearch(warm_start=earlier).warm_start([trial({"x": 2.0, "model/n": 1}, {"loss": 0.7})])
    with caplog.at_level(logging.WARNING, logger="outplay"):
        started(searcher)
    assert [trial.value for trial in searcher.study.get_trials()] == [0.5, 0.7]
    assert [record.message for record in caplog.records] == [
        "warm start: 4 of 6 trials are not used: 3 are outside the search space, 1 have no result"
    ]


def test_a_warm_start_helps() -> None:
    """With twenty results of an earlier study, the first suggestions are near the best one."""
    earlier = [({"x": x / 2, "model/n": 5}, {"loss": (x / 2 - 3) ** 2}) for x in range(-10, 10)]
    warm = run(started(OptunaSearch(warm_start=earlier)), 5, lambda values: {"loss": (values["x"] - 3) ** 2})
    cold = run(started(), 5, lambda values: {"loss": (values["x"] - 3) ** 2})
    assert min(abs(values["x"] - 3) for values in warm) < 0.5
    assert sum(abs(v["x"] - 3) for v in warm) < sum(abs(v["x"] - 3) for v in cold)


@pytest.mark.parametrize(
    "searcher",
    [
        OptunaSearch(points_to_evaluate=[POINT], evaluated_rewards=[1]),
        OptunaSearch(points_to_evaluate=[POINT]),
        TuneBOHB(),
    ],
)
def test_a_searcher_that_is_used_again_begins_anew(searcher: OptunaSearch) -> None:
    first, second = (run(started(searcher), 15, lambda v: {"loss": v["x"], "training_iteration": 1}) for _ in range(2))
    assert first == second


# Constraints and several objectives.


@pytest.mark.parametrize("sampler", ["tpe", "gp", "nsga2", "nsga3"])
def test_constraints_are_known_to_the_sampler(sampler: str) -> None:
    searcher = started(OptunaSearch(sampler=sampler, constraints=lambda result: [result["memory"] - 8, -1]))
    for i, memory in enumerate([4, 10]):
        searcher.suggest(f"{i:05}")
        searcher.on_complete(f"{i:05}", {"loss": 1.0, "memory": memory})
    assert [trial.constraints for trial in searcher.study.get_trials()] == [{"0": -4, "1": -1}, {"0": 2, "1": -1}]


def test_tpe_prefers_feasible_values() -> None:
    """Large x are best, but must be at most 0: the search stays near 0 instead of near 5."""
    space, score = Space({"x": domains.uniform(-5, 5)}), Objective.of("score", "max")

    def near_zero(constraints: Any) -> int:
        found = run(started(OptunaSearch(constraints=constraints), space, score), 60, lambda v: {"score": v["x"]})
        return sum(abs(values["x"]) < 1 for values in found[40:])

    assert near_zero(None) < 3
    assert near_zero(lambda result: [result["score"]]) > 8  # of 20; at random: 4


@pytest.mark.parametrize("wrong", [3, "ab", [None]])
def test_constraints_must_be_numbers(wrong: Any) -> None:
    searcher = started(OptunaSearch(constraints=lambda result: wrong))
    searcher.suggest("00000")
    with pytest.raises(ConfigError, match="constraints must return a list of numbers"):
        searcher.on_complete("00000", {"loss": 1.0})


def test_constraints_that_are_nan_count_as_failed(caplog: Any) -> None:
    searcher = started(OptunaSearch(constraints=lambda result: [math.nan]))
    searcher.suggest("00000")
    searcher.on_complete("00000", {"loss": 1.0})
    assert states(searcher) == [TrialState.FAIL]
    assert "constraints returned NaN" in caplog.text


@pytest.mark.parametrize(
    "sampler", ["tpe", pytest.param("gp", marks=pytest.mark.slow), "nsga2", "nsga3", "qmc", "random"]
)
def test_several_metrics_have_directions_of_their_own(sampler: str) -> None:
    searcher = started(
        OptunaSearch(sampler=sampler, metric=["return", "time"], mode=["max", "min"]),
        objective=Objective.of(None, None),
    )
    assert [direction.name for direction in searcher.study.directions] == ["MAXIMIZE", "MINIMIZE"]
    run(searcher, 12, lambda values: {"return": values["x"], "time": values["model/n"]})
    front = {tuple(trial.values) for trial in searcher.study.best_trials}
    everything = [tuple(trial.values) for trial in searcher.study.get_trials()]
    assert front == {a for a in everything if not any(b != a and b[0] >= a[0] and b[1] <= a[1] for b in everything)}


# Wrong settings.


@pytest.mark.parametrize(
    ("settings", "objective", "message"),
    [
        ({"sampler": "tpee"}, LOSS, "^there is no sampler 'tpee'. Did you mean 'tpe'.$"),
        ({"sampler": "xx"}, LOSS, "^there is no sampler 'xx'; valid: cmaes, gp, nsga2, nsga3, qmc, random, tpe$"),
        ({"sampler": 3}, LOSS, "sampler must be a name or a function of a seed"),
        ({"sampler": optuna.samplers.RandomSampler()}, LOSS, "sampler=lambda seed: RandomSampler\\(seed=seed\\)"),
        ({"sampler": "cmaes"}, Objective.of(["a", "b"], "max"), "'cmaes' optimises one metric, not 2"),
        ({}, Objective.of(None, None), "OptunaSearch needs a metric"),
        ({"metric": "a", "mode": "max"}, LOSS, "has metric='a', mode='max', but the study has metric='loss'"),
        ({"points_to_evaluate": [{"y": 1}]}, LOSS, "the config has no variable 'y'"),
        ({"points_to_evaluate": [{"x": 6}]}, LOSS, "points_to_evaluate: x=6 is not in uniform\\(-5, 5\\)$"),
        ({"points_to_evaluate": [{"x": 1}], "evaluated_rewards": [1]}, LOSS, "needs values for all variables"),
        ({"points_to_evaluate": [POINT], "evaluated_rewards": [[1, 2]]}, LOSS, "is not one number per metric"),
        ({"points_to_evaluate": [POINT], "evaluated_rewards": []}, LOSS, "evaluated_rewards has 0 values for 1"),
        ({"storage": "sqlite://"}, LOSS, "storage needs a study_name"),
    ],
)  # fmt: skip
def test_wrong_settings_are_one_sentence(settings: dict[str, Any], objective: Objective, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        started(OptunaSearch(**settings), objective=objective)
    assert "\n" not in str(caught.value)


def test_a_sampler_whose_library_is_missing_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setattr("outplay.tune.search.samplers.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"sampler='cmaes' needs cmaes: pip install 'outplay\[tune\]'"):
        started(OptunaSearch(sampler="cmaes"))
