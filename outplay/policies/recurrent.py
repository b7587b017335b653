"""Recurrent cores: an LSTM, a GRU or a causal transformer between a network's hidden layers and its heads.

A core has a state for each sequence. When acting, a sequence is one step of one lane. When learning, it is a part of an
episode, and the state before it was recorded when acting.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from outplay.groups import ModelConfig
from outplay.memory import check_parameters

Array = np.ndarray
State = dict[str, Tensor]  # (S, …) each: one row per sequence

PREVIOUS = "previous"  # in the state of a policy: the previous action and reward, which are inputs of the core


@dataclass
class Memory:
    """How the rows of a batch form sequences, and the state before each sequence.

    The rows of a sequence are adjacent and in time order. After a forward pass of sequences that have the same number
    of rows, `next_state` is the state after their last row.
    """

    state: State
    lengths: Array | None = None  # (S,): rows of each sequence; None: one row each
    previous: Tensor | None = None  # (B, K): previous action and reward of each row, if they are inputs
    next_state: State = field(default_factory=dict)

    def picked(self, sequences: Array, rows: Tensor) -> Memory:
        """The memory of some sequences. `rows` are the indices of their rows."""
        assert self.lengths is not None
        chosen = torch.from_numpy(sequences)
        return Memory(
            {name: tensor[chosen.to(tensor.device)] for name, tensor in self.state.items()},
            self.lengths[sequences],
            None if self.previous is None else self.previous.index_select(0, rows),
        )


class Core(nn.Module, ABC):
    """Base of recurrent cores. `num_outputs` is the size of its output."""

    num_outputs: int

    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the state of one sequence."""

    def initial(self, sequences: int) -> dict[str, Array]:
        """The state of sequences that start an episode."""
        return {name: np.zeros((sequences, *shape), np.float32) for name, shape in self.shapes().items()}

    @abstractmethod
    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """(outputs (L, S, H), state after the last step) of S sequences of L steps, x (L, S, F)."""

    @abstractmethod
    def initialize(self, generator: torch.Generator) -> None:
        """Draw initial weights."""

    def run(self, rows: Tensor, memory: Memory) -> Tensor:
        """Outputs for rows (B, F) that form the sequences of `memory`."""
        if memory.previous is not None:
            rows = torch.cat([rows, memory.previous], -1)
        if memory.lengths is None:
            outputs, memory.next_state = self(rows[None], memory.state)
            return outputs[0]  # type: ignore[no-any-return]
        steps = np.arange(memory.lengths.max())
        begins = np.cumsum(memory.lengths) - memory.lengths
        # (L, S): row of each step. Padding repeats the last row; its outputs are not used.
        padded = torch.from_numpy(begins + np.minimum(steps[:, None], memory.lengths - 1)).to(rows.device)
        outputs, memory.next_state = self(rows[padded], memory.state)
        # Sequence by sequence, without the padding.
        valid = torch.from_numpy(steps < memory.lengths[:, None]).to(rows.device)
        return outputs.transpose(0, 1)[valid]  # type: ignore[no-any-return]


@contextmanager
def _without_layout_warning(x: Tensor) -> Iterator[None]:
    """cuDNN copies the weights at each call, because they are views of one vector of all weights. They are small."""
    if not x.is_cuda:
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        yield


class LSTM(Core):
    def __init__(self, num_inputs: int, size: int) -> None:
        super().__init__()
        check_parameters(4 * size * (num_inputs + size), "model.lstm_cell_size")
        self.num_outputs = size
        self.cell = nn.LSTM(num_inputs, size)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"h": (self.num_outputs,), "c": (self.num_outputs,)}

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        with _without_layout_warning(x):
            outputs, (h, c) = self.cell(x, (state["h"][None], state["c"][None]))
        return outputs, {"h": h[0], "c": c[0]}

    def initialize(self, generator: torch.Generator) -> None:
        _initialize_gates(self.cell, 4, generator)


class GRU(Core):
    def __init__(self, num_inputs: int, size: int) -> None:
        super().__init__()
        check_parameters(3 * size * (num_inputs + size), "model.lstm_cell_size")
        self.num_outputs = size
        self.cell = nn.GRU(num_inputs, size)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"h": (self.num_outputs,)}

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        with _without_layout_warning(x):
            outputs, h = self.cell(x, state["h"][None])
        return outputs, {"h": h[0]}

    def initialize(self, generator: torch.Generator) -> None:
        _initialize_gates(self.cell, 3, generator)


