"""An iteration, or a restore, is done as a whole or not at all."""

from __future__ import annotations

import gc
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import outplay
from outplay import A2C, DQN, PG, PPO, Algorithm, CheckpointError, RunError
from outplay.runs.checkpoint import read_checkpoint, write_checkpoint
from outplay.testing.algorithm import interrupt_at
from tests import probes

SMALL = {
    "num_envs": 4, "num_env_groups": 2, "num_workers": 0, "train_batch_size": 40, "seed": 5,
    "model": {"fcnet_hiddens": [8]},
}  # fmt: skip
REPLAY = {
    "train_batch_size": 16, "learning_starts": 32, "sgd_minibatch_size": 8, "buffer_size": 96, "lr": 3e-3,
    "target_network_update_freq": 5, "prioritized_replay": True, "n_step": 2, "env_config": {"length": 9},
}  # fmt: skip


def next_task(result: dict[str, Any], *_: Any) -> float:
    return result["training_iteration"] / 100


CASES: dict[str, tuple[type[Algorithm], dict[str, Any]]] = {
    "PPO": (
        PPO,
        {
            "kl_coeff": 0.2, "kl_target": 1e-5, "normalize_observations": True, "num_sgd_iter": 2,
            "sgd_minibatch_size": 20, "evaluation_interval": 2, "evaluation_duration": 2, "env_config": {"length": 7},
        },
    ),
    "A2C with tasks": (A2C, {"env_task_fn": next_task, "normalize_observations": True, "rollout_fragment_length": 5}),
    "PPO with a curriculum": (
        PPO,
        {
            "env_config": {"length": 4}, "num_sgd_iter": 1, "sgd_minibatch_size": 40,
            "curriculum": {
                "levels": [2.5, 2.0, 1.5, 1.0, 0.5], "promote_when": {"episode_return_mean": 0.1}, "min_episodes": 3,
            },
        },
    ),
    "PG": (PG, {"env_config": {"length": 12}}),
    "DQN": (DQN, {**REPLAY, "normalize_observations": True}),
    "DQN without priorities": (DQN, {**REPLAY, "prioritized_replay": False, "frame_stack": 2}),
}  # fmt: skip


def lines_of(work: Callable[[], Any], at: int | None = None) -> int:
    return interrupt_at(work, [Path(outplay.__file__).parent], at)


def everything(trainer: Algorithm) -> dict[str, Any]:
    """All that a checkpoint would hold, and the states of the environments."""
    state, tensors = trainer.learner.state()
    return {
        "state": state,
        "tensors": {name: tensor.numpy().tobytes() for name, tensor in tensors.items()},
        "segments": {
            f"{name}/{part}": array.tobytes()
            for name, read in trainer.learner.segments(()).items()
            for part, array in read().items()
        },
        "weights": trainer.policy.flat.numpy().tobytes(),
        "counters": (trainer.iteration, trainer.timesteps, trainer.episodes.state(), trainer.level),
        "environments": repr([(s.fragments, s.task, s.tasks, s.marks) for s in trainer.training_workers.states or []]),
    }


@pytest.mark.parametrize("case", CASES)
def test_an_iteration_interrupted_anywhere_can_be_done_again(case: str) -> None:
    """Ctrl-C at lines all over it: the trainer is then what it was before, and ends as an undisturbed one does."""
    algorithm, config = CASES[case]
    rng = random.Random(case)
    with (
        algorithm(env=probes.Walk, config={**SMALL, **config}) as whole,
        algorithm(env=probes.Walk, config={**SMALL, **config}) as interrupted,
    ):
        for _ in range(8):
            lines = lines_of(whole.train)
            before = everything(interrupted)
            # In the beginning, in the end, and in between.
            for at in (rng.randrange(1, 100), rng.randrange(1, lines), rng.randrange(lines - 100, lines)):
                with pytest.raises(KeyboardInterrupt) as caught:
                    lines_of(interrupted.train, at)
                if interrupted.iteration == whole.iteration:  # it was over: the interrupt came after its end
                    break
                assert any("was rolled back" in note for note in getattr(caught.value, "__notes__", ())) or at < 100
                assert everything(interrupted) == before
            else:
                interrupted.train()
            assert everything(interrupted) == everything(whole)


