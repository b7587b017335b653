"""The home of a process: the reservation in which it runs, and which the tasks and actors that it starts use."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import ray
from ray.util.placement_group import PlacementGroup, get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from outplay.engine.options import first_fitting

_bundles: dict[Any, list[tuple[float, float]]] = {}  # (CPUs, GPUs) of the bundles of known groups


@dataclass(frozen=True)
class Placed:
    """Where an actor runs that this process has started in a reservation."""

    group: Any  # the id of the placement group
    bundle: int  # -1: Ray has chosen it
    gpus: float


@dataclass(frozen=True)
class Home:
    """A placement group, and the GPUs of it that this process holds."""

    group: PlacementGroup
    bundles: list[tuple[float, float]]
    own_gpus: float

    def options(
        self, cpus: float, gpus: float, is_actor: bool, placed: WeakKeyDictionary[Any, Placed]
    ) -> dict[str, Any] | None:
        """Ray's options for a task or an actor; None if it is too large for this reservation.

        Ray's actors keep their CPUs while they wait, even for tasks that wait for these CPUs. So actors in a home take
        no CPUs. Tasks do: Ray frees their CPUs while they wait.
        """
        fitting = [i for i, bundle in enumerate(self.bundles) if first_fitting(cpus, gpus, [bundle]) is not None]
        here = [actor for actor in placed.values() if actor.group == self.group.id]
        free_gpus = sum(bundle[1] for bundle in self.bundles) - self.own_gpus - sum(actor.gpus for actor in here)
        if not fitting or gpus > free_gpus + 1e-9:
            return None
        if not is_actor or gpus:
            strategy = PlacementGroupSchedulingStrategy(self.group)
        else:
            used = Counter(actor.bundle for actor in here)
            used[0] += 1  # this process itself, as a rule
            strategy = PlacementGroupSchedulingStrategy(self.group, min(fitting, key=lambda i: used[i]))
        return {"num_cpus": 0 if is_actor else cpus, "num_gpus": gpus, "scheduling_strategy": strategy}


def current_home() -> Home | None:
    """The home of the current task or actor. None for an actor that holds CPUs: it keeps them while it waits."""
    group = get_current_placement_group()
    if group is None:
        return None
    context = ray.get_runtime_context()
    held = context.get_assigned_resources()
    if context.get_actor_id() is not None and held.get("CPU"):
        return None
    if group.id not in _bundles:
        _bundles.clear()
        _bundles[group.id] = [(spec.get("CPU", 0.0), spec.get("GPU", 0.0)) for spec in group.bundle_specs]
    return Home(group, _bundles[group.id], held.get("GPU", 0.0))
