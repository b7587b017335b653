"""The forward pass of a Q-network that is an MLP, with gradients that are written out (see `passes`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outplay.policies.fused import Layers


class QPass:
    """Q-values of all actions (B, A): one head, or of two heads the dueling combination V + A − mean(A)."""

    def __init__(self, x: Tensor, hidden: Layers, heads: Sequence[tuple[Tensor, Tensor]]) -> None:
        """`heads`: weight (inputs, outputs) and bias of the advantages, and of the value if there is one, detached."""
        self._run, self._heads = hidden.run(x), heads
        self._hidden = self._run.outputs[0]
        outputs = [torch.addmm(bias, self._hidden, weight) for weight, bias in heads]
        self.outputs = outputs[0]
        if len(heads) == 2:
            self.outputs = outputs[1] + outputs[0] - outputs[0].mean(1, keepdim=True)

    def weight_gradients(self, slopes: Tensor) -> Sequence[Tensor]:
        """Slopes of the first rows only are enough, if those of the others are 0."""
        of_heads = [slopes]
        if len(self._heads) == 2:
            of_heads = [slopes - slopes.mean(1, keepdim=True), slopes.sum(1, keepdim=True)]
        hidden = self._hidden[: int(slopes.shape[0])]
        of_hidden = of_heads[0] @ self._heads[0][0].mT
        for (weight, _), gradient in zip(self._heads[1:], of_heads[1:], strict=True):
            of_hidden = of_hidden.addmm_(gradient, weight.mT)
        found = [part for gradient in of_heads for part in (gradient.mT @ hidden, gradient.sum(0))]
        return [*self._run.weight_gradients(of_hidden[None]), *found]
