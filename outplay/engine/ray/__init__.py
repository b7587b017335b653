"""The Ray engine: a thin layer over Ray. The only package that imports Ray.

engine.py     the caller's side: tasks, actors and objects
hosting.py    the worker's side: runs tasks, hosts actors
homes.py      which tasks and actors use the reservation of their caller
actors.py     the state of actors, and how they are ended
translate.py  converts Ray's errors to Outplay's
start.py      joins a cluster, or starts a local Ray
"""

from outplay.errors import EngineError

try:
    import ray  # noqa: F401
except ImportError as error:
    raise EngineError("engine='ray' needs Ray, which is not installed: pip install 'outplay[ray]'") from error

from outplay.engine.ray.start import start_ray_engine

__all__ = ["start_ray_engine"]
