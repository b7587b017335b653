"""The layers of a wrapped environment: finds action masks, and wrappers that break exact resume."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

# By class name, because Gymnasium, its vector package and older Gym each have their own class.
_STATISTICS = {
    "NormalizeObservation": "set normalize_observations: true",
    "NormalizeReward": "use reward_scale or clip_rewards, which do not change the returns in the metrics",
}


def layers(env: Any) -> Iterator[Any]:
    """An environment and its wrapped layers, outermost first."""
    while env is not None:
        yield env
        own = getattr(env, "__dict__", {})
        env = own.get("env", own.get("old"))  # attribute of a wrapper, or of an OldStyleEnv


def statistics_in(env: Any) -> tuple[str, str] | None:
    """(problem, remedy) if a wrapper normalises with running statistics, else None."""
    found = [name for layer in layers(env) if (name := type(layer).__name__) in _STATISTICS]
    if not found:
        return None
    named = f"wrapper {found[0]} keeps" if len(found) == 1 else f"wrappers {' and '.join(found)} keep"
    return (
        f"its {named} running statistics, which are reset in every evaluation and resumed run",
        "; ".join([f"remove {'it' if len(found) == 1 else 'them'}", *(_STATISTICS[name] for name in found)]),
    )


def mask_method(env: Any) -> Callable[[], Any] | None:
    """The method `action_masks()` of the outermost layer that has one, or None."""
    found = (getattr(layer, "action_masks", None) for layer in layers(env))
    return next((method for method in found if callable(method)), None)
