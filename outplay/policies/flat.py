"""The flat vector: all parameters and buffers of a network, one after the other."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def flatten(model: nn.Module, device: torch.device | None = None) -> Tensor:
    """Make all parameters, then all buffers, views of one flat vector. One copy of it moves all weights."""
    parameters, buffers = list(model.parameters()), list(model.buffers())
    flat = torch.empty(sum(t.numel() for t in (*parameters, *buffers)), device=device)
    offset = 0
    for tensor in (*parameters, *buffers):
        piece = flat[offset : offset + tensor.numel()]
        # Convolutions keep their channels-last layout inside their piece.
        if tensor.dim() == 4:
            out, channels, height, width = tensor.shape
            view = piece.view(out, height, width, channels).permute(0, 3, 1, 2)
        else:
            view = piece.view(tensor.shape)
        with torch.no_grad():
            view.copy_(tensor)
        tensor.data = view
        offset += tensor.numel()
    return flat


def ranges(model: nn.Module, is_wanted: Callable[[str], bool]) -> list[slice]:
    """Slices of the flat vector for the parameters and buffers with wanted names. Adjacent slices are merged."""
    found: list[slice] = []
    offset = 0
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        end = offset + tensor.numel()
        if is_wanted(name):
            begin = found.pop().start if found and found[-1].stop == offset else offset
            found.append(slice(begin, end))
        offset = end
    return found
