"""Settings of runs side by side."""

from __future__ import annotations

from typing import Any

from outplay.runs.comparing import differences, differing, flat_settings, group_key


def body(**config: Any) -> dict[str, Any]:
    return {"env": "CartPole-v1", "run": "PPO", "stop": {"timesteps_total": 5}, "config": {"lr": 0.1, **config}}


def test_settings_are_flat() -> None:
    found = flat_settings(body(model={"hiddens": [64], "inner": {"a": 1}}, env_config={}))
    assert found == {
        "run": "PPO",
        "env": "CartPole-v1",
        "lr": 0.1,
        "model.hiddens": [64],
        "model.inner.a": 1,
        "env_config": {},
    }
    assert flat_settings({"run": "PPO"}) == {"run": "PPO", "env": None}


def test_runs_that_differ_in_the_seed_have_one_key() -> None:
    one = group_key("poles", flat_settings(body(seed=1, num_workers=0)))
    assert one == group_key("poles", flat_settings(body(seed=2, num_workers=4)))
    assert one != group_key("poles", flat_settings(body(seed=1, num_workers=0, gamma=0.9)))
    assert one != group_key("others", flat_settings(body(seed=1, num_workers=0)))


def test_differing_settings() -> None:
    settings = [
        flat_settings(body(seed=1, num_workers=0)),
        flat_settings(body(seed=2, num_workers=4, gamma=None)),
        flat_settings({**body(seed=1, num_workers=0, gamma=0.9), "run": "DQN"}),
    ]
    assert differing(settings[:2]) == ["seed", "num_workers"]
    assert differing(settings[:1]) == []
    assert differences(settings) == ["run", "gamma"]
