"""Values become numbers for Optuna and are the same values again."""

from __future__ import annotations

import json
import statistics
from typing import Any

import numpy as np
import pytest

from outplay.errors import ConfigError
from outplay.testing.searcher import is_in
from outplay.tune import domains
from outplay.tune.domains import Domain, Integer
from outplay.tune.search.variables import Variable, Variables
from outplay.tune.spaces import Space

DOMAINS: dict[str, Domain] = {
    "uniform": domains.uniform(-1.5, 2.0),
    "loguniform": domains.loguniform(1e-5, 1.0),
    "quniform": domains.quniform(0.05, 0.7, 0.1),
    "qloguniform": domains.qloguniform(0.3, 100.0, 0.1),
    "randint": domains.randint(-3, 4),
    "one integer": domains.randint(5, 6),
    "qrandint": domains.qrandint(3, 64, 4),
    "lograndint": domains.lograndint(1, 1000),
    "qlograndint": Integer(4, 1000, log=True, q=4),
    "randn": domains.randn(10.0, 2.0),
    "qrandn": domains.qrandn(0.0, 3.0, 0.5),
    "qrandn of small q": domains.qrandn(0.0, 1.0, 0.001),
    "choice": domains.choice([1, 1.0, True, None, "1", (1, 2), [1], {"a": 1}, np.float32, float("nan")]),
}


def variable(domain: Domain) -> Variable:
    return Variables(Space({"x": domain}), "test").by_name["x"]


def numbers(x: Variable) -> list[Any]:
    d: Any = x.distribution
    if hasattr(d, "choices"):
        return list(d.choices)
    if isinstance(d.low, float):
        return [d.low, d.high, *np.linspace(d.low, d.high, 999).tolist()]
    return sorted({int(n) for n in np.linspace(d.low, d.high, 999)} | {d.low, d.high})


@pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS)
def test_every_number_is_a_value_of_the_domain_and_canonical_numbers_stay(domain: Domain) -> None:
    x = variable(domain)
    for number in numbers(x):
        value = x.decode(number)
        assert is_in(value, domain)
        canonical = x.canonical(number)
        assert x.decode(canonical) == value or value != value  # NaN is a choice here
        assert x.canonical(canonical) == canonical


@pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS)
def test_values_of_random_search_have_numbers(domain: Domain) -> None:
    x, rng, d = variable(domain), np.random.default_rng(0), variable(domain).distribution
    for _ in range(300):
        number = x.encode(domain.sample(rng))
        assert d._contains(d.to_internal_repr(number))


def test_the_bounds_are_those_of_the_domain() -> None:
    assert {variable(domains.randint(0, 3)).decode(i) for i in range(3)} == {0, 1, 2}
    assert variable(domains.randint(0, 3)).distribution.high == 2  # type: ignore[attr-defined]
    multiples = variable(domains.quniform(0.05, 0.7, 0.1))
    assert [multiples.decode(k) for k in numbers(multiples)] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    integers = variable(domains.qrandint(3, 16, 4))
    assert [integers.decode(k) for k in numbers(integers)] == [4, 8, 12, 16]


@pytest.mark.parametrize(
    ("domain", "outside"),
    [
        (domains.uniform(0, 1), [1.5, -0.1, "a", None, float("nan")]),
        (domains.randint(0, 3), [3, 1.5, "1", None]),
        (domains.quniform(0, 1, 0.25), [0.3, 1.25]),
        (domains.qloguniform(0.1, 1, 0.1), [1.2]),
        (domains.choice([1, "a"]), [True, 1.0, "b", None]),
        (domains.randn(), ["a", None]),
    ],
)
def test_values_outside_have_no_number(domain: Domain, outside: list[Any]) -> None:
    variables = Variables(Space({"x": domain}), "test")
    for value in outside:
        assert variables.encoded({"x": value}) == {}, value


def test_values_that_were_written_as_json_are_found() -> None:
    choices = [1, True, "1", 1.0, None, (1, 2), {"name": "sgd", "momentum": domains.uniform(0, 1), "betas": (1, 2)}]
    x = variable(domains.choice(choices))
    for i, value in enumerate(choices):
        assert x.encode(json.loads(json.dumps(value, default=repr))) == i


def test_uniform_numbers_become_normally_distributed_values() -> None:
    x = variable(domains.randn(10.0, 2.0))
    values = [x.decode(int(n)) for n in np.random.default_rng(0).integers(1, 2**20, 5000)]
    assert statistics.mean(values) == pytest.approx(10.0, abs=0.1)
    assert statistics.stdev(values) == pytest.approx(2.0, abs=0.1)


def test_variables_at_the_same_place_with_different_domains_are_different_variables() -> None:
    shared = {"lr": domains.uniform(0, 1)}
    space = Space(
        {
            "a": domains.choice(
                [{"n": 1, "x": domains.uniform(0, 1), **shared}, {"n": 2, "x": domains.choice([5, 6]), **shared}]
            )
        }
    )
    variables = Variables(space, "test")
    assert set(variables.by_name) == {"a", "a/x", "a/x#2", "a/lr"}
    assert variables.encoded({"a/x": 6}) == {"a/x#2": 1}
    assert variables.encoded({"a/x": 0.5}) == {"a/x": 0.5}
    assert variables.is_conditional
    assert not Variables(Space({"x": domains.uniform(0, 1)}), "test").is_conditional


def test_a_grid_within_a_choice_is_refused() -> None:
    with pytest.raises(ConfigError, match="a/x: grid_search cannot be combined with Mine"):
        Variables(Space({"a": domains.choice([{"x": domains.grid_search([1, 2])}, None])}), "Mine")


def test_a_range_without_multiples_is_refused() -> None:
    with pytest.raises(ConfigError, match="quniform: no multiple of 5 is between 1 and 2"):
        variable(domains.quniform(1, 2, 5))
