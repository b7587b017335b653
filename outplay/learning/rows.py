"""The steps of a Batch as rows on the learner's device, of which minibatches are made."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from outplay.cudagraphs import Minibatch
from outplay.policies.recurrent import Memory

Array = np.ndarray


@dataclass
class StepRows(Minibatch):
    """The valid steps of a Batch as rows. An algorithm's subclass adds what its loss needs."""

    observations: tuple[Tensor, ...]
    actions: Tensor
    _: KW_ONLY
    mask: Tensor | None = None  # of the allowed actions
    memory: Memory | None = None  # of a recurrent network: how the rows form sequences

    def sequences(self, chosen: Array) -> Self:
        """The rows of some sequences."""
        assert self.memory is not None
        assert self.memory.lengths is not None
        ends = np.cumsum(self.memory.lengths)
        index = np.concatenate([np.arange(ends[i] - self.memory.lengths[i], ends[i]) for i in chosen])
        rows = torch.from_numpy(index).to(self.actions.device)
        return replace(self.shuffled(rows), memory=self.memory.picked(chosen, rows))

    def shuffled(self, order: Tensor) -> Self:
        return self.each(lambda tensor: _shuffled(tensor, order))

    def slice(self, begin: int, end: int) -> Self:
        return self.each(lambda tensor: tensor[begin:end])


R = TypeVar("R", bound=StepRows)


@dataclass
class TargetRows(StepRows):
    """Steps with the target of a value."""

    targets: Tensor


@dataclass
class Rows(StepRows):
    """The rows of an actor and a critic."""

    old_params: Tensor  # of the action distribution when acting
    old_log_prob: Tensor
    advantages: Tensor
    targets: Tensor  # of the value, normalised like the network's output
    intrinsic_targets: Tensor | None = None  # of the critic of intrinsic rewards


def _shuffled(tensor: Tensor, order: Tensor) -> Tensor:
    if tensor.dim() == 4:  # images are channels-last in memory: copy whole rows and keep the layout
        return tensor.permute(0, 2, 3, 1).index_select(0, order).permute(0, 3, 1, 2)
    return tensor.index_select(0, order)
