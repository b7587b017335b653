"""GET /info: what is served, and what requests must contain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import outplay
from outplay.masks import mask_key
from outplay.spaces import in_one_line

if TYPE_CHECKING:
    from outplay.serve.answering import Acting


def described_policy(acting: Acting) -> dict[str, Any]:
    served, settings = acting.served, acting.settings
    policy = served.policy
    leaves = [
        {"path": list(leaf.path), "shape": list(leaf.shape), "dtype": leaf.dtype.name, "space": in_one_line(leaf.space)}
        for leaf in policy.leaves
    ]
    action_space = policy.action_space
    return {
        "outplay": outplay.__version__,
        "algorithm": served.algorithm,
        "env": served.env,
        "checkpoint": str(served.checkpoint),
        "iteration": served.iteration,
        "timesteps": served.timesteps,
        "observation_space": in_one_line(policy.observation_space),
        "observation": leaves,
        "action_space": in_one_line(action_space),
        "action": {"shape": list(action_space.shape or ()), "dtype": str(action_space.dtype or "")},
        "recurrent": served.is_recurrent,
        "mask_in_observation": mask_key(policy.observation_space),
        "binary": acting.decoder.not_binary() is None,
        "explore": settings.explore,
        "max_batch_size": settings.max_batch_size,
        "max_body_bytes": settings.max_body_bytes,
        "session_timeout_s": settings.session_timeout_s,
    }
