"""Creates the vector of an environment: a native vector if one exists and can be restored, else the Python vector."""

from __future__ import annotations

import gymnasium

from outplay.envs.lookup import EnvSpec
from outplay.envs.native import AtariVector, CartPoleVector, EnvPoolVector
from outplay.envs.vector import PythonVector, Vector
from outplay.errors import EnvError
from outplay.spaces import check_action_space

# Gymnasium's vectors whose state can be saved and restored: entry point -> (adapter class, arguments it accepts).
_ADAPTERS = {
    "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv": (CartPoleVector, {"sutton_barto_reward"}),
}


def has_native_vector(spec: EnvSpec) -> bool:
    """Whether a native vector runs this environment."""
    return spec.is_atari or spec.is_envpool or _adapter(spec) is not None


def make_vector(spec: EnvSpec, num_envs: int, num_threads: int = 1, separate: bool = False) -> Vector:
    """Create a vector of `num_envs` environments. `num_threads` is for native vectors that step in threads.

    With `separate`, lanes that wait for other lanes to end their episodes cost nothing.
    """
    spec.register()
    vector: Vector
    if spec.is_atari:
        vector = AtariVector(spec, num_envs, num_threads, separate)
    elif spec.is_envpool:
        vector = EnvPoolVector(spec, num_envs, num_threads)
    elif (adapter := _adapter(spec)) is not None:
        vector = adapter(spec, num_envs)
    else:
        vector = PythonVector(spec, num_envs)
    try:
        check_action_space(vector.action_space)
    except EnvError:
        vector.close()
        raise
    return vector


def _adapter(spec: EnvSpec) -> type[CartPoleVector] | None:
    if spec.factory is not None or spec.frame_stack > 1 or spec.id not in gymnasium.registry:
        return None
    entry_point = gymnasium.registry[spec.id].vector_entry_point
    adapter, arguments = _ADAPTERS.get(str(entry_point), (None, set()))
    return adapter if adapter is not None and set(spec.env_config) <= arguments else None
