"""What a training loop calls: `report`, `get_checkpoint`, `get_context`, `get_dataset_shard`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outplay.errors import ConfigError, OutplayError, nearest
from outplay.train.shards import DatasetShard
from outplay.tune import session
from outplay.tune.checkpoint import Checkpoint

_PLACE = "a training loop; call it in the function that the trainer gets"


@dataclass(frozen=True)
class TrainContext(session.Context):
    """Facts about this worker."""

    world_rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0

    def get_world_rank(self) -> int:
        """The number of this worker, from 0 on."""
        return self.world_rank

    def get_world_size(self) -> int:
        """The number of workers."""
        return self.world_size

    def get_local_rank(self) -> int:
        """The number of this worker among those on the same machine."""
        return self.local_rank

    def get_local_world_size(self) -> int:
        """The number of workers on this machine."""
        return self.local_world_size

    def get_node_rank(self) -> int:
        """The number of this machine."""
        return self.node_rank


def report(metrics: Mapping[str, Any], checkpoint: Any = None) -> None:
    """Report metrics, and a checkpoint if there is one. All workers must call it equally often.

    The metrics of rank 0 are the result. The files of all workers' checkpoints are put into one folder.

    >>> train.report({"loss": 0.5}, checkpoint=train.Checkpoint.from_directory(folder))
    """
    if not isinstance(metrics, Mapping):
        raise OutplayError(f"train.report() takes a dict of metrics, not {metrics!r}")
    session.current("train.report()", _PLACE).report(dict(metrics), checkpoint)


def get_checkpoint() -> Checkpoint | None:
    """The newest checkpoint, if training continues from one: after a failure, or with `resume_from_checkpoint`."""
    return session.current("train.get_checkpoint()", _PLACE).checkpoint


def get_context() -> TrainContext:
    """Facts about this worker: its rank, the number of workers, the trial's name."""
    context = session.current("train.get_context()", _PLACE).context
    if isinstance(context, TrainContext):
        return context
    return TrainContext(**vars(context))  # a function that tune runs itself: one worker


def get_dataset_shard(dataset_name: str = "train") -> DatasetShard:
    """This worker's part of a data set: disjoint from the others', together the whole.

    >>> for batch in train.get_dataset_shard("train").iter_torch_batches(batch_size=32):
    ...     loss = loss_function(model(batch["x"]), batch["y"])
    """
    shards = current_shards("train.get_dataset_shard()")
    if dataset_name not in shards:
        given = f"; the trainer was given none: datasets={{{dataset_name!r}: …}}"
        raise ConfigError(
            f"there is no data set {dataset_name!r}{nearest(str(dataset_name), shards) if shards else given}"
        )
    return shards[dataset_name]


def current_shards(call: str = "a trainer") -> dict[str, DatasetShard]:
    """This worker's parts of all data sets, by name."""
    return getattr(session.current(call, _PLACE), "shards", {})
