"""All or nothing: an iteration, or a restore, that does not get to its end leaves the Algorithm as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from outplay.algorithms.algorithm import Algorithm

T = TypeVar("T")

_COUNTERS = ("iteration", "timesteps", "seconds", "inexact")


def atomically(algorithm: Algorithm, name: str, work: Callable[[], T]) -> T:
    """Do this work. If anything ends it early, Ctrl-C included, the algorithm goes back to what it was before.

    The exception says so, in a note beneath its traceback.
    """
    if algorithm.can_roll_back:  # it is part of something larger, which is rolled back as a whole
        return work()
    roll_back = _rollback_point(algorithm)
    try:
        algorithm.can_roll_back = True
        return work()
    except BaseException as error:
        _uninterrupted(roll_back)
        error.add_note(f"outplay: {name} was rolled back; the trainer is as it was before")
        raise
    finally:
        algorithm.can_roll_back = False


def _rollback_point(algorithm: Algorithm) -> Callable[[], None]:
    """A function that brings the algorithm back to what it is now. Calling it twice has the same effect as once.

    Weights, optimizer, normalisers, replay and counters come from memory. The environments are built again from their
    states when they are next needed: some of them may be in the middle of a step.
    """
    counters = {name: getattr(algorithm, name) for name in _COUNTERS}
    episodes, returns, lengths = algorithm.episodes.state(), list(algorithm._returns), list(algorithm._lengths)
    states = algorithm._present_states()
    torch_back = _torch_settings()
    learner_back = algorithm.learner.rollback_point()

    def roll_back() -> None:
        torch_back()
        learner_back()
        for name, value in counters.items():
            setattr(algorithm, name, value)
        algorithm.episodes.load(episodes)
        algorithm._returns, algorithm._lengths = list(returns), list(lengths)
        algorithm.timers.take()
        algorithm._drop_workers(states)
        algorithm._drop_evaluator()

    return roll_back


def _torch_settings() -> Callable[[], None]:
    """A function that sets torch's modes back. Its context managers are Python code: Ctrl-C may end one too early."""
    gradients, threads = torch.is_grad_enabled(), torch.get_num_threads()

    def set_back() -> None:
        if torch.is_inference_mode_enabled():
            torch.inference_mode(False).__enter__()
        torch.set_grad_enabled(gradients)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)

    return set_back


def _uninterrupted(roll_back: Callable[[], None]) -> None:
    """One more Ctrl-C does not leave it half done: it is begun again."""
    try:
        roll_back()
    except KeyboardInterrupt:
        roll_back()
