"""Actions of all spaces, and observations with text in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from outplay import A2C, DQN, PG, PPO, EnvError
from outplay.collect.video import record_video
from outplay.envs import EnvSpec, find_env
from outplay.envs.check import check_env
from outplay.policies import ActionScaling
from outplay.policies.distributions import Bernoulli, Categorical, DiagonalGaussian, Independent, distribution_for
from outplay.spaces import flat_action, leaves, left_out, nested_action, readable
from tests.envs import odd

SMALL = {"num_envs": 6, "num_workers": 0, "train_batch_size": 120, "seed": 3}


def settings(kind: str, **more: Any) -> dict[str, Any]:
    return {**SMALL, "env_config": {"kind": kind}, **more}


@pytest.mark.parametrize("kind", odd.PARTS)
def test_a_resumed_run_goes_on_exactly(kind: str, tmp_path: Path) -> None:
    """The environment refuses whatever is not in its space."""
    with PPO(env=odd.Acts, config=settings(kind)) as whole:
        for _ in range(4):
            whole.train()
    with PPO(env=odd.Acts, config=settings(kind)) as first:
        for _ in range(2):
            first.train()
        path = first.save(tmp_path)
    with PPO(env=odd.Acts, config=settings(kind)) as second:
        second.restore(path)
        for _ in range(2):
            second.train()
        assert not second.inexact
        assert second.policy.flat.equal(whole.policy.flat)
        assert second.evaluate()["episodes"] == 10
        for explore in (False, True):
            action = second.compute_single_action(np.zeros(2, np.float32), explore=explore)
            assert odd.PARTS[kind].contains(action)
            assert set(second.compute_actions({"a": np.ones(2, np.float32)}, explore=explore)) == {"a"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "Dict",
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in ("MultiDiscrete of two dimensions", "Box of integers")
        ),
    ],
)
def test_workers_do_not_change_the_result(process_engine: None, kind: str) -> None:
    results = []
    for num_workers in (0, 2):
        with PPO(env=odd.Acts, config=settings(kind, num_workers=num_workers)) as trainer:
            returns = [trainer.train()["episode_return_mean"] for _ in range(3)]
            results.append((trainer.policy.flat.numpy().tobytes(), returns))
    assert results[0] == results[1]


@pytest.mark.parametrize("algorithm", [A2C, PG])
def test_other_algorithms_take_them(algorithm: Any) -> None:
    with algorithm(env=odd.Acts, config=settings("Dict")) as trainer:
        before = trainer.policy.flat.clone()
        trainer.train()
        assert not trainer.policy.flat.equal(before)


@pytest.mark.slow
def test_all_parts_of_an_action_are_learned() -> None:
    """The reward is the sum of all numbers: every part has to rise."""
    with PPO(env=odd.Acts, config=settings("Dict", train_batch_size=1200, lr=0.01)) as trainer:
        before = np.mean([flat(trainer) for _ in range(200)], 0)
        for _ in range(8):
            trainer.train()
        after = np.mean([flat(trainer) for _ in range(200)], 0)
    assert (after > before).all(), (before, after)


def flat(trainer: Any) -> np.ndarray:
    return flat_action(odd.PARTS["Dict"], trainer.compute_single_action(np.zeros(2, np.float32), explore=True))


def test_dqn_refuses_them_by_name() -> None:
    for kind in odd.PARTS:
        with pytest.raises(EnvError, match=r"DQN needs a Discrete action space, and this one is .*; PPO takes any"):
            DQN(env=odd.Acts, config={"env_config": {"kind": kind}, "num_workers": 0})


def test_a_space_that_no_policy_can_act_in_is_refused() -> None:
    class Draws(odd.Acts):
        def __init__(self) -> None:
            super().__init__("Tuple")
            self.action_space = spaces.Tuple((spaces.Discrete(2), spaces.Text(3)))

    with pytest.raises(
        EnvError, match=r"the action space Text is not supported; Discrete, .* and Dict and Tuple of these"
    ):
        PPO(env=Draws, config=SMALL)


def test_check_env_takes_them() -> None:
    for kind in odd.PARTS:
        assert not [text for sort, text in check_env(EnvSpec("it", odd.Acts, {"kind": kind})) if sort == "problem"]


# Parts of a distribution


def test_independent_parts_are_added_up() -> None:
    """The params: first what depends on the observation, part by part; then the Gaussian's spread."""
    space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,)), spaces.MultiBinary(1)))
    joint = distribution_for(space)
    assert isinstance(joint, Independent)
    assert (joint.num_params, joint.num_constant, joint.shape) == (3 + 4 + 1, 2, (4,))
    params = torch.tensor([[0.1, 0.5, -0.2, 0.3, -0.4, 0.7, -0.5, 0.2]])
    other = params + torch.tensor([[0.2, -0.1, 0.4, 0.1, 0.2, -0.3, 0.1, 0.3]])
    own = {"choice": [0, 1, 2], "numbers": [3, 4, 6, 7], "switch": [5]}
    parts = {"choice": Categorical(3), "numbers": DiagonalGaussian(2), "switch": Bernoulli(1)}
    actions = {"choice": torch.tensor([2]), "numbers": torch.tensor([[0.3, -1.2]]), "switch": torch.tensor([[1.0]])}
    joined = torch.tensor([[2.0, 0.3, -1.2, 1.0]])
    expected = [
        sum(
            (part.log_prob(params[:, own[name]], actions[name]) for name, part in parts.items()),
            start=torch.zeros(1),
        ),
        sum((part.entropy(params[:, own[name]]) for name, part in parts.items()), start=torch.zeros(1)),
        sum((part.kl(params[:, own[name]], other[:, own[name]]) for name, part in parts.items()), start=torch.zeros(1)),
    ]
    ours = [joint.log_prob(params, joined), joint.entropy(params), joint.kl(params, other)]
    for mine, theirs in zip(ours, expected, strict=True):
        assert mine.item() == pytest.approx(theirs.item(), abs=1e-6)
    assert joint.mode(params.numpy())[0] == pytest.approx([1.0, 0.3, -0.4, 1.0])


