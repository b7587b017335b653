"""Data-parallel learners: the same weights on all of them, and the result of one learner up to rounding."""

from __future__ import annotations

import hashlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import outplay
from outplay import (
    A2C,
    APPO,
    DDPG,
    DQN,
    IMPALA,
    PG,
    PPO,
    PQN,
    SAC,
    TD3,
    Algorithm,
    ConfigError,
    ResourceError,
    RunError,
    tune,
)
from outplay.algorithms import PPOConfig
from outplay.algorithms.setup import Resources
from outplay.learning import mirrors
from outplay.learning.mirrors import Mirror, Mirrors
from outplay.learning.shares import from_arrays, part_of, sequences_of, share_of, to_arrays
from outplay.replay import Sequences, Transitions
from outplay.tune.resources import run_resources
from tests import probes

SMALL: dict[str, Any] = {
    "num_envs": 4, "num_env_groups": 2, "num_workers": 0, "train_batch_size": 40, "seed": 5,
    "model": {"fcnet_hiddens": [8]}, "env_config": {"length": 9},
}  # fmt: skip
REPLAY: dict[str, Any] = {
    "train_batch_size": 16, "learning_starts": 32, "sgd_minibatch_size": 8, "buffer_size": 200, "lr": 3e-3,
    "target_network_update_freq": 3, "n_step": 2,
}  # fmt: skip
LSTM = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 5}
EPOCHS = {"sgd_minibatch_size": 13, "num_sgd_iter": 2}  # 13 rows: parts of different sizes

CASES: dict[str, tuple[type[Algorithm], Any, dict[str, Any]]] = {
    "PG": (PG, probes.Walk, {"grad_clip": 0.1}),
    "PG, sums, recurrent": (PG, probes.Walk, {"sum_gradients": True, "model": LSTM}),
    "A2C": (A2C, probes.Walk, {"normalize_observations": True}),
    "A2C with RND": (A2C, probes.Walk, {"intrinsic_reward": {"type": "RND"}}),
    "PPO": (PPO, probes.Walk, {**EPOCHS, "kl_coeff": 0.2, "kl_target": 1e-5, "normalize_observations": True}),
    "PPO, recurrent, RND": (PPO, probes.Walk, {**EPOCHS, "model": LSTM, "intrinsic_reward": {"type": "RND"}}),
    "PPO, Box": (PPO, probes.Aim, {**EPOCHS, "env_config": {}}),
    "PPO, images": (
        PPO, probes.Frames, {**EPOCHS, "model": {"conv_filters": [[4, 4, 2]], "fcnet_hiddens": [8]}},
    ),
    "PQN": (PQN, probes.Walk, EPOCHS),
    "PQN, recurrent": (PQN, probes.Walk, {**EPOCHS, "model": LSTM}),
    "IMPALA": (IMPALA, probes.Walk, {"async": False}),
    "IMPALA, recurrent": (IMPALA, probes.Walk, {"async": False, "model": LSTM, "normalize_advantages": True}),
    "APPO": (APPO, probes.Walk, {**EPOCHS, "async": False}),
    "APPO, recurrent": (APPO, probes.Walk, {**EPOCHS, "async": False, "model": LSTM}),
    "DQN": (DQN, probes.Walk, {**REPLAY, "prioritized_replay": True, "normalize_observations": True}),
    "DQN, recurrent": (DQN, probes.Walk, {**REPLAY, "prioritized_replay": True, "model": LSTM, "burn_in_len": 2}),
    "DQN, Rainbow": (DQN, probes.Walk, {**REPLAY, "noisy": True, "distributional": "c51"}),
    "DQN, parameter noise": (DQN, probes.Walk, {**REPLAY, "exploration_config": {"type": "ParameterNoise"}}),
    "SAC": (SAC, probes.Aim, {**REPLAY, "env_config": {}, "prioritized_replay": True}),
    "SAC, discrete, dropout": (SAC, probes.Walk, {**REPLAY, "critic_dropout": 0.1, "critic_norm": "layer"}),
    "TD3": (TD3, probes.Aim, {**REPLAY, "env_config": {}}),
    "DDPG": (DDPG, probes.Aim, {**REPLAY, "env_config": {}}),
}  # fmt: skip


