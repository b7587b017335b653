"""Parameter space noise (Plappert et al. 2018): Gaussian noise on the parameters of a network."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from outplay.policies.flat import ranges

# Their outputs have a fixed scale, which noise on their parameters would change.
_NORMALISATIONS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.BatchNorm1d, nn.BatchNorm2d)


def perturbable(network: nn.Module) -> list[slice]:
    """Slices of the flat vector: all parameters but those of normalisation layers; no buffers."""
    names = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in network.named_modules()
        if not isinstance(module, _NORMALISATIONS)
        for name, _ in module.named_parameters(recurse=False)
    }
    return ranges(network, names.__contains__)


@torch.no_grad()
def perturb(flat: Tensor, parts: list[slice], stddev: float, rng: np.random.Generator) -> None:
    """Add noise of this standard deviation to these parts of a flat vector, in place."""
    for part in parts:
        noise = rng.standard_normal(part.stop - part.start, np.float32)
        noise *= np.float32(stddev)  # here, not in torch: a fused multiply-add would depend on the number of threads
        flat[part] += torch.from_numpy(noise).to(flat.device)
