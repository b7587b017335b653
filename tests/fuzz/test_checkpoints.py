"""Checkpoints that somebody changed, with hashes that fit: they raise the project's own error, or they work."""

from __future__ import annotations

import contextlib
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outplay import A2C, DQN, PPO, Algorithm
from outplay.errors import OutplayError
from outplay.replay import ring
from tests import probes
from tests.fuzz.mutations import FUZZ, changed_checkpoint, read_files, write_files

SMALL = {"num_envs": 4, "num_env_groups": 2, "num_workers": 0, "train_batch_size": 24, "seed": 3}
SMALL |= {"model": {"fcnet_hiddens": [4]}, "evaluation_duration": 10, "evaluation_duration_unit": "timesteps"}
REPLAY = {"learning_starts": 20, "buffer_size": 160, "sgd_minibatch_size": 4, "training_intensity": 0.1}
CONVOLUTION = {"conv_filters": [[2, 4, 4]], "fcnet_hiddens": [4]}
CASES: dict[str, tuple[type[Algorithm], Any, dict[str, Any]]] = {
    "saved states": (PPO, "CartPole-v1", {"num_sgd_iter": 1}),
    "recorded actions": (A2C, probes.Walk, {"normalize_observations": True}),
    "replay": (DQN, probes.Walk, {**REPLAY, "prioritized_replay": True, "n_step": 2}),
    "stacked images": (DQN, probes.Frames, {**REPLAY, "frame_stack": 3, "model": CONVOLUTION}),
}


@pytest.fixture(scope="module", params=CASES)
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Algorithm, dict[str, bytes], Path]]:
    """An algorithm, the files of a checkpoint of it, and a place for the changed ones."""
    algorithm, env, config = CASES[request.param]
    folder = tmp_path_factory.mktemp("fuzz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ring, "_SEGMENT_BYTES", 400)  # so that there are several segments
        with algorithm(env=env, config={**SMALL, **config}) as trainer:
            for _ in range(4):
                trainer.train()
            trainer.seconds = 1.0  # the one number that differs from run to run
            files = read_files(Path(trainer.save(folder)))
            yield trainer, files, folder / "changed"


def attempt(trainer: Algorithm, files: dict[str, bytes], folder: Path, data: st.DataObject) -> None:
    """All that may happen is success or an error of the project's own."""
    shutil.rmtree(folder, ignore_errors=True)
    write_files(data.draw(changed_checkpoint(files)), folder)
    with warnings.catch_warnings(), contextlib.suppress(OutplayError):
        warnings.simplefilter("ignore")  # numbers that overflow are told when training diverges
        if data.draw(st.booleans()):
            trainer.load_weights(folder)
            trainer.evaluate(folder)
        trainer.restore(folder)
        trainer.train()
        trainer.train()


@settings(FUZZ, max_examples=30)
@given(data=st.data())
def test_a_changed_checkpoint_is_refused_or_works(target: Any, data: st.DataObject) -> None:
    attempt(*target, data)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(FUZZ, max_examples=1_000)
@given(data=st.data())
def test_thousands_of_changed_checkpoints(target: Any, data: st.DataObject) -> None:
    attempt(*target, data)


def test_the_unchanged_checkpoint_works(target: Any) -> None:
    """Otherwise the fuzzing would show nothing."""
    trainer, files, folder = target
    shutil.rmtree(folder, ignore_errors=True)
    write_files(files, folder)
    trainer.restore(folder)
    assert trainer.train()["training_iteration"] == 5


@settings(FUZZ, max_examples=60)
@given(data=st.data())
def test_a_changed_checkpoint_of_an_older_version(data: st.DataObject, tmp_path_factory: Any) -> None:
    """The whole way of a stranger's checkpoint: which algorithm, which settings, which environment."""
    files = read_files(Path(__file__).parent.parent / "data" / "checkpoints-0.2.0" / "native")
    folder = tmp_path_factory.mktemp("old")
    write_files(data.draw(changed_checkpoint(files)), folder)
    with warnings.catch_warnings(), contextlib.suppress(OutplayError):
        warnings.simplefilter("ignore")
        # Not trained: how long that takes is a setting, and a stranger's may well be long.
        short = {"evaluation_duration": 5, "evaluation_duration_unit": "timesteps"}
        with Algorithm.from_checkpoint(folder, config=short) as trainer:
            trainer.evaluate()