class Fragile(torch.nn.Module):
    """A model that raises while it learns, in the process whose id is in a file."""

    FILE = Path(tempfile.gettempdir()) / f"outplay-fragile-{os.getpid()}"

    def __init__(self, observation_space: Any, file: str = str(FILE)) -> None:
        super().__init__()
        self.file, self.layer = Path(file), torch.nn.Linear(observation_space.shape[0], 8)

    @classmethod
    def arm(cls, pid: int) -> None:
        cls.FILE.write_text(str(pid))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() and self.file.exists() and self.file.read_text() == str(os.getpid()):
            raise ValueError("broken")
        return self.layer(observations).tanh()  # type: ignore[no-any-return]


@pytest.fixture
def inline() -> Iterator[None]:
    outplay.shutdown()
    outplay.init("inline")
    yield
    outplay.shutdown()


def make(case: str, num_learners: int, **more: Any) -> Algorithm:
    algorithm, env, config = CASES[case]
    return algorithm(env=env, config={**SMALL, **config, "num_learners": num_learners, **more})


def digest(learner: Any) -> str:
    """A hash of everything that a learner trains: weights, other networks, optimizer, target networks."""
    tensors = {"weights": learner.policy.flat, **learner.fixed_tensors()}
    parts = [name.encode() + tensors[name].detach().cpu().numpy().tobytes() for name in sorted(tensors)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def numbers(result: Any) -> dict[str, float]:
    return {**result["learner"], "return": result["episode_return_mean"]}


def test_rows_are_split_evenly_and_all_count_once() -> None:
    for total, size in ((10, 3), (7, 2), (2, 3), (1, 4)):
        shares = [share_of(total, rank, size) for rank in range(size)]
        assert [row for share in shares if share.counts for row in range(share.begin, share.end)] == list(range(total))
        assert sum(share.weight for share in shares) == pytest.approx(1)
        assert all(share.end - share.begin >= 1 for share in shares)  # each computes on something


def test_sequences_are_not_split() -> None:
    lengths = np.array([3, 1, 4, 1, 5])
    parts = [sequences_of(lengths, rank, 3) for rank in range(3)]
    assert np.concatenate([chosen for chosen, _ in parts]).tolist() == [0, 1, 2, 3, 4]
    assert [share.rows for _, share in parts] == [slice(0, 4), slice(4, 9), slice(9, 14)]
    chosen, share = sequences_of(np.array([6]), 0, 2)
    assert chosen.tolist() == [0]
    assert (share.weight, share.rows) == (0.0, slice(0, 6))


def test_parts_of_a_minibatch_from_the_replay_buffer() -> None:
    rows = np.arange(5, dtype=np.float32)
    drawn = Transitions((rows[:, None], rows), rows, rows, (rows[:, None], rows), rows, rows, rows.astype(np.int64))
    parts = [from_arrays(*to_arrays(part_of(drawn, rank, 2)[0])) for rank in range(2)]
    for name, value in vars(drawn).items():
        values = [getattr(part, name) for part in parts]
        if isinstance(value, tuple):
            values, value = [v[0] for v in values], value[0]
        assert np.array_equal(np.concatenate(values), value)
    lengths, steps = np.array([3, 2, 4]), np.arange(6.0)
    burns_in = np.array([True, False, True])
    sequences = Sequences(
        (np.arange(9.0),), lengths, (np.arange(3.0),), burns_in, (np.array([10.0, 11.0, 20.0, 21.0]),),
        steps, steps, steps, steps, steps, steps,
    )  # fmt: skip
    (first, share), (second, _) = (part_of(sequences, rank, 2) for rank in range(2))
    assert isinstance(first, Sequences)
    assert isinstance(second, Sequences)
    assert (first.lengths.tolist(), second.lengths.tolist()) == ([3, 2], [4])
    assert (first.burn_in[0].tolist(), second.burn_in[0].tolist()) == ([10.0, 11.0], [20.0, 21.0])
    assert (first.actions.tolist(), second.observations[0].tolist()) == ([0.0, 1.0, 2.0], [5.0, 6.0, 7.0, 8.0])
    assert share.rows == slice(0, 3)


_QUICK = ("PG", "A2C", "PPO", "PPO, recurrent, RND", "PQN", "IMPALA, recurrent", "DQN", "DQN, recurrent", "SAC")
_COMPARED = [
    pytest.param(case, number, marks=[] if case in _QUICK and number == 3 else [pytest.mark.slow])
    for case in CASES
    for number in (2, 3)
]


@pytest.mark.parametrize(("case", "num_learners"), _COMPARED)
def test_the_result_is_that_of_one_learner_and_all_have_the_same_weights(
    inline: None, monkeypatch: pytest.MonkeyPatch, case: str, num_learners: int
) -> None:
    called: list[str] = []
    call = Mirrors.call

    def compared(self: Mirrors, method: str, *arguments: Any) -> Any:
        result = call(self, method, *arguments)
        assert self._handles is not None
        hashes = {digest(mirror.learner) for mirror in self._handles._mirrors} | {digest(self._first)}
        assert len(hashes) == 1
        called.append(method)
        return result

    monkeypatch.setattr(Mirrors, "call", compared)
    with make(case, 1) as trainer:
        expected, before = [numbers(trainer.train()) for _ in range(4)], trainer.policy.flat.clone()
        other = {name: flat.clone() for name, flat in trainer.learner.networks.items()}
    assert not called
    with make(case, num_learners) as trainer:
        found = [numbers(trainer.train()) for _ in range(4)]
        assert trainer.learner.mirrors is not None
        assert trainer.learner.mirrors.starts == 1
        torch.testing.assert_close(trainer.policy.flat, before, rtol=1e-3, atol=1e-5)
        for name, flat in trainer.learner.networks.items():
            torch.testing.assert_close(flat, other[name], rtol=1e-3, atol=1e-5)
        for had, has in zip(expected, found, strict=True):
            assert has == pytest.approx(had, rel=1e-3, abs=1e-4, nan_ok=True)
    assert len(called) >= 2


def test_fewer_rows_than_learners(inline: None) -> None:
    config = {"num_envs": 1, "num_env_groups": 1, "train_batch_size": 3, "sgd_minibatch_size": 2}
    weights = []
    for num_learners in (1, 4):
        with make("PPO", num_learners, **config) as trainer:
            for _ in range(3):
                trainer.train()
            weights.append(trainer.policy.flat.clone())
    torch.testing.assert_close(*weights, rtol=1e-3, atol=1e-5)


def test_learners_on_several_machines_meet_at_a_port(inline: None, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = hashes_of("PPO", 2, 1)
    other = {
        "Alive": True,
        "NodeManagerHostname": "another",
        "NodeManagerAddress": "127.0.0.1",
        "Resources": {"CPU": 2.0, "GPU": 0.0},
    }
    monkeypatch.setattr("outplay.learning.mirrors.engine.nodes", lambda: [other])
    assert hashes_of("PPO", 2, 1) == expected


def hashes_of(case: str, num_learners: int, iterations: int, **more: Any) -> list[str]:
    with make(case, num_learners, **more) as trainer:
        found = []
        for _ in range(iterations):
            trainer.train()
            found.append(digest(trainer.learner))
        return found


def pids(trainer: Algorithm) -> list[int]:
    assert trainer.learner.mirrors is not None
    return trainer.learner.mirrors.process_ids


def killing(trainer: Algorithm, monkeypatch: pytest.MonkeyPatch, at: int) -> list[int]:
    """Kill a learner process before the given gradient of the first learner. Returns who was killed."""
    killed: list[int] = []
    apply, count = trainer.learner.optimizer.apply, iter(range(10**9))

    def kill_once(*arguments: Any, **named: Any) -> Any:
        if next(count) == at and not killed:
            killed.append(pids(trainer)[-1])
            os.kill(killed[0], signal.SIGKILL)
        return apply(*arguments, **named)

    monkeypatch.setattr(trainer.learner.optimizer, "apply", kill_once)
    return killed


_KILLED = ["PPO", *(pytest.param(case, marks=pytest.mark.slow) for case in ("DQN", "IMPALA, recurrent", "SAC"))]


@pytest.mark.parametrize("case", _KILLED)
def test_a_killed_learner_is_replaced_and_the_result_is_the_same(
    inline: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    expected = hashes_of(case, 2, 3)
    outplay.shutdown()
    outplay.init("process", num_cpus=2)
    with make(case, 2) as trainer:
        hashes = []
        for _ in range(2):
            trainer.train()
            hashes.append(digest(trainer.learner))
        assert hashes == expected[:2]  # the engine does not matter
        assert os.getpid() not in pids(trainer)
        killed = killing(trainer, monkeypatch, at=0 if case.startswith("IMPALA") else 2)
        trainer.train()
        assert killed
        assert digest(trainer.learner) == expected[2]  # the same bytes as in a run without a death
        assert killed[0] not in pids(trainer)
    assert "a learner process died" in caplog.text


@pytest.mark.slow
def test_three_learners_of_which_one_dies(process_engine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = hashes_of("PPO", 3, 2)
    with make("PPO", 3) as trainer:
        trainer.train()
        assert killing(trainer, monkeypatch, at=1) == []
        trainer.train()
        assert digest(trainer.learner) == expected[-1]


@pytest.mark.slow
def test_learners_that_die_again_and_again_end_the_run(process_engine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with make("PPO", 2, max_worker_restarts=0) as trainer:
        trainer.train()
        before = digest(trainer.learner)
        killing(trainer, monkeypatch, at=0)
        with pytest.raises(RunError, match="a learner process died"):
            trainer.train()
        assert digest(trainer.learner) == before  # rolled back
        assert trainer.train()["training_iteration"] == 2  # with a new learner


@pytest.mark.parametrize("case", ["PPO", "DQN"])
def test_resuming_is_exact_and_may_change_the_number(inline: None, tmp_path: Path, case: str) -> None:
    with make(case, 2) as trainer:
        for _ in range(3):
            trainer.train()
        path = trainer.save(tmp_path)
        trainer.train()
        expected, weights = digest(trainer.learner), trainer.policy.flat.clone()
    kind, env, _ = CASES[case]
    with kind.from_checkpoint(path, env=env) as again:
        assert again.config.num_learners == 2
        again.train()
        assert digest(again.learner) == expected
        again.restore(path)
        again.train()
        assert digest(again.learner) == expected
    with kind.from_checkpoint(path, env=env, config={"num_learners": 3}) as others:
        others.train()
        torch.testing.assert_close(others.policy.flat, weights, rtol=1e-3, atol=1e-5)


def test_weights_that_a_user_sets_reach_all_learners(inline: None) -> None:
    def trained(num_learners: int) -> torch.Tensor:
        with make("PPO", num_learners) as trainer:
            trainer.train()
            policy = trainer.get_policy()
            policy.set_weights({name: -weights for name, weights in policy.get_weights().items()})
            trainer.train()
            return trainer.policy.flat.clone()

    torch.testing.assert_close(trained(2), trained(1), rtol=1e-3, atol=1e-5)


def test_an_exception_in_a_learner_is_reported(inline: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with make("PPO", 2) as trainer:
        trainer.train()
        before = digest(trainer.learner)
        call: Callable[..., Any] = Mirror.call

        def fails(self: Mirror, *arguments: Any) -> int:
            raise RunError("out of luck")

        monkeypatch.setattr(Mirror, "call", fails)
        with pytest.raises(RunError, match="out of luck"):
            trainer.train()
        assert digest(trainer.learner) == before
        monkeypatch.setattr(Mirror, "call", call)
        assert trainer.train()["training_iteration"] == 2


@pytest.mark.parametrize("case", ["PPO", pytest.param("DQN", marks=pytest.mark.slow)])
def test_an_interrupted_iteration_is_rolled_back(inline: None, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    expected = hashes_of(case, 3, 4)
    with make(case, 3) as trainer:
        for _ in range(3):
            trainer.train()
        apply, count = trainer.learner.optimizer.apply, iter(range(10**9))

        def interrupted(*arguments: Any) -> Any:
            if next(count) == 2:
                raise KeyboardInterrupt
            return apply(*arguments)

        monkeypatch.setattr(trainer.learner.optimizer, "apply", interrupted)
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        assert digest(trainer.learner) == expected[2]
        trainer.train()
        assert digest(trainer.learner) == expected[3]


@pytest.mark.slow
def test_a_learner_that_raises_on_the_way_is_noticed(process_engine: None) -> None:
    with make("PPO", 3, model={"custom_model": Fragile, "custom_model_config": {"file": str(Fragile.FILE)}}) as trainer:
        trainer.train()
        Fragile.arm(pids(trainer)[0])
        with pytest.raises(outplay.OutplayError, match="broken"):
            trainer.train()
        Fragile.FILE.unlink()
        assert trainer.train()["training_iteration"] == 2


@pytest.mark.parametrize("case", ["IMPALA", "APPO", "DQN"])
@pytest.mark.slow
def test_asynchronous_algorithms(process_engine: None, case: str) -> None:
    with make(case, 2, **{"async": True, "num_workers": 1, "num_env_groups": 2}) as trainer:
        for _ in range(4):
            result = trainer.train()
        trainer.save()
        assert result["learner"]["updates"] > 0
        assert trainer.learner.mirrors is not None
        assert trainer.learner.mirrors.starts == 1


@pytest.mark.slow
@pytest.mark.parametrize("case", ["PPO", "DQN"])
def test_on_ray(case: str) -> None:
    expected = hashes_of(case, 2, 2)
    outplay.shutdown()
    outplay.init("ray", num_cpus=2)
    try:
        assert hashes_of(case, 2, 2) == expected
    finally:
        outplay.shutdown()


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"critic_norm: batch needs num_learners: 1"):
        make("SAC", 2, critic_norm="batch", use_target_network=False, target_network_update_freq=1)
    with pytest.raises(ConfigError, match="num_learners must be an integer of at least 1"):
        make("PPO", 0)
    with pytest.raises(ConfigError, match="num_gpus_per_learner is 0, but num_gpus is 1"):
        make("PPO", 2, num_gpus=1, num_gpus_per_learner=0)
    if not torch.cuda.is_available():
        words = "num_gpus_per_learner is 1, which sets num_gpus: 1, but torch finds no GPU; leave out both settings"
        with pytest.raises(ConfigError, match=words):
            make("PPO", 2, num_gpus_per_learner=1)


@pytest.mark.parametrize(
    ("settings", "gpus", "words"),
    [
        ({"num_learners": 3, "num_gpus": 1}, 2, "num_learners is 3 and num_gpus is 1, so 3 GPUs are needed"),
        ({"num_learners": 3, "num_gpus_per_learner": 1}, 2, "3 and num_gpus_per_learner is 1, so 3 GPUs are needed"),
        ({"num_learners": 3, "num_gpus_per_learner": 0.5}, 1, "num_gpus_per_learner is 0.5, so 2 GPUs are needed"),
    ],
)
def test_too_few_gpus_are_named(
    settings: dict[str, Any], gpus: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "visible_gpus", lambda: [str(i) for i in range(gpus)])
    with pytest.raises(ConfigError, match=f"{words}, but this machine has {gpus}; set num_gpus_per_learner") as caught:
        mirrors._gpu_of(PPOConfig.model_validate(settings), 0)
    share = float(str(caught.value).partition("at most ")[2].partition(",")[0])
    allowed = PPOConfig.model_validate({**settings, "num_gpus_per_learner": share})
    assert mirrors._gpu_of(allowed, settings["num_learners"] - 1) == str(gpus - 1), "the remedy works"


def test_resources_count_learners() -> None:
    with make("PPO", 3, learner_threads=2) as trainer:
        assert trainer.resources() == Resources(cpus=6, gpus=0)
    assert run_resources({"num_learners": 3, "num_workers": 2}) == [{"cpu": 1}] * 4
    assert run_resources({"num_learners": 2}) == [{"cpu": 1}] * 2


@pytest.mark.slow
def test_trials_with_several_learners(process_engine: None, tmp_path: Path) -> None:
    config = {**SMALL, **EPOCHS, "env": "CartPole-v1", "env_config": {}, "num_learners": 2}
    config |= {"lr": tune.grid_search([1e-3, 1e-4])}
    found = tune.run("PPO", config, stop={"training_iteration": 2}, storage_path=tmp_path, verbose=0)
    assert [trial.last_result["training_iteration"] for trial in found.trials] == [2, 2]


def test_far_more_learners_than_cpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outplay.engine.api.cluster_resources", lambda: {"CPU": 2.0})
    mirrors.check_number(8)
    with pytest.raises(ResourceError, match=r"num_learners is 1000, but the engine has 2 CPUs.*at most 8"):
        mirrors.check_number(1000)