@torch.no_grad()
def _initialize_gates(cell: nn.LSTM | nn.GRU, gates: int, generator: torch.Generator) -> None:
    """Each gate's weights are orthogonal, all biases 0."""
    for name, parameter in cell.named_parameters():
        if "bias" in name:
            parameter.zero_()
            continue
        for gate in parameter.chunk(gates):
            gate.copy_(nn.init.orthogonal_(torch.empty(gate.shape), generator=generator))


class Attention(Core):
    """A causal transformer: each step attends to itself and to the `memory` steps before it in its episode.

    The state of a layer is its inputs at these steps, so a step costs the same at any time of an episode
    (Dai et al. 2019, Transformer-XL; here with a learned bias for each distance, and pre-normalisation).
    """

    def __init__(self, num_inputs: int, config: ModelConfig) -> None:
        super().__init__()
        self.num_outputs = size = config.attention_dim
        width = config.attention_num_heads * config.attention_head_dim
        units = config.attention_num_transformer_units
        check_parameters(units * size * (4 * width + 2 * config.attention_position_wise_mlp_dim), "model.attention_dim")
        self.memory = config.attention_memory_inference
        self.embed = nn.Linear(num_inputs, size)
        self.units = nn.ModuleList(
            _Unit(
                size,
                config.attention_num_heads,
                config.attention_head_dim,
                config.attention_position_wise_mlp_dim,
                self.memory,
            )
            for _ in range(units)
        )
        self.last_norm = nn.LayerNorm(size)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        memories = {f"memory_{i}": (self.memory, self.num_outputs) for i in range(len(self.units))}
        return {**memories, "steps": ()}  # steps: how many steps the memory holds

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        x = self.embed(x).transpose(0, 1)  # (S, L, D)
        length = x.shape[1]
        bias_index, allowed = self._window(length, state["steps"])
        after = {"steps": (state["steps"] + length).clamp(max=self.memory)}
        for i, unit in enumerate(self.units):
            context = torch.cat([state[f"memory_{i}"], x], 1)  # (S, N + L, D)
            after[f"memory_{i}"] = context[:, length:]
            x = unit(x, context, bias_index, allowed)
        return self.last_norm(x).transpose(0, 1), after

    def _window(self, length: int, steps: Tensor) -> tuple[Tensor, Tensor]:
        """(distance (L, N + L) of each key from each query, allowed (S, 1, L, N + L))."""
        device = steps.device
        queries = torch.arange(self.memory, self.memory + length, device=device)[:, None]
        keys = torch.arange(self.memory + length, device=device)
        distance = queries - keys
        in_window = (distance >= 0) & (distance <= self.memory)
        filled = keys >= self.memory - steps[:, None]  # (S, N + L): the memory is filled from its end
        return distance.clamp(0, self.memory), (in_window & filled[:, None])[:, None]

    def initialize(self, generator: torch.Generator) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                with torch.no_grad():
                    nn.init.orthogonal_(module.weight, generator=generator)
                    module.bias.zero_()


class _Unit(nn.Module):
    """One layer of the transformer: attention, then a feed-forward network, each added to its input."""

    def __init__(self, size: int, heads: int, head_size: int, hidden: int, memory: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(size)
        self.query = nn.Linear(size, heads * head_size)
        self.key = nn.Linear(size, heads * head_size)
        self.value = nn.Linear(size, heads * head_size)
        self.out = nn.Linear(heads * head_size, size)
        self.distance_bias = nn.Parameter(torch.zeros(heads, memory + 1))
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(size), nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, size)
        )

    def forward(self, x: Tensor, context: Tensor, distance: Tensor, allowed: Tensor) -> Tensor:
        """`x` (S, L, D) are the last L of `context` (S, N + L, D)."""
        normed = self.norm(context)
        query, key, value = self.query(normed[:, -x.shape[1] :]), self.key(normed), self.value(normed)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (query, key, value))
        bias = torch.where(allowed, self.distance_bias[:, distance], float("-inf"))  # (S, heads, L, N + L)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.feed_forward(x)  # type: ignore[no-any-return]


def make_core(config: ModelConfig, num_inputs: int) -> Core | None:
    """The core that the settings ask for; None: the network is not recurrent."""
    if config.use_lstm:
        return LSTM(num_inputs, config.lstm_cell_size)
    if config.use_gru:
        return GRU(num_inputs, config.lstm_cell_size)
    if config.use_attention:
        return Attention(num_inputs, config)
    return None