def test_integers_are_scaled_to_their_bounds_and_rounded() -> None:
    scaling = ActionScaling(spaces.Box(0, 255, (3,), np.uint8), normalize=True, clip=False)
    scaled = scaling(np.array([[-1.0, 0.0, 1.0], [-7.0, 0.0039, 7.0]], np.float32))
    assert scaled.dtype == np.uint8
    assert scaled.tolist() == [[0, 128, 255], [0, 128, 255]]
    unbounded = ActionScaling(spaces.Box(-np.inf, np.inf, (1,), np.int64), normalize=True, clip=False)
    assert unbounded(np.array([[2.6]], np.float32)).tolist() == [[3]]
    raw = ActionScaling(spaces.Box(-5, 5, (1,), np.int8), normalize=False, clip=False)
    assert raw(np.array([[2.6], [1e9]], np.float32)).tolist() == [[3], [5]]


def test_uniform_actions_have_all_integers_equally_often() -> None:
    space = spaces.Box(np.array([0, -1, 5]), np.array([3, 1, 5]), dtype=np.int64)
    scaling = ActionScaling(space, normalize=True, clip=False)
    drawn = scaling.uniform(12_000, np.random.default_rng(0))
    assert drawn.dtype == np.float32
    assert np.abs(drawn).max() <= 1
    for column, number in zip(scaling(drawn).T, (4, 3, 1), strict=True):
        _, counts = np.unique(column, return_counts=True)
        assert counts == pytest.approx(np.full(number, 12_000 / number), rel=0.06)


@pytest.mark.parametrize("kind", ["Tuple", "Dict"])
def test_an_action_is_taken_apart_and_put_together(kind: str) -> None:
    space = odd.PARTS[kind]
    space.seed(0)
    for _ in range(20):
        action = space.sample()
        again = nested_action(space, flat_action(space, action).astype(np.float64))
        assert space.contains(again)
        for mine, theirs in zip(odd.leaves_of(again), odd.leaves_of(action), strict=True):
            assert np.array_equal(mine, theirs)


def test_a_video_of_nested_actions(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")

    class Shown(odd.Acts):
        metadata = {"render_modes": ["rgb_array"]}

        def render(self) -> Any:
            return np.zeros((32, 32, 3), np.uint8)

    with PPO(env=Shown, config=settings("Dict")) as trainer:
        record_video(trainer.env_spec, trainer.policy, tmp_path / "it.mp4", 0)
    assert (tmp_path / "it.mp4").stat().st_size > 0


# Text


@pytest.mark.slow
def test_text_is_left_out_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture, process_engine: None) -> None:
    results = []
    for num_workers in (0, 2):
        with PPO(env=odd.Mission, config={**SMALL, "num_workers": num_workers, "frame_stack": 2}) as trainer:
            trainer.train()
            results.append(trainer.policy.flat.numpy().tobytes())
    assert results[0] == results[1]
    caplog.clear()
    with PPO(env=odd.Mission, config=SMALL) as trainer:
        told = [record.message for record in caplog.records if "text" in record.message]
        assert told == [
            "environment 'tests.envs.odd:Mission': text is left out of its observations: observation['mission'], "
            "observation['pair'][0]; to use it, set model.text: characters"
        ]
        trainer.train()
        path = trainer.save(tmp_path)
        observation, _ = odd.Mission().reset(seed=0)
        assert trainer.compute_single_action(observation) in (0, 1, 2)
    with PPO(env=odd.Mission, config=SMALL) as again:
        again.restore(path)
        assert again.train()["training_iteration"] == 2
    assert not [text for kind, text in check_env(EnvSpec("it", odd.Mission)) if kind == "problem"]


def test_what_is_left_of_a_space_without_its_text() -> None:
    text = spaces.Text(5)
    space = spaces.Tuple((text, spaces.Dict({"a": text, "b": spaces.Discrete(2)})))
    assert left_out(readable(space)) == ["observation[0]", "observation[1]['a']"]
    assert [leaf.name for leaf in leaves(readable(space))] == ["observation[1]['b']"]
    assert str(readable(space)) == "Tuple(text (left out), Dict('a': text (left out), 'b': Discrete(2)))"
    plain = spaces.Dict({"b": spaces.Discrete(2)})
    assert readable(plain) is plain
    with pytest.raises(EnvError, match="the observation consists of text only"):
        leaves(readable(text))


@pytest.mark.filterwarnings("ignore")
def test_minigrid(tmp_path: Path) -> None:
    """Tested where it is installed."""
    pytest.importorskip("minigrid")
    name, factory = find_env("minigrid:MiniGrid-Empty-5x5-v0")
    assert factory is None
    with PPO(env=name, config={**SMALL, "max_episode_steps": 30}) as trainer:
        trainer.train()
        path = trainer.save(tmp_path)
    with PPO(env="MiniGrid-Empty-5x5-v0", config={**SMALL, "max_episode_steps": 30}) as again:
        again.restore(path)
        again.train()
