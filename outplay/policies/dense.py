"""Inference in numpy for small batches, where the call overhead of torch is several times the computation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from gymnasium import spaces
from torch import nn

from outplay.policies.encoder import CLIP_RANGE
from outplay.policies.network import Network
from outplay.policies.sparse import SparseLinear
from outplay.sequences import Padded
from outplay.spaces import Leaves

Array = np.ndarray

_Layer = Callable[[Array], Array]

_ACTIVATIONS: dict[type[nn.Module], _Layer] = {  # in place
    nn.Tanh: lambda x: np.tanh(x, out=x),
    nn.ReLU: lambda x: np.maximum(x, 0, out=x),
    nn.Identity: lambda x: x,
}
_NOT_VECTORS = (spaces.Discrete, spaces.MultiDiscrete, Padded)
_FEW_ROWS, _FEW_SPARSE_ROWS = 4, 10
_LONGEST_SUM = 4096  # BLAS may split longer sums among threads: rounding would depend on the number of threads


class Dense:
    """A frozen MLP in numpy: vector observations, linear layers, with or without LayerNorm, one linear head. The first
    layer may be sparse.

    >>> if (dense := Dense.of(policy.network)) and len(observations[0]) <= dense.most_rows:
    ...     outputs = dense(observations)  # (B, P): the network's outputs, up to rounding
    """

    def __init__(self, network: Network, head: tuple[Array, Array]) -> None:
        layers = list(network.hidden)
        self._layers = [_LAYERS.get(type(layer), _activation)(layer) for layer in layers]
        self._is_sparse = bool(layers) and isinstance(layers[0], SparseLinear)
        # For larger batches torch is faster, since its cost hardly grows with each row.
        self.most_rows = _FEW_SPARSE_ROWS if self._is_sparse else _FEW_ROWS
        self._head = head
        self._normalisers = [None if n is None else (_array(n[0]), _array(n[1])) for n in network.normalisers()]

    @classmethod
    def of(cls, network: Network) -> Self | None:
        """Convert a network. None if it has images, one-hot inputs, sequences, noisy layers, a recurrent core, a custom
        model, a preprocessor or a distributional head, or has to act in lower precision."""
        if network.autocasts and not network.may_act_in_float32:
            return None
        if network.core is not None or network.is_custom or network.preprocessor is not None:
            return None
        layers = list(network.hidden)
        if any(leaf.is_image or isinstance(leaf.space, _NOT_VECTORS) for leaf in network.leaves):
            return None
        if not all(type(layer) in (*_LAYERS, *_ACTIVATIONS) for layer in layers):
            return None
        inputs = 0 if layers and isinstance(layers[0], SparseLinear) else network.encoder.num_features
        if max(inputs, network.num_hidden, *map(_width, layers)) > _LONGEST_SUM:
            return None
        head = network.head()
        return None if head is None else cls(network, (_array(head[0]), _array(head[1])))

    def __call__(self, observations: Leaves) -> Array:
        """The outputs (B, P). Each row is computed separately, so it does not depend on the batch."""
        with np.errstate(over="ignore", invalid="ignore"):  # values that are not finite are reported with the Fragment
            x = self._features(observations)
            for layer in self._layers:
                x = layer(x)
            outputs: Array = np.vecdot(self._head[0], x[:, None])
            outputs += self._head[1]
        return outputs

    def _features(self, observations: Leaves) -> Array:
        parts = []
        for x, normaliser in zip(observations, self._normalisers, strict=True):
            if normaliser is not None:
                x = x if x.dtype.kind == "f" else x.astype(np.float32)  # as torch does, not in doubles
                x = ((x - normaliser[0]) * normaliser[1]).clip(-CLIP_RANGE, CLIP_RANGE)
            parts.append(x.reshape(len(x), -1))
        features = parts[0] if len(parts) == 1 else np.concatenate(parts, -1)
        if self._is_sparse:  # which sums row by row, in the order of the inputs
            return np.ascontiguousarray(features)
        return np.ascontiguousarray(features, np.float32)  # the memory layout changes the order of summation


def _linear(layer: Any) -> _Layer:
    weight, bias = _array(layer.weight), None if layer.bias is None else _array(layer.bias)

    def apply(x: Array) -> Array:
        outputs: Array = np.vecdot(weight, x[:, None])
        if bias is not None:
            outputs += bias
        return outputs

    return apply


def _sparse(layer: Any) -> _Layer:
    weight, bias = _array(layer.weight), None if layer.bias is None else _array(layer.bias)

    def apply(x: Array) -> Array:
        rows, columns, values = _nonzero_entries(x)
        products = weight.take(columns, 0)
        products *= values.astype(np.float32)[:, None]
        outputs, begin = np.empty((len(x), weight.shape[1]), np.float32), 0
        for row, end in enumerate(np.searchsorted(rows, np.arange(1, len(x) + 1)).tolist()):
            np.add.reduce(products[begin:end], 0, out=outputs[row])
            begin = end
        if bias is not None:
            outputs += bias
        return outputs

    return apply


def _nonzero_entries(x: Array) -> tuple[Array, Array, Array]:
    """(rows, columns, values) of the nonzero entries, row by row. Bytes are read in words of eight: most are zero."""
    width = x.shape[1]
    if x.itemsize != 1 or width % 8:
        rows, columns = np.nonzero(x)
        return rows, columns, x[rows, columns]
    words = np.flatnonzero(x.reshape(-1).view(np.int64))
    bytes_ = x.reshape(-1, 8)[words].reshape(-1)
    inside = np.flatnonzero(bytes_)
    places = words[inside >> 3] * 8 + (inside & 7)
    rows = places // width
    return rows, places - rows * width, bytes_[inside]


def _layer_norm(layer: Any) -> _Layer:
    weight, bias = _array(layer.weight), None if layer.bias is None else _array(layer.bias)
    size, epsilon = np.float32(len(weight)), np.float32(layer.eps)

    def apply(x: Array) -> Array:
        x -= x.mean(-1, keepdims=True)
        x *= weight / np.sqrt(np.vecdot(x, x) / size + epsilon)[:, None]
        if bias is not None:
            x += bias
        return x

    return apply


def _activation(layer: Any) -> _Layer:
    return _ACTIVATIONS[type(layer)]


_LAYERS: dict[type[nn.Module], Callable[[Any], _Layer]] = {
    nn.Linear: _linear,
    nn.LayerNorm: _layer_norm,
    SparseLinear: _sparse,
}


def _array(tensor: Any) -> Array:
    """A copy, so that in-place updates of the weights do not mix old and new layers."""
    array: Array = tensor.detach().numpy().copy()
    return array


def _width(layer: nn.Module) -> int:
    return layer.in_features if isinstance(layer, nn.Linear) else 0
