"""Replay buffers: uniform, prioritized, sharded over actors."""

from __future__ import annotations

from outplay.replay.masks import mask_leaf, with_leaf, with_masks, with_missing_masks
from outplay.replay.priorities import PrioritizedReplay, ReplaySpec, SumTree
from outplay.replay.ring import Replay, Sample, Segment
from outplay.replay.sequences import Recurrence, Sequences
from outplay.replay.shards import ShardedReplay
from outplay.replay.transitions import Transitions

__all__ = [
    "PrioritizedReplay",
    "Recurrence",
    "Replay",
    "ReplaySpec",
    "Sample",
    "Segment",
    "Sequences",
    "ShardedReplay",
    "SumTree",
    "Transitions",
    "mask_leaf",
    "with_leaf",
    "with_masks",
    "with_missing_masks",
]
