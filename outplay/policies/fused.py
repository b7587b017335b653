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


class Parameters:
    """Weights (N, outputs, inputs) and biases (N, 1, outputs) of layers, and other views of them."""

    def __init__(self, weights: list[Tensor], biases: list[Tensor]) -> None:
        self.weights, self.biases = weights, biases
        self.transposed = [weight.mT for weight in weights]
        # Of the first network, as matrices and vectors.
        self.matrices = [(weight[0], weight[0].mT, bias[0, 0]) for weight, bias in zip(weights, biases, strict=True)]


class Layers:
    """The layers of N MLPs with the same input: weight (N, outputs, inputs) and bias (N, outputs) of each.

    With `is_one`, they are those of one MLP: (outputs, inputs) and (outputs,). `dtype` is the precision in which the
    matrix products of wide layers are computed; all else is float32. With `uses_linear`, wide layers of one MLP in
    float32 call oneDNN (`_linear`), which is faster than MKL on some CPUs. With `activates_last`, there is an
    activation after the last layer, too: heads follow.

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
        activates_last: bool = False,
    ) -> None:
        self.tensors, self.dtype = list(tensors), dtype
        self._activation, self._is_one, self._uses_linear = activation, is_one, uses_linear
        self.activates_last = activates_last
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
        self._first: dict[int | None, Parameters] = {}
        self.buffers = Buffers(keeps=not tensors[0].is_cuda)  # a GPU has a fast allocator of its own
        # Whether products in float32 are those of MKL, see `ReplayLearner.products`. With vectors, oneDNN's are slow.
        self.is_mkl = dtype != torch.float32 and self.widths[0][1] < FEW_INPUTS

    def split(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Weights (N, outputs, inputs) and biases (N, 1, outputs)."""
        parts = [tensor.view(shape) for tensor, shape in zip(tensors, self.shapes, strict=True)]
        return parts[::2], [bias[:, None] for bias in parts[1::2]]

    def first(self, number: int | None) -> Parameters:
        """Those of the first networks only; None: of all. Made once, so that their views are constants of traces."""
        if number not in self._first:
            self._first[number] = Parameters(
                [weight[:number] for weight in self.weights], [bias[:number] for bias in self.biases]
            )
        return self._first[number]

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
        found = Layers(tensors, self._activation, self.dtype, self._is_one, self._uses_linear, self.activates_last)
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
        self._parameters = parameters = layers.first(number)
        self._rows = number or layers.number, int(x.shape[0])
        self._inputs: list[Tensor] = []  # of each layer
        self._low: list[tuple[Tensor, Tensor] | None] = []  # input and weight in lower precision, where it is used
        hidden, activated = x.expand(self._rows[0], -1, -1), len(layers.widths) - (not layers.activates_last)
        for i, (outputs, inputs) in enumerate(layers.widths):
            weight, transposed, bias = parameters.weights[i], parameters.transposed[i], parameters.biases[i]
            self._inputs.append(hidden)
            self._low.append(None)
            if layers.is_linear[i]:
                matrix, _, vector = parameters.matrices[i]
                is_relu = layers.is_relu and i < activated
                hidden = _linear(hidden[0], matrix, vector, "relu" if is_relu else "none")[None]
                if i < activated and not is_relu:
                    hidden = hidden.tanh_()
                continue
            out = buffers.get(x, (*self._rows, outputs), "hidden", i)
            if layers.is_low[i]:
                low = self._lower(hidden, (*self._rows, inputs), "low", i), self._lower_weight(weight, i)
                self._low[i] = low
                product = buffers.get(x, (*self._rows, outputs), "product", 0, layers.dtype)
                hidden = out.copy_(torch.bmm(low[0], low[1].mT, out=product)).add_(bias)
            elif (
                outputs == 1 and not layers.is_mkl
            ):  # here and below: products with vectors are slow as products of matrices
                scaled = torch.mul(hidden, weight, out=buffers.get(x, (*self._rows, inputs), "scaled"))
                hidden = torch.sum(scaled, -1, keepdim=True, out=out).add_(bias)
            else:
                hidden = torch.baddbmm(bias, hidden, transposed, out=out)
            if i < activated:
                hidden = hidden.relu_() if layers.is_relu else hidden.tanh_()
        self.outputs = hidden

    def weight_gradients(self, slopes: Tensor) -> Sequence[Tensor]:
        """The gradients of all tensors of the layers, one after the other, mostly as one vector.

        Slopes of the first rows only are enough, if those of the others are 0.
        """
        return self.backward(slopes, of_weights=True)[0]

    def input_gradient(self, slopes: Tensor) -> Tensor:
        return self.backward(slopes, of_input=True)[1]

    def backward(
        self, slopes: Tensor, of_weights: bool = False, of_input: bool = False
    ) -> tuple[Sequence[Tensor], Tensor]:
        """(gradients of the layers' tensors, gradient of the last columns of x); empty if not wanted."""
        # A trace leaves out what it takes for useless. So results of operations are used, not only what they write to,
        # and the vector is made here, not before.
        layers, rows = self._layers, (self._rows[0], int(slopes.shape[1]))
        gradient, of_x = slopes, slopes
        if layers.activates_last:
            out = self._buffers.get(slopes, (*rows, layers.widths[-1][0]), "gradient", len(layers.widths) % 2)
            gradient = self._through_activation(slopes, self._first_rows(self.outputs, rows[1]), out)
        gradients = _Gradients(layers, slopes) if of_weights else None
        for i in reversed(range(len(self._inputs))):
            x, low, (outputs, inputs) = self._first_rows(self._inputs[i], rows[1]), self._low[i], layers.widths[i]
            short = None if low is None else self._lower(gradient, (*rows, outputs), "short")
            if gradients is not None:
                if layers.is_linear[i]:
                    gradients.add(i, _linear(gradient[0].mT, x[0].mT), gradient[0].sum(0))
                else:
                    weight, bias = gradients.views(i)
                    bias = torch.sum(gradient, -2, keepdim=True, out=bias)
                    if low is None or short is None:
                        weight = self._of_weight(gradient, x, layers.widths[i], weight)
                    else:
                        of_weight = self._buffers.get(x, tuple(layers.shapes[2 * i]), "of weight", 0, layers.dtype)
                        weight = weight.copy_(torch.bmm(short.mT, self._first_rows(low[0], rows[1]), out=of_weight))
                    gradients.add(i, weight, bias)
            if i == 0:
                break
            out = self._buffers.get(x, (*rows, inputs), "gradient", i % 2)
            if layers.is_linear[i]:
                gradient = _linear(gradient[0], self._parameters.matrices[i][1])[None]
                out = gradient
            elif low is None or short is None:
                gradient = self._through(gradient, self._parameters.weights[i], (outputs, inputs), out)
            else:
                product = self._buffers.get(x, (*rows, inputs), "product", 0, layers.dtype)
                gradient = out.copy_(torch.bmm(short, low[1], out=product))
            gradient = self._through_activation(gradient, x, out)
        if of_input:
            outputs, inputs = layers.widths[0]
            columns = inputs if self._columns is None else self._columns
            weight = self._parameters.weights[0]
            weight = weight if columns == inputs else weight[..., -columns:]
            out = self._buffers.get(slopes, (*rows, columns), "gradient", 0)
            of_x = self._through(gradient, weight, (outputs, columns), out).sum(0)
        return [] if gradients is None else gradients.found(), of_x

    def _first_rows(self, x: Tensor, rows: int) -> Tensor:
        return x if rows == self._rows[1] else x[:, :rows]

    def _through_activation(self, gradient: Tensor, activated: Tensor, out: Tensor) -> Tensor:
        """The gradient before an activation, from that after it and from its outputs."""
        if self._layers.is_relu:
            before: Tensor = torch.ops.aten.threshold_backward.grad_input(gradient, activated, 0, grad_input=out)
        else:
            before = torch.ops.aten.tanh_backward.grad_input(gradient, activated, grad_input=out)
        return before

    def _lower(self, x: Tensor, shape: tuple[int, ...], name: str, place: int = 0) -> Tensor:
        return self._buffers.get(x, shape, name, place, self._layers.dtype).copy_(x)

    def _lower_weight(self, weight: Tensor, layer: int) -> Tensor:
        shape = self._rows[0], *self._layers.widths[layer]
        return self._buffers.get(weight, shape, "weight", layer, self._layers.dtype).copy_(weight)

    def _through(self, gradient: Tensor, weight: Tensor, widths: tuple[int, int], out: Tensor) -> Tensor:
        """The gradient of a layer's input, from that of its output."""
        outputs, inputs = widths
        rows = int(gradient.shape[1])
        if outputs == 1:
            return torch.mul(gradient, weight, out=out)
        if inputs == 1 and not self._layers.is_mkl:
            scaled = self._buffers.get(gradient, (self._rows[0], rows, outputs), "scaled")
            return torch.sum(torch.mul(gradient, weight.mT, out=scaled), -1, keepdim=True, out=out)
        return torch.bmm(gradient, weight, out=out)

    def _of_weight(self, gradient: Tensor, x: Tensor, widths: tuple[int, int], out: Tensor) -> Tensor:
        """gradientᵀ x, (N, outputs, inputs)."""
        outputs, inputs = widths
        if outputs == 1 and not self._layers.is_mkl:
            scaled = self._buffers.get(x, (self._rows[0], int(gradient.shape[1]), inputs), "scaled")
            return torch.sum(torch.mul(gradient, x, out=scaled), -2, keepdim=True, out=out)
        if inputs < _NARROW < outputs:
            rows = self._buffers.get(x, (self._rows[0], inputs, outputs), "narrow")
            return out.copy_(torch.bmm(x.mT, gradient, out=rows).mT)
        return torch.bmm(gradient.mT, x, out=out)


