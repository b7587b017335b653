"""How population-based training changes values."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from outplay import tune
from outplay.errors import ConfigError
from outplay.streams import stream
from outplay.tune.domains import Categorical, Domain
from outplay.tune.schedulers.mutation import (
    Drawn,
    check_variables,
    customised,
    domains,
    mutated,
    perturbed,
    with_variables,
)
from outplay.tune.spaces import Space

RNG = stream(0, "test")


@pytest.mark.parametrize(
    ("value", "factor", "domain", "expected"),
    [
        (1.0, 1.2, tune.uniform(0, 10), 1.2),
        (1.0, 0.8, tune.uniform(0, 10), 0.8),
        (9.0, 1.2, tune.uniform(0, 10), 10),  # the upper bound
        (1e-5, 0.8, tune.loguniform(1e-5, 1), 1e-5),  # the lower bound
        (1.0, 1.2, tune.quniform(0, 10, 0.5), 1.0),
        (5.0, 1.2, tune.randn(), 6.0),  # no bounds
        (10, 1.2, tune.randint(1, 100), 12),
        (2, 1.2, tune.randint(1, 100), 3),  # 2.4 would be 2 again
        (2, 0.8, tune.randint(1, 100), 1),
        (1, 0.8, tune.randint(1, 100), 1),
        (99, 1.2, tune.randint(1, 100), 99),  # randint is without its upper bound
        (-2, 1.2, tune.randint(-10, 10), -3),
        (16, 1.2, tune.qrandint(8, 64, 8), 24),
        (60, 1.2, tune.qrandint(8, 64, 8), 64),
    ],
)
def test_numbers_are_multiplied_within_bounds(value: float, factor: float, domain: Domain, expected: float) -> None:
    changed = perturbed(value, factor, domain)
    assert changed == pytest.approx(expected)
    assert type(changed) is type(value) or expected == 10


def test_both_factors_and_resampling_occur_as_often_as_their_probabilities_say() -> None:
    domain = tune.uniform(0, 10)
    found = Counter(round(mutated(1.0, domain, stream(0, "x", i), 0.25, (1.2, 0.8)), 6) for i in range(2000))
    assert found[1.2] == pytest.approx(750, abs=90)  # (1 - 0.25) / 2 of 2000; 4.5 standard deviations
    assert found[0.8] == pytest.approx(750, abs=90)
    resampled = 2000 - found[1.2] - found[0.8]
    assert resampled == pytest.approx(500, abs=90)
    assert {mutated(1.0, domain, stream(0, "x", i), 0, (2.0,)) for i in range(20)} == {2.0}
    assert len({mutated(1.0, domain, stream(0, "x", i), 1, (2.0,)) for i in range(20)}) == 20


def test_values_of_lists_move_to_a_neighbour() -> None:
    domain = Categorical((1, 2, 4, 8))
    assert {mutated(2, domain, stream(0, "x", i), 0, (1.2,)) for i in range(30)} == {1, 4}
    assert {mutated(8, domain, stream(0, "x", i), 0, (1.2,)) for i in range(30)} == {4, 8}
    assert {mutated(3, domain, stream(0, "x", i), 0, (1.2,)) for i in range(50)} == {1, 2, 4, 8}  # not in the list
    assert {mutated(2, domain, stream(0, "x", i), 1, (1.2,)) for i in range(50)} == {1, 2, 4, 8}


def test_functions_are_repeatable_and_leave_the_global_generators_alone() -> None:
    domain = Drawn(lambda: (random.random(), np.random.uniform()))
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index, union-attr]
    assert domain.sample(stream(0, "x")) == domain.sample(stream(0, "x")) != domain.sample(stream(1, "x"))
    assert before == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index, union-attr]


def test_mutations_are_found_by_path() -> None:
    def double() -> float:
        return 2.0

    given = {"lr": tune.uniform(0, 1), "model": {"layers": [1, 2], "size": double}, "a/b": (3, 4)}
    assert domains("PBT", given) == {
        "lr": tune.uniform(0, 1),
        "model/layers": Categorical((1, 2)),
        "model/size": Drawn(double),
        "a/b": Categorical((3, 4)),
    }
    for wrong in (3, [], "abc", tune.sample_from(lambda config: 1)):
        with pytest.raises(ConfigError, match="PBT: 'lr' must be a list, a Domain such as"):
            domains("PBT", {"lr": wrong})


def test_settings_become_variables() -> None:
    changed: dict[str, Domain] = {
        name: tune.uniform(0, 1) for name in ("given", "absent", "searched", "grid", "model/lr", "new/lr", "kind/lr")
    }
    kind = tune.choice([{"lr": tune.uniform(0, 1)}, {}])
    config: dict[str, Any] = {
        "given": 0.5,
        "searched": tune.uniform(0, 9),
        "grid": {"grid_search": [1]},
        "model": {"lr": 0.1, "x": 1},
        "kind": kind,
    }
    assert with_variables(config, changed) == {
        "given": Categorical((0.5,)),
        "absent": tune.uniform(0, 1),
        "searched": tune.uniform(0, 9),
        "grid": {"grid_search": [1]},
        "model": {"lr": Categorical((0.1,)), "x": 1},
        "new": {"lr": tune.uniform(0, 1)},
        "kind": kind,
    }
    assert config["model"] == {"lr": 0.1, "x": 1}
    check_variables("PBT", changed, Space(with_variables(config, changed)))
    with pytest.raises(ConfigError, match="PBT: 'lr' is not a variable of the config"):
        check_variables("PBT", {"lr": 1}, Space({"lr": 1}))


def test_custom_functions_change_variables_only() -> None:
    space = Space(
        {
            "lr": tune.uniform(0, 1),
            "twice": tune.sample_from(lambda config: 2 * config["lr"]),
            "layers": [tune.randint(1, 9), 5],
            "kind": tune.choice([{"name": "a", "x": tune.uniform(0, 1)}]),
            "env": {"id": "Pong"},
        }
    )
    values = space.sample(RNG)

    def change(**settings: Any) -> dict[str, Any]:
        return customised(values, lambda config: {**config, **settings}, space, RNG)

    assert change() == values
    changed = change(lr=0.5, layers=[7, 5], kind={"name": "a", "x": 0.25})
    assert changed == {**values, "lr": 0.5, "layers/0": 7, "kind/x": 0.25}
    assert space.config(changed)["twice"] == 1.0
    with pytest.raises(ConfigError, match="custom_explore_fn has changed 'env/id', which is not a variable"):
        change(env={"id": "Breakout"})
    with pytest.raises(ConfigError, match="custom_explore_fn must return the config, not None"):
        customised(values, lambda config: None, space, RNG)  # type: ignore[arg-type, return-value]
