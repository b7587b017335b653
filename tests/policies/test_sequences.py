"""Observations that vary in length: padded, pooled or attended; padding has no influence. Text by its characters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from outplay import A2C, DQN, PPO, EnvError
from outplay.envs import EnvSpec, make_vector
from outplay.envs.check import check_env
from outplay.policies.pooling import SequencePool
from outplay.sequences import Padded, Reading
from outplay.spaces import leaves, readable
from outplay.testing import VectorConformance
from tests.envs.sequences import ELEMENTS, Objects, Told

SMALL: dict[str, Any] = {"num_workers": 0, "num_envs": 8, "train_batch_size": 128, "lr": 5e-3}
FAST: dict[type[Any], dict[str, Any]] = {
    PPO: {**SMALL, "sgd_minibatch_size": 64, "num_sgd_iter": 4},
    A2C: SMALL,
    DQN: {
        "num_workers": 0, "num_envs": 8, "train_batch_size": 64, "lr": 3e-3, "learning_starts": 100,
        "exploration_config": {"epsilon_timesteps": 1000}, "target_network_update_freq": 20,
        "model": {"fcnet_hiddens": [32]},
    },
}  # fmt: skip


class TestObjects(VectorConformance):
    env = Objects
    env_config = {"alone": False}


BOXES, CHOICES = Padded(ELEMENTS["boxes"], 4), Padded(ELEMENTS["choices"], 4)  # type: ignore[arg-type]


def test_padding_by_hand() -> None:
    elements = (np.array([0.5, -1.0], np.float32), np.array([1.0, 0.25], np.float32))
    expected = [[1.0, 0.5, -1.0], [1.0, 1.0, 0.25], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    assert BOXES.padded(elements, "", "").tolist() == expected
    assert BOXES.padded(np.stack(elements), "", "").tolist() == expected
    assert CHOICES.padded((1, 5), "", "").tolist() == [1, 5, 0, 0]
    assert CHOICES.padded(np.array([3]), "", "").tolist() == [3, 0, 0, 0]
    text = readable(spaces.Text(3), Reading(with_text=True))
    assert isinstance(text, Padded)
    assert text.padded("aé", "", "").tolist() == [98, 234, 0]
    assert text.padded("字", "", "").tolist() == [256, 0, 0]
    for space in (BOXES, CHOICES):
        assert not space.padded((), "", "").any()


FLAWS: list[tuple[Padded, Any, str]] = [
    (CHOICES, (1, 2, 3, 4, 5), r"it is an o of 5 elements, more than the maximum 4; set model: {max_seq"),
    (CHOICES, (0,), r"an o with an element that is not in its space Discrete\(5, start=1\)"),
    (CHOICES, (6,), "an o with an element that is not in its space"),
    (CHOICES, ("a",), "an o with an element that is not in its space"),
    (CHOICES, 3, "an o that is an int, not a sequence"),
    (BOXES, (np.zeros(3),), "an o with an element that is not in its space Box"),
    (BOXES, (np.zeros(2), np.zeros(3)), "an o with an element that is not in its space Box"),
    (Padded(spaces.Discrete(256), 3, is_text=True), ("a",), "an o that is a tuple, not a string"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(FLAWS)))
def test_what_does_not_fit_is_one_sentence(number: int) -> None:
    space, value, sentence = FLAWS[number]
    with pytest.raises(EnvError, match=sentence) as caught:
        space.padded(value, "o", "it is")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("pooling", ["mean_max", "attention"])
@pytest.mark.parametrize("kind", [*ELEMENTS, "text"])
def test_padding_has_no_influence(kind: str, pooling: str) -> None:
    """Same output, and same gradients, whatever the padding holds and however long it is. An empty sequence is 0."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    element: Any = spaces.Discrete(256) if kind == "text" else ELEMENTS[kind]
    pool = SequencePool(Padded(element, 9, kind == "text"), pooling)
    assert not pool(torch.zeros(2, *Padded(element, 9).shape or ())).any()
    for length in range(1, 9):
        if kind == "boxes":
            x = rng.normal(size=(3, 9, 3)).astype(np.float32)
            x[..., 0] = np.arange(9) < length
        else:
            x = rng.integers(1, 6, (3, 9)) * (np.arange(9) < length)
        other = x.copy()
        other[:, length:] = 1e6 * rng.normal(size=other[:, length:].shape) if kind == "boxes" else -3
        if kind == "boxes":
            other[:, length:, 0] = 0.0
        outputs = [pool(torch.from_numpy(array)) for array in (x, other)]
        assert torch.equal(outputs[0], outputs[1])
        gradients = [torch.autograd.grad(out.square().sum(), list(pool.parameters()))[0] for out in outputs]
        assert torch.equal(gradients[0], gradients[1])
        if kind == "text":
            continue
        short = SequencePool(Padded(element, length), pooling)
        short.load_state_dict(pool.state_dict())
        assert torch.allclose(short(torch.from_numpy(x[:, :length])), outputs[0], atol=1e-6)
        turned = torch.from_numpy(x[:, :length][:, ::-1].copy())
        assert torch.allclose(short(turned), outputs[0], atol=1e-5)  # a set: the order does not matter


