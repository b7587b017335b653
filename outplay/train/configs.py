"""The settings of a trainer, with the names and defaults of Ray Train's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outplay import tune
from outplay.arguments import integer, real
from outplay.errors import ConfigError, nearest

_BACKENDS = ("gloo", "nccl", "mpi")
_LONGEST_S = 10**9  # what the clocks of torch can count
_RESOURCES = {"CPU": "cpu", "GPU": "gpu", "cpu": "cpu", "gpu": "gpu"}


@dataclass
class ScalingConfig:
    """How many workers train, and what each of them gets.

    num_workers           number of worker processes
    use_gpu               whether each worker has a GPU
    resources_per_worker  {"CPU": 2, "GPU": 0.5}; default: one CPU, and with `use_gpu` one GPU
    """

    num_workers: int = 1
    use_gpu: bool = False
    resources_per_worker: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        self.num_workers = integer(self.num_workers, "num_workers", 1)
        if not isinstance(self.use_gpu, bool):
            raise ConfigError(f"use_gpu must be True or False, not {self.use_gpu!r}")
        if not isinstance(self.resources_per_worker, Mapping | None):
            raise ConfigError(f"resources_per_worker must be as {{'CPU': 1}}, not {self.resources_per_worker!r}")
        for name, value in (self.resources_per_worker or {}).items():
            if name not in _RESOURCES:
                raise ConfigError(f"resources_per_worker: no resource {name!r}{nearest(str(name), ('CPU', 'GPU'))}")
            real(value, f"resources_per_worker: {name}", 0)
        if not self.use_gpu and self.worker_resources["gpu"]:
            raise ConfigError("resources_per_worker has a GPU, but use_gpu is False; set use_gpu=True")

    @property
    def worker_resources(self) -> dict[str, float]:
        """{"cpu": 1, "gpu": 0}: what one worker gets."""
        given = {_RESOURCES[name]: value for name, value in (self.resources_per_worker or {}).items()}
        return {"cpu": 1, "gpu": 1 if self.use_gpu else 0, **given}

    @property
    def bundles(self) -> list[dict[str, float]]:
        """What is reserved: a bundle for each worker.

        The process that waits for the workers takes the CPUs of the first bundle, and lends them. A GPU cannot be
        lent, so with GPUs that process has a bundle of its own.
        """
        one: dict[str, float] = {name: value for name, value in self.worker_resources.items() if value}
        own: list[dict[str, float]] = [{"cpu": 1}] if "gpu" in one or not one else []
        return own + [one] * (self.num_workers if one else 0)


@dataclass
class CheckpointConfig(tune.CheckpointConfig):
    """Which checkpoints are kept. A training loop says itself when one is written: `train.report(…, checkpoint=…)`.

    num_to_keep                 how many are kept, the newest always among them; None: all
    checkpoint_score_attribute  a metric: those with the best values are kept; None: the newest
    checkpoint_score_order      "max" or "min"
    """

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: str = "max"

    def __post_init__(self) -> None:
        if self.num_to_keep is not None:
            self.num_to_keep = integer(self.num_to_keep, "num_to_keep", 1)
        if self.checkpoint_score_order not in ("max", "min"):
            raise ConfigError(f"checkpoint_score_order must be 'max' or 'min', not {self.checkpoint_score_order!r}")
        if self.checkpoint_frequency or self.checkpoint_at_end:
            raise ConfigError(
                "a training loop writes its checkpoints itself: train.report(metrics, checkpoint=…); "
                "checkpoint_frequency and checkpoint_at_end are for trials of tune"
            )


@dataclass
class RunConfig(tune.RunConfig):
    """Where results are stored, when training stops, how failures are handled."""

    checkpoint_config: tune.CheckpointConfig = field(default_factory=CheckpointConfig)


@dataclass
class TorchConfig:
    """The process group of torch.distributed.

    backend    "gloo", "nccl" or "mpi", another that torch knows, or one for each device ("cpu:gloo,cuda:nccl");
               default: nccl with GPUs, gloo without
    timeout_s  seconds after which a collective operation fails
    """

    backend: str | None = None
    timeout_s: float = 1800.0

    def __post_init__(self) -> None:
        if not isinstance(self.backend, str | None):
            raise ConfigError(f"backend must be the name of a backend of torch.distributed, not {self.backend!r}")
        known = [*_BACKENDS, *_registered_backends(self.backend)]
        for name in [] if self.backend is None else self.backend.split(","):
            if (own := name.rpartition(":")[2].strip().lower()) not in known:
                raise ConfigError(f"backend: there is no backend {own!r}{nearest(own, known)}")
        if not 0 < real(self.timeout_s, "timeout_s") <= _LONGEST_S:
            raise ConfigError(f"timeout_s must be more than 0 and at most {_LONGEST_S:,} seconds, not {self.timeout_s}")

    @property
    def needs_gpus(self) -> bool:
        return self.backend is not None and self.backend.strip().lower() == "nccl"


def _registered_backends(name: str | None) -> list[str]:
    """Backends that torch knows beside the usual ones; torch is imported only if one of them is needed."""
    if name is None or name.lower() in _BACKENDS:
        return []
    from torch.distributed import Backend

    return [each for each in Backend.backend_list if each not in (*_BACKENDS, "undefined")]


def checked_loop_config(given: Any, name: str) -> dict[str, Any]:
    """A dict of settings for a training loop."""
    if not isinstance(given, Mapping | None):
        raise ConfigError(f"{name} must be a dict, not {given!r}")
    return dict(given or {})
