"""The forward pass of a Q-network that is an MLP, with gradients that are written out (see `passes`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outplay.policies.fused import Layers


class QPass:
    """Q-values of all actions (B, A): one head, or of two heads the dueling combination V + A − mean(A)."""

    def __init__(self, x: Tensor, hidden: Layers, heads: Sequence[tuple[Tensor, Tensor]]) -> None:
        """`heads`: weight and bias of the advantages, and of the value if there is one, without autograd."""
        self._run, self._is_relu, self._heads = hidden.run(x), hidden.is_relu, heads
        last = self._run.outputs[0]
        self._hidden = last.relu_() if self._is_relu else last.tanh_()
        outputs = [torch.addmm(bias, self._hidden, weight.mT) for weight, bias in heads]
        self.outputs = outputs[0]
        if len(heads) == 2:
            self.outputs = outputs[1] + outputs[0] - outputs[0].mean(1, keepdim=True)

    def weight_gradients(self, slopes: Tensor) -> Sequence[Tensor]:
        of_heads = [slopes]
        if len(self._heads) == 2:
            of_heads = [slopes - slopes.mean(1, keepdim=True), slopes.sum(1, keepdim=True)]
        found: list[Tensor] = []
        of_hidden = torch.zeros_like(self._hidden)
        for (weight, _), gradient in zip(self._heads, of_heads, strict=True):
            found += [gradient.mT @ self._hidden, gradient.sum(0)]
            of_hidden.addmm_(gradient, weight)
        if self._is_relu:
            of_hidden = torch.ops.aten.threshold_backward(of_hidden, self._hidden, 0)
        else:
            of_hidden = torch.ops.aten.tanh_backward(of_hidden, self._hidden)
        return [*self._run.weight_gradients(of_hidden[None]), *found]
