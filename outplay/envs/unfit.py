"""Error messages for environments of the wrong kind: an instance, or code that no other program can import."""

from __future__ import annotations

from typing import Any

import gymnasium

_OF_MAKE = ("PassiveEnvChecker", "OrderEnforcing", "TimeLimit")  # wrappers that gymnasium.make adds


def instance_message(env: Any) -> str | None:
    """The error message if `env` is an environment, and not something that makes environments. Otherwise None."""
    if isinstance(env, type) or not (hasattr(env, "step") and hasattr(env, "reset")):
        return None
    spec = getattr(env, "spec", None)
    name = getattr(spec, "id", None)
    made = f"gymnasium.make({name!r})" if name else f"{_inner_class(env)}(…)"
    if isinstance(env, gymnasium.vector.VectorEnv) or hasattr(env, "num_envs"):
        made = made if name else "make_one_environment()"
        several = f"num_envs={env.num_envs}"
        return f"env is a vector of environments; give what makes one of them, env=lambda: {made}, and {several}"
    wrappers = _own_wrappers(env)
    made = "".join(f"{wrapper}(" for wrapper in wrappers) + made + ")" * len(wrappers)
    by_id = f", or its id, env={name!r}" if name and not wrappers else ""
    return f"env is one environment, and Outplay makes several; give what makes one, env=lambda: {made}{by_id}"


def _inner_class(env: Any) -> str:
    return type(getattr(env, "unwrapped", env)).__name__


def _own_wrappers(env: Any) -> list[str]:
    """The names of the wrappers around an environment, the outermost first, without those of gymnasium.make."""
    names = []
    while isinstance(env, gymnasium.Wrapper):
        names.append(type(env).__name__)
        env = env.env
    return [name for name in names if name not in _OF_MAKE]


def import_problem(path: str) -> str | None:
    """Why an import path cannot be imported by another program: a lambda, a local class, a notebook. None if it can."""
    module, _, name = path.partition(":")
    if "<lambda>" in name:
        reason = "a lambda, which has no name"
    elif "<locals>" in name:
        reason = "defined inside a function"
    elif module == "__main__":
        reason = "defined in a notebook or an interactive session"
    else:
        return None
    return (
        f"the environment {path!r} is {reason}, so that no other program can import it; give it again in Python, as in "
        "Run.resume(folder, env=…) or from_checkpoint(path, env=…), or move it to the top level of a module"
    )