def test_an_interrupt_while_torch_switches_gradients_on_again_leaves_them_on() -> None:
    """Its context managers are Python: Ctrl-C in one of them would leave gradients off for the rest of the program."""
    switches = [Path(torch.autograd.grad_mode.__file__)]
    with PPO(env=probes.Walk, config=SMALL) as whole, PPO(env=probes.Walk, config=SMALL) as trainer:
        lines = interrupt_at(whole.train, switches)
        assert lines > 20
        threads = torch.get_num_threads()
        for at in range(1, lines, max(1, lines // 40)):
            with pytest.raises(KeyboardInterrupt):
                interrupt_at(trainer.train, switches, at)
            assert torch.is_grad_enabled()
            assert not torch.is_inference_mode_enabled()
            assert torch.get_num_threads() == threads
        trainer.train()
        assert everything(trainer) == everything(whole)


@contextmanager
def interrupts(rng: random.Random, seconds: float) -> Iterator[None]:
    """A real signal within these seconds, handled as Ctrl-C is, at whatever Python or torch are doing then."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    # Hypothesis has a callback there, and an interrupt within it would be lost: it is only told as a warning.
    callbacks, gc.callbacks[:] = gc.callbacks[:], []
    signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.callbacks[:] = callbacks


# Python itself discards a KeyboardInterrupt inside a finalizer, with a warning: the iteration then just goes on.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("process_engine")
@pytest.mark.parametrize("case", ["PPO", "DQN", "in shards", pytest.param("in workers", marks=pytest.mark.slow)])
def test_real_interrupts_change_nothing(case: str) -> None:
    config = {"in shards": {**REPLAY, "replay_shards": 2}, "in workers": {"num_workers": 2}}
    algorithm, more = CASES[case] if case in CASES else (DQN if "shards" in case else PPO, config[case])
    rng = random.Random(case)
    happened = 0
    with (
        algorithm(env=probes.Walk, config={**SMALL, **more}) as whole,
        algorithm(env=probes.Walk, config={**SMALL, **more}) as interrupted,
    ):
        for _ in range(6):
            seconds = whole.train()["time_this_iter_s"]
            for _ in range(2 if "workers" in case else 5):
                if interrupted.iteration == whole.iteration:
                    break
                try:
                    with interrupts(rng, seconds):
                        interrupted.train()
                except KeyboardInterrupt:
                    happened += 1
            if interrupted.iteration < whole.iteration:
                interrupted.train()
            assert everything(interrupted) == everything(whole)
    assert happened > 2


def test_what_fails_while_learning_leaves_the_last_whole_iteration() -> None:
    with PPO(env=probes.Walk, config={**SMALL, "lr_schedule": [[0, 1e-3], [80, 1e-3], [81, 1e30]]}) as trainer:
        trainer.train()
        trainer.train()
        before = everything(trainer)
        with pytest.raises(RunError, match="diverged"):
            [trainer.train() for _ in range(3)]
        assert trainer.iteration >= 2
        assert trainer.policy.flat.isfinite().all()
        if trainer.iteration == 2:
            assert everything(trainer) == before


def test_an_evaluation_that_is_interrupted_takes_its_iteration_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {**SMALL, "evaluation_interval": 1}
    with PPO(env=probes.Walk, config=config) as whole, PPO(env=probes.Walk, config=config) as trainer:
        results = [whole.train() for _ in range(3)]
        trainer.train()
        evaluate = trainer.evaluate

        def interrupted() -> dict[str, Any]:
            monkeypatch.setattr(trainer, "evaluate", evaluate)
            raise KeyboardInterrupt

        monkeypatch.setattr(trainer, "evaluate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        assert trainer.iteration == 1
        again = [trainer.train() for _ in range(2)]
        assert [r["evaluation"] for r in again] == [r["evaluation"] for r in results[1:]]
        assert everything(trainer) == everything(whole)


# Restoring


def damaged(part: str, value: Any) -> Callable[[Any], None]:
    def damage(saved: Any) -> None:
        if part.startswith("tensors."):
            name = part.removeprefix("tensors.")
            saved.optimizer[name] = value(saved.optimizer[name])
        else:
            *path, last = part.split(".")
            holder = saved.state
            for key in path:
                holder = holder[key]
            holder[last] = value

    return damage


WRONG: dict[str, Callable[[Any], None]] = {
    "a moment of the optimizer": damaged("tensors.second", lambda tensor: tensor[:-1].clone()),
    "a moment that would be broadcast": damaged("tensors.first", lambda tensor: tensor[:1].clone()),
    "a normaliser": damaged("tensors.moments.0.mean", lambda tensor: torch.zeros(3, dtype=tensor.dtype)),
    "its count": damaged("learner.counts", {}),
    "a counter": damaged("timesteps_total", "many"),
    "the episodes": damaged("episodes.total", None),
    "the EnvGroups": damaged("groups", [{"lanes": 2}]),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("algorithm", [PPO, DQN])
def test_a_restore_that_fails_changes_nothing(algorithm: type[Algorithm], wrong: str, tmp_path: Path) -> None:
    """The checkpoint's files are whole, and its hashes right; what is in one of them does not fit."""
    config = {**SMALL, **(REPLAY if algorithm is DQN else {}), "normalize_observations": True}
    with algorithm(env=probes.Walk, config={**config, "seed": 9}) as other:
        [other.train() for _ in range(3)]
        saved = read_checkpoint(Path(other.save(tmp_path / "whole")))
    WRONG[wrong](saved)
    write_checkpoint(saved, tmp_path / "checkpoint_000003")
    with algorithm(env=probes.Walk, config=config) as whole, algorithm(env=probes.Walk, config=config) as trainer:
        for _ in range(4):
            whole.train()
            trainer.train()
        before = everything(trainer)
        with pytest.raises(CheckpointError):
            trainer.restore(tmp_path / "checkpoint_000003")
        assert everything(trainer) == before
        whole.train()
        trainer.train()
        assert everything(trainer) == everything(whole)
