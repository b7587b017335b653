"""Several MLPs in one autograd node: a forward and a backward pass without the overhead of a node per layer.

For networks of a few hundred units on a CPU, that overhead is a large part of the time of an update.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

ACTIVATIONS: tuple[type[nn.Module], ...] = (nn.ReLU, nn.Tanh)  # those whose derivative follows from their output

# oneDNN's matrix product: that of MKL, which torch uses for float32, is slower on AMD's CPUs. None: this build of torch
# lacks it.
_ONE_DNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch._C._has_mkldnn else None
_NARROW = 16  # columns; products with fewer are faster with them as rows
_SMALL = 2**20  # multiplications; for smaller products, a call of oneDNN takes longer than that of MKL


class Layers:
    """The layers of N MLPs with the same input: weight (N, outputs, inputs) and bias (N, outputs) of each.

    With `is_one`, they are those of one MLP: (outputs, inputs) and (outputs,).

    >>> layers = Layers([weight, bias, head_weight, head_bias])
    >>> mlp(x, layers, nn.ReLU, torch.float32).shape  # (N, B, outputs)
    torch.Size([2, 256, 1])
    """

    def __init__(self, tensors: Sequence[Tensor], is_one: bool = False) -> None:
        self.tensors, self._is_one = list(tensors), is_one
        self.detached = [tensor.detach() for tensor in tensors]
        self.networks = self.split(self.detached)
        self.shapes = [tensor.shape for tensor in tensors]
        self.sizes = [tensor.numel() for tensor in tensors]

    def split(self, tensors: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """What is computed at a time: on a GPU all networks, as one batch of matrices; on a CPU one after the other."""
        is_batch = tensors[0].is_cuda
        if self._is_one:
            return [tuple(tensor[None] for tensor in tensors) if is_batch else tuple(tensors)]
        return [tuple(tensors)] if is_batch else list(zip(*(tensor.unbind() for tensor in tensors), strict=True))

    @property
    def is_valid(self) -> bool:
        """Whether the weights are where they were: they move when they become views of a flat vector."""
        return self.tensors[0].data_ptr() == self.detached[0].data_ptr()

    def __deepcopy__(self, memo: dict[int, Any]) -> Layers:
        return Layers(copy.deepcopy(self.tensors, memo), self._is_one)


def mlp(
    x: Tensor,
    layers: Layers,
    activation: type[nn.Module],
    dtype: torch.dtype,
    trains: bool = True,
    number: int | None = None,
) -> Tensor:
    """The outputs (N, B, outputs) of N MLPs with the same input x (B, inputs).

    The last layer is linear. `dtype` is the precision of the hidden layers. With `trains` false, gradients flow to x,
    but not to the weights; then `number` can choose the first networks only.
    """
    assert number is None or not trains, "gradients of weights are those of all networks"
    tensors = layers.tensors if trains else ()
    outputs: Tensor = _MLP.apply(x, layers, number, activation is nn.ReLU, dtype, *tensors)  # type: ignore[no-untyped-call]
    return outputs


class _MLP(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, layers: Layers, number: int | None, is_relu: bool, dtype: torch.dtype, *tensors: Tensor
    ) -> Tensor:
        is_cast = dtype != torch.float32
        x = x.to(dtype) if is_cast else x
        outputs: list[Tensor] = []
        saved: list[Tensor] = []
        networks = layers.networks[:number]
        if number is not None and x.is_cuda:
            networks = [tuple(tensor[:number] for tensor in networks[0])]
        for network in networks:
            weights, hidden = network[::2], x.expand(network[0].shape[0], -1, -1) if x.is_cuda else x
            if is_cast:
                weights = (*(weight.to(dtype) for weight in weights[:-1]), weights[-1])
            saved += weights
            for weight, bias in zip(weights[:-1], network[1::2], strict=False):
                saved.append(hidden)
                hidden = _hidden(hidden, weight, bias.to(dtype) if is_cast else bias, is_relu)
            hidden = hidden.float() if is_cast else hidden
            saved.append(hidden)
            outputs.append(_linear(hidden, *network[-2:]))
        ctx.save_for_backward(*saved)
        ctx.layers, ctx.is_relu, ctx.dtype, ctx.trains = layers, is_relu, dtype, bool(tensors)
        return outputs[0] if x.is_cuda else torch.stack(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        layers, saved = ctx.layers, ctx.saved_tensors
        number, of_x = len(layers.tensors) // 2, None
        found: list[Tensor] = []
        if ctx.trains:  # consecutive in memory: the optimizer needs the gradient as one vector
            flat = torch.empty(sum(layers.sizes), device=gradients[0].device)
            parts = zip(torch.split(flat, layers.sizes), layers.shapes, strict=True)
            found = [part.view(shape) for part, shape in parts]
        own = layers.split(found) if found else [()] * len(layers.networks)
        for i, of_outputs in enumerate(gradients if gradients[0].is_cuda else gradients[0].unbind()):
            start = 2 * number * i
            weights, inputs = saved[start : start + number], saved[start + number : start + 2 * number]
            gradient = _back(ctx, weights, inputs, of_outputs, own[i])
            if gradient is not None:
                of_x = gradient if of_x is None else of_x.add_(gradient)
        return of_x, None, None, None, None, *found


def _back(
    ctx: Any, weights: Sequence[Tensor], inputs: Sequence[Tensor], gradient: Tensor, found: Sequence[Tensor]
) -> Tensor | None:
    """The gradient of x by one network. Those of its weights and biases are written to `found`, unless it is empty."""
    for i in reversed(range(len(weights))):
        if found:
            found[2 * i].copy_(_product(gradient.mT, inputs[i].mT))
            torch.sum(gradient, -2, dtype=torch.float32, out=found[2 * i + 1])
        if i == 0 and not ctx.needs_input_grad[0]:
            return None
        gradient = _product(gradient, weights[i].mT)
        if i > 0:
            if ctx.is_relu:
                gradient = torch.ops.aten.threshold_backward(gradient, inputs[i], 0)
            else:
                gradient = torch.ops.aten.tanh_backward(gradient, inputs[i])
            gradient = gradient if ctx.dtype == torch.float32 else gradient.to(ctx.dtype)
    gradient = gradient.float()
    return gradient.sum(0) if gradient.is_cuda else gradient


def _hidden(x: Tensor, weight: Tensor, bias: Tensor, is_relu: bool) -> Tensor:
    """activation(x Wᵀ + b)."""
    if _is_for_one_dnn(x, weight.shape[-2]):
        hidden: Tensor = _ONE_DNN(x, weight, bias, "relu" if is_relu else "tanh", [], "")  # type: ignore[misc]
        return hidden
    hidden = _linear(x, weight, bias)
    return hidden.relu_() if is_relu else hidden.tanh_()


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x Wᵀ + b, of one network or of N."""
    if x.dim() == 2:
        return torch.mv(x, weight[0]).add_(bias)[:, None] if weight.shape[0] == 1 else torch.addmm(bias, x, weight.mT)
    if weight.shape[-2] == 1:
        return (x * weight).sum(-1, keepdim=True).add_(bias[:, None])
    return torch.baddbmm(bias[:, None], x, weight.mT)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a bᵀ, of one network or of N. Products with a vector are slow as products of matrices."""
    if a.dim() == 3:
        return a * b.mT if b.shape[-1] == 1 else torch.bmm(a, b.mT)
    if a.shape[-1] == 1:
        return a * b.mT
    if a.shape[0] == 1:
        return torch.mv(b, a[0])[None]
    if _is_for_one_dnn(a, b.shape[0]):
        product: Tensor = _ONE_DNN(a, b, None, "none", [], "")  # type: ignore[misc]
        return product
    if b.shape[0] < _NARROW:
        return torch.mm(b, a.mT).mT
    return torch.mm(a, b.mT)


def _is_for_one_dnn(x: Tensor, outputs: int) -> bool:
    return x.dtype == torch.float32 and _ONE_DNN is not None and not x.is_cuda and x.numel() * outputs >= _SMALL
