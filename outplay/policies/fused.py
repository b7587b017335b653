"""Several MLPs in one autograd node: a forward and a backward pass without the overhead of a node per layer.

For networks of a few hundred units on a CPU, that overhead is a third of the time of an update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

ACTIVATIONS: tuple[type[nn.Module], ...] = (nn.ReLU, nn.Tanh)  # those whose derivative follows from their output


def mlp(
    x: Tensor,
    layers: Sequence[tuple[Tensor, Tensor]],
    activation: type[nn.Module],
    dtype: torch.dtype,
    trains: bool = True,
) -> Tensor:
    """The outputs (N, B, outputs) of N MLPs with the same input x (B, inputs).

    `layers` are (weight (N, inputs, outputs), bias (N, 1, outputs)) each; the last one is linear. `dtype` is the
    precision of the hidden layers. With `trains` false, gradients flow to x, but not to the weights.
    """
    tensors = [tensor if trains else tensor.detach() for layer in layers for tensor in layer]
    outputs: Tensor = _MLP.apply(x, activation is nn.ReLU, dtype, *tensors)  # type: ignore[no-untyped-call]
    return outputs


class _MLP(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, is_relu: bool, dtype: torch.dtype, *tensors: Tensor) -> Tensor:
        weights, biases, is_cast = list(tensors[::2]), list(tensors[1::2]), dtype != torch.float32
        if is_cast:
            x, weights[:-1] = x.to(dtype), [weight.to(dtype) for weight in weights[:-1]]
            biases[:-1] = [bias.to(dtype) for bias in biases[:-1]]
        outputs = [x.expand(len(weights[0]), -1, -1)]
        for weight, bias in zip(weights[:-1], biases, strict=False):
            hidden = torch.baddbmm(bias, outputs[-1], weight)
            outputs.append(hidden.relu_() if is_relu else hidden.tanh_())
        ctx.save_for_backward(*weights, *outputs)
        ctx.is_relu, ctx.number = is_relu, len(weights)
        last = outputs[-1].float() if is_cast else outputs[-1]
        if weights[-1].shape[-1] == 1:  # a product with one column: matrix multiplication is slow for it
            return (last * weights[-1].mT).sum(-1, keepdim=True).add_(biases[-1])
        return torch.baddbmm(biases[-1], last, weights[-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        number, saved = ctx.number, ctx.saved_tensors
        weights, outputs = saved[:number], saved[number:]
        gradient, trains = gradients[0], ctx.needs_input_grad[3]
        found: list[Tensor | None] = [None] * (2 * number)  # of the weights and biases
        for i in reversed(range(number)):
            inputs, weight = outputs[i], weights[i]
            if trains:
                found[2 * i] = _of_weight(inputs.to(gradient.dtype), gradient).float()
                found[2 * i + 1] = gradient.sum(1, keepdim=True, dtype=torch.float32)
            if i == 0 and not ctx.needs_input_grad[0]:
                return None, None, None, *found
            gradient = gradient * weight.mT if weight.shape[-1] == 1 else torch.bmm(gradient, weight.mT)
            if i > 0:
                gradient = gradient.to(inputs.dtype)
                backward = torch.ops.aten.threshold_backward if ctx.is_relu else torch.ops.aten.tanh_backward
                gradient = backward(gradient, inputs, 0) if ctx.is_relu else backward(gradient, inputs)
        return gradient.sum(0, dtype=torch.float32), None, None, *found


def _of_weight(inputs: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of a weight, (N, inputs, outputs)."""
    return torch.bmm(gradient.mT, inputs).mT if gradient.shape[-1] == 1 else torch.bmm(inputs.mT, gradient)
