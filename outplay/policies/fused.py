"""Several MLPs at a time: their forward pass, and a backward pass that is written out instead of recorded by autograd.

For networks of a few hundred units on a CPU, the overhead of autograd is a large part of the time of an update.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

ACTIVATIONS: tuple[type[nn.Module], ...] = (nn.ReLU, nn.Tanh)  # those whose derivative follows from their output

_part = 0  # whose buffers are used, see `buffers_of_part`

_NARROW = 64  # columns; on a CPU, products with fewer are faster with them as rows
FEW_INPUTS = 16  # of the first layer; with fewer, what is left of float32 in lower precision is faster with MKL
_WIDE = 64  # inputs and outputs of layers whose products are worth a conversion to lower precision


class Layers:
    """The layers of N MLPs with the same input: weight (N, outputs, inputs) and bias (N, outputs) of each.

    With `is_one`, they are those of one MLP: (outputs, inputs) and (outputs,). `dtype` is the precision in which the
    matrix products of wide layers are computed; all else is float32. With `uses_linear`, wide layers of one MLP in
    float32 call oneDNN (`_linear`), which is faster than MKL on some CPUs.

    >>> layers = Layers([weight, bias, head_weight, head_bias], nn.ReLU, torch.float32)
    >>> layers.run(x).outputs.shape  # (N, B, outputs)
    torch.Size([2, 256, 1])
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        activation: type[nn.Module],
        dtype: torch.dtype,
        is_one: bool = False,
        uses_linear: bool = False,
    ) -> None:
        self.tensors, self.dtype = list(tensors), dtype
        self._activation, self._is_one, self._uses_linear = activation, is_one, uses_linear
        self.is_relu = activation is nn.ReLU
        self.shapes = [tensor[None].shape if is_one else tensor.shape for tensor in tensors]
        self.sizes = [shape.numel() for shape in self.shapes]
        self.size = sum(self.sizes)
        self.number = self.shapes[0][0]
        self.widths = [(shape[1], shape[2]) for shape in self.shapes[::2]]  # outputs and inputs of each layer
        is_wide = [min(width) >= _WIDE for width in self.widths]
        self.is_low = [dtype != torch.float32 and wide for wide in is_wide]
        uses_linear = uses_linear and is_one and dtype == torch.float32 and _has_linear(tensors[0])
        self.is_linear = [uses_linear and wide for wide in is_wide]
        self.weights, self.biases = self.split([tensor.detach() for tensor in tensors])
        self.buffers = Buffers(keeps=not tensors[0].is_cuda)  # a GPU has a fast allocator of its own
        # Whether products in float32 are those of MKL, see `ReplayLearner.products`. With vectors, oneDNN's are slow.
        self.is_mkl = dtype != torch.float32 and self.widths[0][1] < FEW_INPUTS

    def split(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Weights (N, outputs, inputs) and biases (N, 1, outputs)."""
        parts = [tensor.view(shape) for tensor, shape in zip(tensors, self.shapes, strict=True)]
        return parts[::2], [bias[:, None] for bias in parts[1::2]]

    def views(self, flat: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Weights and biases, as `split`, in one vector: by one operation each, for traces."""
        ends = list(accumulate(self.sizes, initial=0))
        shapes = [shape if len(shape) == 3 else (shape[0], 1, shape[1]) for shape in self.shapes]
        parts = [
            flat.as_strided(shape, (shape[1] * shape[2], shape[2], 1), end)
            for shape, end in zip(shapes, ends[:-1], strict=True)
        ]
        return parts[::2], parts[1::2]

    def first(self, number: int | None) -> tuple[list[Tensor], list[Tensor]]:
        """Weights and biases of the first networks only; None: of all."""
        if number is None:
            return self.weights, self.biases
        return [weight[:number] for weight in self.weights], [bias[:number] for bias in self.biases]

    def run(self, x: Tensor, number: int | None = None, columns: int | None = None, reuses: bool = True) -> MLPPass:
        """The outputs (N, B, outputs) for the input x (B, inputs), or only those of the first `number` networks.

        `columns`: how many of the last columns of x have a gradient; None: all. With `reuses`, the pass uses memory of
        the layers, so it is valid until their next pass.
        """
        return MLPPass(self, x, number, columns, self.buffers if reuses else Buffers(keeps=False))

    @property
    def is_valid(self) -> bool:
        """Whether the weights are where they were: they move when they become views of a flat vector."""
        return self.tensors[0].data_ptr() == self.weights[0].data_ptr()

    def __deepcopy__(self, memo: dict[int, Any]) -> Layers:
        tensors = copy.deepcopy(self.tensors, memo)
        found = Layers(tensors, self._activation, self.dtype, self._is_one, self._uses_linear)
        found.buffers = self.buffers
        return found


class Buffers:
    """Memory for intermediate results. If it is kept, a step finds it in the CPU's cache."""

    def __init__(self, keeps: bool) -> None:
        self._kept: dict[tuple[Any, ...], Tensor] | None = {} if keeps else None

    def get(
        self, like: Tensor, shape: tuple[int, ...], name: str, place: int = 0, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """A buffer on the device of `like`. The same arguments give the same memory."""
        if self._kept is None:
            return torch.empty(shape, dtype=dtype, device=like.device)
        # Outside of inference mode, tensors that were made in it cannot be written to.
        key = (_part, name, place, torch.is_inference_mode_enabled(), *shape)
        if key not in self._kept:
            self._kept[key] = torch.empty(shape, dtype=dtype)
        return self._kept[key]


@contextmanager
def buffers_of_part(number: int) -> Iterator[None]:
    """In this block, passes use the memory of this part: those of different parts may be computed at the same time."""
    global _part
    before, _part = _part, number
    try:
        yield
    finally:
        _part = before


class MLPPass:
    """A forward pass of MLPs, with what their backward pass needs (a `passes.ForwardPass`). Without autograd.

    All networks are computed at a time, as batches of matrices. Sizes are integers of Python: those of tensors would be
    operations in a trace.
    """

    def __init__(self, layers: Layers, x: Tensor, number: int | None, columns: int | None, buffers: Buffers) -> None:
        self._layers, self._buffers, self._columns = layers, buffers, columns
        self._weights, biases = layers.first(number)
        self._rows = number or layers.number, int(x.shape[0])
        self._inputs: list[Tensor] = []  # of each layer
        self._low: list[tuple[Tensor, Tensor] | None] = []  # input and weight in lower precision, where it is used
        hidden, last = x.expand(self._rows[0], -1, -1), len(self._weights) - 1
        for i, (weight, bias, (outputs, inputs)) in enumerate(zip(self._weights, biases, layers.widths, strict=True)):
            self._inputs.append(hidden)
            self._low.append(None)
            out = buffers.get(x, (*self._rows, outputs), "hidden", i)
            if layers.is_linear[i]:
                is_relu = layers.is_relu and i < last
                hidden = _linear(hidden[0], weight[0], bias[0, 0], "relu" if is_relu else "none")[None]
                if i < last and not is_relu:
                    hidden = hidden.tanh_()
                continue
            if layers.is_low[i]:
                self._low[i] = low = self._lower(hidden, inputs, "low", i), self._lower_weight(weight, i)
                product = buffers.get(x, (*self._rows, outputs), "product", 0, layers.dtype)
                hidden = out.copy_(torch.bmm(low[0], low[1].mT, out=product)).add_(bias)
            elif (
                outputs == 1 and not layers.is_mkl
            ):  # here and below: products with vectors are slow as products of matrices
                scaled = torch.mul(hidden, weight, out=buffers.get(x, (*self._rows, inputs), "scaled"))
                hidden = torch.sum(scaled, -1, keepdim=True, out=out).add_(bias)
            else:
                hidden = torch.baddbmm(bias, hidden, weight.mT, out=out)
            if i < last:
                hidden = hidden.relu_() if layers.is_relu else hidden.tanh_()
        self.outputs = hidden

    def weight_gradients(self, slopes: Tensor) -> Sequence[Tensor]:
        """One vector: the gradients of all tensors of the layers, one after the other."""
        return [self.backward(slopes, of_weights=True)[0]]

    def input_gradient(self, slopes: Tensor) -> Tensor:
        return self.backward(slopes, of_input=True)[1]

    def backward(self, slopes: Tensor, of_weights: bool = False, of_input: bool = False) -> tuple[Tensor, Tensor]:
        """(gradient of the layers' tensors as one vector, gradient of the last columns of x); empty if not wanted."""
        # A trace leaves out what it takes for useless. So results of operations are used, not only what they write to,
        # and the vector is made here, not before.
        layers, gradient = self._layers, slopes
        flat, of_x = torch.empty(layers.size if of_weights else 0, device=slopes.device), slopes
        weights, biases = layers.views(flat) if of_weights else ([], [])
        for i in reversed(range(len(self._inputs))):
            x, low, weight, (outputs, inputs) = self._inputs[i], self._low[i], self._weights[i], layers.widths[i]
            short = None if low is None else self._lower(gradient, outputs, "short")
            if of_weights:
                torch.sum(gradient, -2, keepdim=True, out=biases[i])
                if layers.is_linear[i]:
                    weights[i].copy_(_linear(gradient[0].mT, x[0].mT)[None])
                elif low is None or short is None:
                    self._write_of_weight(gradient, x, layers.widths[i], weights[i])
                else:
                    of_weight = self._buffers.get(x, tuple(layers.shapes[2 * i]), "of weight", 0, layers.dtype)
                    weights[i].copy_(torch.bmm(short.mT, low[0], out=of_weight))
            if i == 0:
                break
            out = self._buffers.get(x, (*self._rows, inputs), "gradient", i % 2)
            if layers.is_linear[i]:
                gradient = _linear(gradient[0], weight[0].mT)[None]
            elif low is None or short is None:
                gradient = self._through(gradient, weight, (outputs, inputs), out)
            else:
                product = self._buffers.get(x, (*self._rows, inputs), "product", 0, layers.dtype)
                gradient = out.copy_(torch.bmm(short, low[1], out=product))
            if layers.is_relu:
                gradient = torch.ops.aten.threshold_backward.grad_input(gradient, x, 0, grad_input=gradient)
            else:
                gradient = torch.ops.aten.tanh_backward.grad_input(gradient, x, grad_input=gradient)
        if of_input:
            outputs, inputs = layers.widths[0]
            columns = inputs if self._columns is None else self._columns
            weight = self._weights[0] if columns == inputs else self._weights[0][..., -columns:]
            out = self._buffers.get(slopes, (*self._rows, columns), "gradient", 0)
            of_x = self._through(gradient, weight, (outputs, columns), out).sum(0)
        return flat, of_x

    def _lower(self, x: Tensor, width: int, name: str, place: int = 0) -> Tensor:
        return self._buffers.get(x, (*self._rows, width), name, place, self._layers.dtype).copy_(x)

    def _lower_weight(self, weight: Tensor, layer: int) -> Tensor:
        shape = self._rows[0], *self._layers.widths[layer]
        return self._buffers.get(weight, shape, "weight", layer, self._layers.dtype).copy_(weight)

    def _through(self, gradient: Tensor, weight: Tensor, widths: tuple[int, int], out: Tensor) -> Tensor:
        """The gradient of a layer's input, from that of its output."""
        outputs, inputs = widths
        if outputs == 1:
            return torch.mul(gradient, weight, out=out)
        if inputs == 1 and not self._layers.is_mkl:
            scaled = self._buffers.get(gradient, (*self._rows, outputs), "scaled")
            return torch.sum(torch.mul(gradient, weight.mT, out=scaled), -1, keepdim=True, out=out)
        return torch.bmm(gradient, weight, out=out)

    def _write_of_weight(self, gradient: Tensor, x: Tensor, widths: tuple[int, int], out: Tensor) -> None:
        """gradientᵀ x, (N, outputs, inputs)."""
        outputs, inputs = widths
        if outputs == 1 and not self._layers.is_mkl:
            scaled = self._buffers.get(x, (*self._rows, inputs), "scaled")
            torch.sum(torch.mul(gradient, x, out=scaled), -2, keepdim=True, out=out)
        elif inputs < _NARROW < outputs:
            rows = self._buffers.get(x, (self._rows[0], inputs, outputs), "narrow")
            out.copy_(torch.bmm(x.mT, gradient, out=rows).mT)
        else:
            torch.bmm(gradient.mT, x, out=out)


# The operation of torch's compiler for CPUs. In TorchScript, since a trace cannot record its list of scalars.
_LINEAR = """
def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor], activation: str) -> Tensor:
    scalars: List[Optional[Union[int, float, complex]]] = []
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, activation, scalars, "")
"""


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none") -> Tensor:
    """activation(x weightᵀ + bias) for matrices in any layout, in float32 on a CPU: one call of oneDNN.

    `torch.addmm` and the like use MKL, whose large products take up to twice as long on CPUs of AMD, or oneDNN for all
    products (`traces.one_dnn`), where narrow ones take several times as long.
    """
    product: Tensor = _scripted_linear()(x, weight, bias, activation)
    return product


@functools.cache
def _scripted_linear() -> Any:
    return torch.jit.CompilationUnit(_LINEAR).linear


def _has_linear(tensor: Tensor) -> bool:
    """Whether this torch has `_linear` for the device of the tensor."""
    has_script = hasattr(torch, "jit") and sys.version_info < (3, 14)
    has_operation = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return tensor.device.type == "cpu" and has_script and has_operation


def mlp(x: Tensor, layers: Layers, trains: bool = True, number: int | None = None) -> Tensor:
    """The outputs (N, B, outputs) of N MLPs with the same input x (B, inputs), for autograd.

    With `trains` false, gradients flow to x, but not to the weights; then `number` can choose the first networks only.
    """
    assert number is None or not trains, "gradients of weights are those of all networks"
    if not torch.is_grad_enabled():
        return layers.run(x, number).outputs.clone()
    outputs: Tensor = _MLP.apply(x, layers, number, *(layers.tensors if trains else ()))  # type: ignore[no-untyped-call]
    return outputs


class _MLP(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layers: Layers, number: int | None, *tensors: Tensor) -> Tensor:
        ctx.run, ctx.layers, ctx.trains = layers.run(x, number, reuses=False), layers, bool(tensors)
        outputs: Tensor = ctx.run.outputs
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        layers: Layers = ctx.layers
        flat, of_x = ctx.run.backward(gradients[0], ctx.trains, ctx.needs_input_grad[0])
        found: list[Tensor] = []
        if ctx.trains:  # consecutive in memory: the optimizer needs the gradient as one vector
            parts = zip(torch.split(flat, layers.sizes), layers.tensors, strict=True)
            found = [part.view(tensor.shape) for part, tensor in parts]
        return of_x if ctx.needs_input_grad[0] else None, None, None, *found