def test_pooling_by_hand() -> None:
    """Elements 1 and 3, embedded as x and −x: means 2 and 0, maxima 3 and 0. Attention: the mean."""
    space = Padded(spaces.Box(-9, 9, (1,)), 3)
    x = torch.tensor([[[1.0, 1.0], [1.0, 3.0], [0.0, 7.0]]])
    for pooling, expected in (("mean_max", [2.0, 0.0, 3.0, 0.0]), ("attention", [2.0, 0.0])):
        pool = SequencePool(space, pooling)
        with torch.no_grad():
            for parameter in pool.parameters():
                parameter.zero_()
            pool.embedding.weight[0, 0], pool.embedding.weight[1, 0] = 1.0, -1.0
        out = pool(x)[0].tolist()
        assert [*out[:2], *out[64:66]] == expected
        assert sum(out) == sum(expected)


def test_the_order_of_characters_matters() -> None:
    pool = SequencePool(Padded(spaces.Discrete(256), 4, is_text=True), "mean_max")
    first, second = (pool(torch.tensor([numbers])) for numbers in ([5, 9, 0, 0], [9, 5, 0, 0]))
    assert not torch.allclose(first, second)


@pytest.mark.parametrize(
    ("algorithm", "kind", "pooling"),
    [(PPO, "boxes", "mean_max"), pytest.param(DQN, "choices", "attention", marks=pytest.mark.slow)],
)
def test_it_learns_from_objects(algorithm: type[Any], kind: str, pooling: str) -> None:
    config = {
        **FAST[algorithm],
        "env_config": {"kind": kind},
        "model": {"sequence_pooling": pooling, "max_sequence_length": 6},
    }
    with algorithm(env=Objects, config={**config, "evaluation_duration": 100}) as trainer:
        for _ in range(25 if algorithm is PPO else 60):
            trainer.train()
        assert trainer.evaluate()["episode_return_mean"] > 0.95  # without the objects: about 0.6
        for seed in range(3):
            assert trainer.compute_single_action(Objects(kind).reset(seed=seed)[0]) in (0, 1)
            assert trainer.predict(Objects(kind).reset(seed=seed)[0])[0] in (0, 1)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("kind", ELEMENTS)
def test_sequences_in_nested_observations(kind: str, stacked: bool, tmp_path: Path) -> None:
    """Values of the environment arrive as they are; a resumed run goes on exactly; check-env finds no problem."""
    env_config = {"kind": kind, "stacked": stacked, "alone": False}
    vector = make_vector(EnvSpec("it", Objects, env_config, reading=Reading(7)), 2)
    shape = (7, 3) if kind == "boxes" else (7,)
    assert [leaf.shape for leaf in vector.leaves] == [shape, (1,), shape]
    observations = vector.reset(np.ones(2, bool), [0, 1])
    assert np.array_equal(observations[0], observations[2])
    config = {**SMALL, "env_config": env_config, "model": {"fcnet_hiddens": [8]}}
    with A2C(env=Objects, config=config) as whole:
        whole.train()
        path = whole.save(tmp_path)
        whole.train()
        with A2C(env=Objects, config=config) as resumed:
            resumed.restore(path)
            resumed.train()
            assert torch.equal(resumed.policy.flat, whole.policy.flat)
    found = list(check_env(EnvSpec("it", Objects, env_config)))
    assert not [text for kind, text in found if kind == "problem"], found


@pytest.mark.parametrize(
    "model", [{"use_lstm": True, "lstm_cell_size": 8}, {"vf_share_layers": True}, {"text": "characters"}]
)
def test_acting_and_learning_agree(model: dict[str, Any]) -> None:
    """With a learning rate of 0, old and new policy are the same."""
    env = Told if "text" in model else Objects
    with PPO(env=env, config={**FAST[PPO], "lr": 0.0, "model": {**model, "fcnet_hiddens": [8]}}) as trainer:
        result = trainer.train()["learner"]
    assert abs(result["kl"]) < 1e-6
    assert result["entropy"] > 0


def test_workers_do_not_change_the_result(process_engine: None) -> None:
    flat = []
    for workers in (0, 2):
        config = {**FAST[DQN], "num_env_groups": 2, "num_workers": workers, "env_config": {"alone": False}}
        with DQN(env=Objects, config=config) as trainer:
            for _ in range(3):
                trainer.train()
            assert trainer.learner.updates > 0
            flat.append(trainer.policy.flat.numpy().tobytes())
    assert flat[0] == flat[1]


def test_a_sequence_that_is_too_long() -> None:
    with pytest.raises(EnvError, match=r"an observation of [45] elements, more than the maximum 3; set model"):
        PPO(env=Objects, config={**SMALL, "model": {"max_sequence_length": 3}, "env_config": {"most": 5}})


def test_sequences_of_sequences_are_refused() -> None:
    nested = spaces.Dict({"a": spaces.Sequence(spaces.Sequence(spaces.Discrete(2)))})
    with pytest.raises(EnvError, match=r"the observation\['a'\] is a Sequence of Sequence; only those of Box"):
        leaves(readable(nested))


# Text


@pytest.mark.parametrize("alone", [False, True])
def test_text_is_read_when_asked(alone: bool, caplog: pytest.LogCaptureFixture) -> None:
    config = {**FAST[PPO], "model": {"text": "characters"}, "env_config": {"alone": alone}, "evaluation_duration": 50}
    with PPO(env=Told, config=config) as trainer:
        for _ in range(12):
            trainer.train()
        assert trainer.evaluate()["episode_return_mean"] > 0.95  # 0.5 without the text
        assert trainer.compute_single_action("go left" if alone else {"image": [0, 0], "mission": "go left"}) == 0
    assert not [record for record in caplog.records if "text" in record.message]


def test_text_alone_is_not_ignored_in_silence() -> None:
    with pytest.raises(EnvError, match=r"consists of text only, which is ignored; set model: {text: characters}"):
        PPO(env=Told, config={**SMALL, "env_config": {"alone": True}})
