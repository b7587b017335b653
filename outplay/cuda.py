"""Start-up of CUDA in the background: its context and its libraries take seconds, in which other things can begin.

A failure here is none of the run: what needs the GPU later reports it.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress

_started: dict[Callable[[], None], threading.Thread] = {}


def begin_context() -> None:
    """Create the context of the first visible GPU. It needs no torch, so it can be created while torch is imported."""
    _begin(_create_context)


def begin_libraries() -> None:
    """Load the libraries of convolutions and matrix products, by small ones."""
    _begin(_load_libraries)


def wait() -> None:
    """Wait for what was begun. While a CUDA graph is captured, no other thread may use the GPU."""
    for thread in _started.values():
        thread.join()


def _begin(function: Callable[[], None]) -> None:
    if function not in _started:
        _started[function] = threading.Thread(target=function, name="CUDA start-up", daemon=True)
        _started[function].start()


def _create_context() -> None:
    # Calls through ctypes do not hold the interpreter's lock. torch uses the same (primary) context.
    with suppress(OSError, AttributeError):  # no driver
        cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0:
            cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def _load_libraries() -> None:
    import torch

    with suppress(RuntimeError, AssertionError):  # no GPU, or a torch without CUDA
        images = torch.zeros(2, 4, 8, 8, dtype=torch.bfloat16, device="cuda")
        images = images.contiguous(memory_format=torch.channels_last)
        kernels = torch.zeros(8, 4, 4, 4, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        weight = torch.zeros(8, 4, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        outputs = torch.nn.functional.conv2d(images, kernels).amax((2, 3)) @ weight
        torch.autograd.grad(outputs.sum(), (kernels, weight))
        torch.cuda.synchronize()
