"""Search spaces: sampling, nesting, conditions, and their form in files."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outplay import tune
from outplay.errors import ConfigError
from outplay.streams import stream
from outplay.tune.objective import Objective
from outplay.tune.search import FINISHED, Variants
from outplay.tune.spaces import Space, described, parsed


def samples(domain: Any, number: int = 2000) -> list[Any]:
    rng = np.random.default_rng(0)
    return [domain.sample(rng) for _ in range(number)]


@pytest.mark.parametrize(
    ("domain", "low", "high"),
    [
        (tune.uniform(-2, 3), -2, 3),
        (tune.quniform(0.1, 1, 0.3), 0.3, 0.9),
        (tune.loguniform(1e-4, 1e-1), 1e-4, 1e-1),
        (tune.qloguniform(1, 100, 5), 5, 100),
        (tune.randint(2, 7), 2, 6),
        (tune.qrandint(0, 20, 5), 0, 20),
        (tune.lograndint(1, 50), 1, 49),
        (tune.qlograndint(4, 64, 4), 4, 64),
    ],
)
def test_values_lie_within_the_bounds_and_reach_them(domain: Any, low: float, high: float) -> None:
    drawn = samples(domain)
    assert min(drawn) >= low
    assert max(drawn) <= high
    if isinstance(drawn[0], int):
        assert (min(drawn), max(drawn)) == (low, high)


def test_multiples_of_q() -> None:
    assert set(samples(tune.quniform(0.1, 1, 0.3))) == {0.3, 0.6, 0.9}
    assert set(samples(tune.qrandint(0, 20, 5))) == {0, 5, 10, 15, 20}
    assert all(value % 0.5 == 0 for value in samples(tune.qrandn(0, 1, 0.5)))


def test_a_logarithmic_scale_has_as_many_values_in_each_decade() -> None:
    decades = np.floor(np.log10(samples(tune.loguniform(1e-4, 1e-1), 6000)))
    assert all(abs(np.mean(decades == decade) - 1 / 3) < 0.03 for decade in (-4, -3, -2))
    assert abs(np.mean(np.array(samples(tune.lograndint(1, 1000), 6000)) < 10) - 1 / 3) < 0.03


def test_randn() -> None:
    drawn = samples(tune.randn(10, 2), 5000)
    assert abs(np.mean(drawn) - 10) < 0.1
    assert abs(np.std(drawn) - 2) < 0.1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tune.uniform(3, 1), "the lower bound 3 must be below the upper bound 1"),
        (lambda: tune.loguniform(0, 1), "the lower bound must be above 0, not 0"),
        (lambda: tune.uniform("a", 1), "uniform takes two numbers"),
        (lambda: tune.randint(0, 2.5), "high of randint must be an integer, not 2.5"),
        (lambda: tune.choice([]), "choice takes a list with at least one value"),
        (lambda: tune.grid_search("abc"), "grid_search takes a list"),
        (lambda: tune.quniform(0, 1, -1), "q must be above 0, not -1"),
        (lambda: tune.sample_from(3), "sample_from takes a function of the config, not 3"),
    ],
)
def test_wrong_arguments(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        make()


def test_nested_configs_and_lists() -> None:
    space = Space({"a": {"b": tune.uniform(0, 1)}, "layers": [tune.choice([32, 64]), 8], "fixed": (1, 2)})
    assert space.names == ("a/b", "layers/0")
    assert space.config({"a/b": 0.5, "layers/0": 64}) == {"a": {"b": 0.5}, "layers": [64, 8], "fixed": (1, 2)}


def test_a_missing_and_an_unknown_value_are_named() -> None:
    space = Space({"lr": tune.uniform(0, 1)})
    with pytest.raises(ConfigError, match="the value of 'lr' is missing"):
        space.config({})
    with pytest.raises(ConfigError, match=r"no variable 'lrr'\. Did you mean 'lr'"):
        space.config({"lr": 1, "lrr": 2})


CONDITIONAL = {
    "optimizer": tune.choice([{"type": "sgd", "momentum": tune.uniform(0, 1)}, {"type": "adam"}]),
    "depth": tune.randint(1, 4),
}


def test_variables_within_a_choice_exist_only_if_it_is_chosen() -> None:
    space = Space(CONDITIONAL)
    seen = set()
    for i in range(40):
        values = space.sample(stream(0, "test", i))
        config = space.config(values)
        seen.add(config["optimizer"]["type"])
        assert ("optimizer/momentum" in values) == (config["optimizer"]["type"] == "sgd")
        assert set(config["optimizer"]) == ({"type", "momentum"} if len(values) == 3 else {"type"})
    assert seen == {"sgd", "adam"}


@given(st.integers(0, 2**31))
def test_values_survive_the_journal(seed: int) -> None:
    space = Space({**CONDITIONAL, "function": tune.choice([math.sin, math.cos]), "grid": tune.grid_search([None, "a"])})
    values = space.sample(stream(seed, "test"))
    import json

    written = json.loads(json.dumps(space.encode(values)))
    assert space.config(space.decode(written)) == space.config(values)


def test_sample_from_sees_the_other_values() -> None:
    space = Space(
        {
            "total": tune.sample_from(lambda config: config["size"] + 1),  # of another that is computed
            "size": tune.sample_from(lambda spec: 64 * spec.config.layers),  # as in Ray
            "layers": tune.grid_search([1, 2]),
            "nested": {"x": tune.sample_from(lambda config: config["nested"]["y"] * 2), "y": 4},
        }
    )
    assert space.config({"layers": 2}) == {"total": 129, "size": 128, "layers": 2, "nested": {"x": 8, "y": 4}}


def test_sample_from_that_fails_is_named() -> None:
    with pytest.raises(ConfigError, match="sample_from of 'b' raises KeyError: 'c'"):
        Space({"b": tune.sample_from(lambda config: config["c"])}).config({})


def test_variables_in_files() -> None:
    config = parsed({"lr": {"loguniform": [1e-5, 1e-2]}, "model": {"size": {"grid_search": [1, {"randint": [2, 5]}]}}})
    space = Space(config)
    assert space.names == ("lr", "model/size")
    assert space.sample(stream(0, "x"), {"model/size": config["model"]["size"].values[1]})["model/size"]
    with pytest.raises(ConfigError, match="model/size: uniform: wrong number of values"):
        parsed({"model": {"size": {"uniform": [1]}}})
    with pytest.raises(ConfigError, match="lr: loguniform takes a list, not 3"):
        parsed({"lr": {"loguniform": 3}})


@pytest.mark.parametrize(
    "domain",
    [
        tune.uniform(0, 1), tune.quniform(0, 1, 0.1), tune.loguniform(1, 2), tune.qloguniform(1, 9, 2),
        tune.randint(1, 5), tune.qrandint(0, 10, 5), tune.lograndint(1, 9), tune.qlograndint(2, 8, 2), tune.randn(1, 2),
        tune.qrandn(1, 2, 3),
        tune.choice([1, {"a": tune.uniform(0, 1)}]), tune.grid_search(["x"]),
    ],
)  # fmt: skip
def test_a_described_variable_is_read_again(domain: Any) -> None:
    assert parsed(described({"x": domain})) == {"x": domain}


# Grid and random search.


def all_of(searcher: Variants) -> list[Any]:
    found = []
    while (values := searcher.suggest(str(len(found)))) is not FINISHED:
        found.append(values)
    return found


def variants(config: dict[str, Any], num_samples: int = 1, seed: int = 0, points: Any = None) -> Variants:
    searcher = Variants(num_samples, points)
    searcher.setup(Space(config), Objective.of(None, None), seed)
    return searcher


def test_a_grid_has_all_combinations_in_order() -> None:
    found = all_of(variants({"x": tune.grid_search([1, 2]), "y": {"z": tune.grid_search(["a", "b", "c"])}}))
    assert found == [{"x": x, "y/z": z} for x in (1, 2) for z in ("a", "b", "c")]


def test_samples_repeat_the_grid_and_draw_other_values_anew() -> None:
    found = all_of(variants({"x": tune.grid_search([1, 2]), "r": tune.uniform(0, 1)}, num_samples=3))
    assert [values["x"] for values in found] == [1, 2, 1, 2, 1, 2]
    assert len({values["r"] for values in found}) == 6


def test_values_follow_from_seed_and_number() -> None:
    config = {"r": tune.uniform(0, 1)}
    assert all_of(variants(config, 5)) == all_of(variants(config, 8))[:5]
    assert all_of(variants(config, 5)) != all_of(variants(config, 5, seed=1))


def test_points_to_evaluate_come_first() -> None:
    found = all_of(variants({"a": tune.uniform(0, 1), "b": tune.uniform(0, 1)}, 2, points=[{"a": 0.5}]))
    assert len(found) == 2, "they count as samples"
    assert found[0]["a"] == 0.5
    found = all_of(variants({"a": tune.uniform(0, 1), "b": tune.grid_search([1, 2])}, 1, points=[{"a": 0.5, "b": 7}]))
    assert [values["b"] for values in found] == [7, 1, 2], "no point of the grid is left out"


@pytest.mark.parametrize("wrong", [0, -2, 1.5, True])
def test_a_wrong_number_of_samples(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="num_samples must be an integer of at least 1, or -1 for no limit"):
        Variants(wrong)
