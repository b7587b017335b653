"""The Ray engine: a thin translation to a Ray cluster. The only folder that imports Ray.

engine.py     tasks, actors and objects, as the caller sees them
hosting.py    what runs in Ray's workers
actors.py     what Ray knows of an actor, and how actors are ended
translate.py  Ray's errors become ours
start.py      joins a cluster, or starts a Ray of our own
"""

from outplay.errors import EngineError

try:
    import ray  # noqa: F401
except ImportError as error:
    raise EngineError("engine='ray' needs Ray, which is not installed: pip install 'outplay[ray]'") from error

from outplay.engine.ray.start import start_ray_engine

__all__ = ["start_ray_engine"]
