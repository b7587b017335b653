"""The layers of a wrapped environment: what is found in them, and wrappers that are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

# By their names: Gymnasium's, its vectors', and those of older Gym.
_STATISTICS = {
    "NormalizeObservation": "set normalize_observations: true",
    "NormalizeReward": "use reward_scale or clip_rewards, which leave the returns in the metrics as they are",
}


def layers(env: Any) -> Iterator[Any]:
    """An environment and what it wraps, from the outside in."""
    while env is not None:
        yield env
        own = getattr(env, "__dict__", {})
        env = own.get("env", own.get("old"))  # a wrapper's, or an OldStyleEnv's


def statistics_in(env: Any) -> tuple[str, str] | None:
    """What is wrong with wrappers that normalise by running statistics, and what to do; None if there are none."""
    found = [name for layer in layers(env) if (name := type(layer).__name__) in _STATISTICS]
    if not found:
        return None
    named = f"wrapper {found[0]} keeps" if len(found) == 1 else f"wrappers {' and '.join(found)} keep"
    return (
        f"its {named} running statistics, which begin anew in every evaluation and resumed run",
        "; ".join([f"remove {'it' if len(found) == 1 else 'them'}", *(_STATISTICS[name] for name in found)]),
    )


def mask_method(env: Any) -> Callable[[], Any] | None:
    """The method `action_masks()` of an environment, or of the outermost layer that has one; None if none has."""
    found = (getattr(layer, "action_masks", None) for layer in layers(env))
    return next((method for method in found if callable(method)), None)
