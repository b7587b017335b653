"""Linear layers for inputs that are almost all zeros."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SparseLinear(nn.Module):
    """A linear layer (B, n) to (B, m) that reads only nonzero inputs. Its weight is (n, m): one row per input."""

    def __init__(self, num_inputs: int, num_outputs: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_inputs, num_outputs))
        self.bias = nn.Parameter(torch.zeros(num_outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = nonzero_entries(x)
        begins = torch.searchsorted(rows, torch.arange(len(x), device=x.device))
        values = x[rows, columns].to(self.weight.dtype)
        summed = nn.functional.embedding_bag(columns, self.weight, begins, mode="sum", per_sample_weights=values)
        return summed if self.bias is None else summed + self.bias


def nonzero_entries(x: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, columns) of the nonzero entries, row by row. Bytes are read in words of eight: most words are zero.

    >>> nonzero_entries(torch.tensor([[0, 3], [1, 0]]))
    (tensor([0, 1]), tensor([1, 0]))
    """
    if x.dtype != torch.int8 or x.shape[1] % 8:
        rows, columns = x.nonzero(as_tuple=True)
        return rows, columns
    words = x.contiguous().view(torch.int64)
    rows, columns = words.nonzero(as_tuple=True)
    inside, byte = words[rows, columns].view(torch.int8).view(-1, 8).nonzero(as_tuple=True)
    return rows[inside], columns[inside] * 8 + byte
