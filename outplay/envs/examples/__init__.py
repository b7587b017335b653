"""Small environments that show one thing each.

>>> trainer = PPO("outplay.envs.examples:RepeatAfterMe", model={"use_lstm": True})
"""

from __future__ import annotations

from outplay.envs.examples.maze import Maze
from outplay.envs.examples.memory import CartPoleWithoutVelocities, RepeatAfterMe, TMaze

__all__ = ["CartPoleWithoutVelocities", "Maze", "RepeatAfterMe", "TMaze"]