class _Gradients:
    """The gradients of the layers' tensors: one vector, or, where `_linear` makes new tensors, one of each."""

    def __init__(self, layers: Layers, like: Tensor) -> None:
        self._shapes, self._starts = layers.shapes, list(accumulate(layers.sizes, initial=0))
        self._flat = None if any(layers.is_linear) else torch.empty(layers.size, device=like.device)
        self._parts: list[Tensor] = [like] * len(self._shapes)

    def views(self, layer: int) -> tuple[Tensor, Tensor]:
        """Memory for the gradients of a layer's weight (N, outputs, inputs) and bias (N, 1, outputs)."""
        number, outputs, inputs = self._shapes[2 * layer]
        return self._memory(2 * layer, (number, outputs, inputs)), self._memory(2 * layer + 1, (number, 1, outputs))

    def _memory(self, part: int, shape: tuple[int, int, int]) -> Tensor:
        if self._flat is None:
            return torch.empty(shape)
        # By one operation, for traces.
        return self._flat.as_strided(shape, (shape[1] * shape[2], shape[2], 1), self._starts[part])

    def add(self, layer: int, weight: Tensor, bias: Tensor) -> None:
        self._parts[2 * layer : 2 * layer + 2] = weight, bias

    def found(self) -> list[Tensor]:
        return self._parts if self._flat is None else [self._flat]


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
        vector, of_x = ctx.run.backward(gradients[0], ctx.trains, ctx.needs_input_grad[0])
        found: list[Tensor] = []
        if ctx.trains:  # consecutive in memory: the optimizer needs the gradient as one vector
            parts = zip(torch.split(vector[0], layers.sizes), layers.tensors, strict=True)
            found = [part.view(tensor.shape) for part, tensor in parts]
        return of_x if ctx.needs_input_grad[0] else None, None, None, *found
