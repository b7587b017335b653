"""Start-up of CUDA in the background, on a machine without a GPU: what fails there is none of the run."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from outplay import PPO, cuda
from tests import probes


@pytest.fixture(autouse=True)
def nothing_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_started", {})


def test_what_cannot_start_is_not_reported(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def no_driver(name: str) -> Any:
        raise OSError(f"{name}: no such file")

    def no_gpu(*_: object, **__: object) -> Any:
        raise RuntimeError("no NVIDIA driver")

    monkeypatch.setattr(ctypes, "CDLL", no_driver)
    monkeypatch.setattr(torch, "zeros", no_gpu)
    cuda.begin_context()
    cuda.begin_libraries()
    cuda.wait()
    assert capfd.readouterr() == ("", "")


def test_each_is_started_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        calls: list[str]

        def __init__(self, _: str) -> None:
            self.calls = calls

        def __getattr__(self, name: str) -> Any:
            def succeed(*_: object) -> int:
                self.calls.append(name)
                return 0

            return succeed

    calls: list[str] = []
    monkeypatch.setattr(ctypes, "CDLL", Driver)
    for _ in range(2):
        cuda.begin_context()
        cuda.wait()
    assert calls == ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]


def test_without_a_gpu_nothing_is_started() -> None:
    with PPO(env=probes.Walk, num_workers=0) as trainer:
        trainer.get_policy()
    assert not cuda._started


def test_the_random_numbers_of_torch_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small products that load the libraries, on the CPU."""
    zeros, before = torch.zeros, torch.get_rng_state()
    shapes = []

    def on_cpu(*shape: int, device: str, **options: Any) -> torch.Tensor:
        shapes.append((device, shape))
        return zeros(*shape, **options)

    monkeypatch.setattr(torch, "zeros", on_cpu)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: shapes.append(("done", ())))
    cuda.begin_libraries()
    cuda.wait()
    assert [device for device, _ in shapes] == ["cuda", "cuda", "cuda", "done"]
    assert torch.get_rng_state().equal(before)
