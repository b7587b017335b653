"""Atomic operations: an iteration or a restore that fails or is interrupted leaves the Algorithm unchanged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch

from outplay.algorithms import pending
from outplay.errors import LearnerDiedError

if TYPE_CHECKING:
    from outplay.algorithms.algorithm import Algorithm

log = logging.getLogger("outplay")

T = TypeVar("T")

_COUNTERS = ("iteration", "timesteps", "seconds", "inexact", "level", *pending.STATE)


def atomically(algorithm: Algorithm, name: str, work: Callable[[], T]) -> T:
    """Call `work`. If it raises, KeyboardInterrupt included, roll the algorithm back to its state before the call.

    A note on the exception says so. Nested calls are rolled back with the outermost one. If a learner process has died
    (`num_learners`), `work` is repeated with new ones, at most `max_worker_restarts` times in a row.
    """
    if algorithm.in_transaction:
        return work()
    for restarts in range(algorithm.config.max_worker_restarts):
        try:
            return _attempt(algorithm, name, work)
        except LearnerDiedError as error:
            log.warning("%s; new learners start from the state of the first one (restart %d)", error, restarts + 1)
    return _attempt(algorithm, name, work)


def _attempt(algorithm: Algorithm, name: str, work: Callable[[], T]) -> T:
    roll_back = _rollback_point(algorithm)
    try:
        algorithm.in_transaction = True
        return work()
    except BaseException as error:
        _repeat_if_interrupted(roll_back)
        error.add_note(f"outplay: {name} was rolled back; the state of the trainer is unchanged")
        raise
    finally:
        algorithm.in_transaction = False


def _rollback_point(algorithm: Algorithm) -> Callable[[], None]:
    """A function that restores the present state of the algorithm. It is idempotent.

    Weights, optimizer, normalisers, replay buffer and counters are restored from memory. Environments are rebuilt from
    their states on next use, since some may be in the middle of a step.
    """
    counters = {name: getattr(algorithm, name) for name in _COUNTERS}
    episodes, returns, lengths = algorithm.episodes.state(), list(algorithm._returns), list(algorithm._lengths)
    states = algorithm.training_workers.states
    restore_torch = _torch_settings()
    restore_recording = None if algorithm.recording is None else algorithm.recording.rollback_point()
    restore_learner = algorithm.learner.rollback_point()

    def roll_back() -> None:
        restore_torch()
        restore_learner()
        if restore_recording is not None:
            restore_recording()
        for name, value in counters.items():
            setattr(algorithm, name, value)
        algorithm.episodes.load(episodes)
        algorithm._returns, algorithm._lengths = list(returns), list(lengths)
        algorithm.timers.take()
        algorithm.training_workers.restart_from(states)
        pending.stop_evaluator(algorithm)

    return roll_back


def _torch_settings() -> Callable[[], None]:
    """A function that restores torch's modes: Ctrl-C may interrupt the exit of torch's context managers."""
    gradients, threads = torch.is_grad_enabled(), torch.get_num_threads()

    def restore() -> None:
        if torch.is_inference_mode_enabled():
            torch.inference_mode(False).__enter__()
        torch.set_grad_enabled(gradients)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)

    return restore


def _repeat_if_interrupted(roll_back: Callable[[], None]) -> None:
    """Call `roll_back`; after another Ctrl-C, call it again, so that it completes."""
    try:
        roll_back()
    except KeyboardInterrupt:
        roll_back()
