"""For every kind of policy, the served action is that of compute_single_action() with the same checkpoint."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from websockets.sync.client import connect

import outplay
from outplay.serve import load_policy
from outplay.testing.probes import Aim, Forbidding, Nested, Walk
from tests.probes import Frames
from tests.serve.common import SMALL, randomised, serving


class Many(Walk):
    """Numbers and actions enough for actions to differ."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (6,), np.float32)
    action_space = gymnasium.spaces.Discrete(6)

    def _observe(self) -> np.ndarray:
        return self.np_random.normal(size=6).astype(np.float32)


class Steered(Many):
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def step(self, action: Any) -> Any:
        return super().step(1)


class Composite(Nested):
    """Actions of a Dict space."""

    action_space = gymnasium.spaces.Dict(
        {"gear": gymnasium.spaces.Discrete(3), "wheel": gymnasium.spaces.Box(-1, 1, (2,), np.float32)}
    )

    def step(self, action: Any) -> Any:
        return super().step([action["gear"]])


class Words(Nested):
    """Observations of variable length."""

    observation_space = gymnasium.spaces.Dict(
        {"list": gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(5)), "flag": gymnasium.spaces.MultiBinary(2)}
    )

    def step(self, action: Any) -> Any:
        return self.seen, float(action[0]), True, False, {}


KINDS: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "discrete": ("PPO", Many, {}),
    "normalised": ("PPO", Many, {"normalize_observations": True}),
    "dict, multi-discrete": ("PPO", Nested, {}),
    "dict action": ("PPO", Composite, {}),
    "sequence": ("PPO", Words, {}),
    "box": ("PPO", Aim, {}),
    "image": ("PPO", Frames, {}),
    "DQN": ("DQN", Many, {}),
    "distributional, noisy DQN": (
        "DQN",
        Many,
        {"distributional": "c51", "num_atoms": 5, "noisy": True, "v_min": -9, "v_max": 9},
    ),
    "image DQN": ("DQN", Frames, {}),
    "SAC": ("SAC", Aim, {}),
    "discrete SAC": ("SAC", Many, {}),
    "TD3": ("TD3", Aim, {}),
    "mask in the observation": ("PPO", Forbidding, {"env_config": {"masks": "observation"}}),
}
RECURRENT: dict[str, dict[str, Any]] = {
    "lstm": {"use_lstm": True, "lstm_cell_size": 6},
    "gru": {"use_gru": True, "lstm_cell_size": 6},
    "attention": {"use_attention": True, "attention_memory_inference": 4, "attention_num_transformer_units": 2},
    "previous": {
        "use_lstm": True,
        "lstm_cell_size": 6,
        "lstm_use_prev_action": True,
        "lstm_use_prev_reward": True,
    },
}


def as_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: as_json(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [as_json(part) for part in value]
    return value if isinstance(value, (int, float, str)) else np.asarray(value).tolist()


def same(one: Any, other: Any) -> bool:
    """Equal; numbers with a fraction up to the rounding of a batch of another size."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other if isinstance(one, int) else abs(one - other) <= 1e-5 * max(1.0, abs(one))


def samples(env: gymnasium.Env[Any, Any], number: int) -> list[Any]:
    if isinstance(env, Forbidding):  # a random mask may forbid all actions
        return [env.reset(seed=seed)[0] for seed in range(number)]
    env.observation_space.seed(3)
    return [env.observation_space.sample() for _ in range(number)]


SLOW = (
    "normalised",
    "dict action",
    "sequence",
    "image DQN",
    "discrete SAC",
    "SAC",
    "gru",
    "attention",
)  # others show nearly the same


def kinds(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in names]


@pytest.mark.parametrize("kind", kinds(KINDS))
def test_the_served_action_is_that_of_the_trainer(kind: str, tmp_path: Path) -> None:
    name, env, config = KINDS[kind]
    trainer = getattr(outplay, name)(env=env, config={**SMALL, **config})
    observations = samples(env(**config.get("env_config", {})), 7)
    for seed in range(50):
        randomised(trainer, seed)
        expected = [as_json(trainer.compute_single_action(each, explore=False)) for each in observations]
        if len({json.dumps(each) for each in expected}) > 1:
            break
    else:
        pytest.fail("all actions are equal: this test could not fail")
    with serving(Path(trainer.save(tmp_path)), env) as client:
        one = client.post("/act", json={"observation": as_json(observations[0])})
        assert one.status_code == 200, one.text
        assert same(one.json()["action"], expected[0])
        batch = client.post("/act", json={"observations": as_json(observations)}).json()
        assert same(batch["actions"], expected)
        if client.get("/info").json()["binary"]:
            check_binary(client, trainer.get_policy(), observations, expected)


def check_binary(client: Any, policy: Any, observations: list[Any], expected: list[Any]) -> None:
    def part(observation: Any, path: tuple[Any, ...]) -> Any:
        for key in path:
            observation = observation[key]
        return observation

    data = b"".join(
        np.asarray(part(each, leaf.path), leaf.dtype).tobytes() for each in observations for leaf in policy.leaves
    )
    response = client.post("/act", content=data, headers={"content-type": "application/octet-stream"})
    space = policy.action_space
    actions = np.frombuffer(response.content, space.dtype).reshape(-1, *space.shape)
    assert same(actions.tolist(), expected)


@pytest.mark.parametrize("kind", kinds(RECURRENT))
def test_a_session_continues_the_episode(kind: str, tmp_path: Path) -> None:
    """Two sessions at a time, over HTTP and WebSocket; each acts as the trainer does with its own state."""
    config = {**SMALL, "model": RECURRENT[kind]}
    trainer = randomised(outplay.PPO(env=Steered, config=config))
    policy = trainer.get_policy()
    episodes = [samples(Steered(), 14)[7 * i :][:7] for i in range(2)]
    expected: list[list[Any]] = []
    for episode in episodes:
        state, actions = policy.initial_state(1), []
        for step, observation in enumerate(episode):
            action, state, _ = trainer.compute_single_action(observation, state, explore=False, prev_reward=0.5 * step)
            actions.append(action.tolist())
        expected.append(actions)
    first = [trainer.compute_single_action(each, explore=False) for each in episodes[0]]
    first = [action.tolist() for action in first]
    assert not same(expected[0][1:], first[1:]), "the state makes no difference: this test could not fail"
    with serving(Path(trainer.save(tmp_path)), Steered) as client:
        assert client.get("/info").json()["recurrent"] is True
        session = client.post("/sessions").json()["session"]
        address = str(client.base_url).replace("http", "ws") + "/ws"
        with connect(address) as socket:
            for step in range(7):
                bodies = [
                    {"observation": as_json(episode[step]), **({"reward": 0.5 * step} if step else {})}
                    for episode in episodes
                ]
                response = client.post("/act", json={**bodies[0], "session": session})
                assert same(response.json()["action"], expected[0][step])
                socket.send(json.dumps(bodies[1]))
                assert same(json.loads(socket.recv())["action"], expected[1][step])
            restart = {"observation": as_json(episodes[0][0])}
            assert client.post(f"/sessions/{session}/reset").status_code == 200
            again = client.post("/act", json={**restart, "session": session}).json()
            assert same(again["action"], expected[0][0])
            socket.send('{"reset": true}')
            assert json.loads(socket.recv()) == {"reset": True}
            socket.send(json.dumps(restart))
            assert same(json.loads(socket.recv())["action"], expected[0][0])
        if kind == "previous":
            with connect(address) as binary:
                binary.send(np.asarray(episodes[0][0], np.float32).tobytes())
                assert "which a binary message cannot have: send JSON" in json.loads(binary.recv())["error"]
                binary.send(json.dumps(restart))
                assert same(json.loads(binary.recv())["action"], expected[0][0])
            missing = client.post("/act", json={**restart, "session": session})
            assert missing.status_code == 400
            assert 'send it as "reward"' in missing.json()["error"]
            reset = client.post("/act", json={**restart, "session": session, "reset": True})
            assert same(reset.json()["action"], expected[0][0])
        assert client.delete(f"/sessions/{session}").status_code == 204
        assert client.post("/act", json={**restart, "session": session}).status_code == 404


def test_requests_of_one_session_are_answered_one_after_the_other(tmp_path: Path) -> None:
    """Also if they come at the same time, and could share a batch."""
    config = {**SMALL, "model": RECURRENT["lstm"]}
    trainer = randomised(outplay.PPO(env=Steered, config=config))
    observation = samples(Steered(), 1)[0]
    state, expected = trainer.get_policy().initial_state(1), []
    for _ in range(9):
        action, state, _ = trainer.compute_single_action(observation, state, explore=False)
        expected.append(action.tolist())
    with serving(Path(trainer.save(tmp_path)), Steered, max_wait_ms=5) as client, ThreadPoolExecutor(9) as pool:
        session = client.post("/sessions").json()["session"]
        body = {"observation": as_json(observation), "session": session}
        answers = pool.map(lambda _: client.post("/act", json=body).json()["action"], range(9))
        assert same(sorted(answers), sorted(expected))


def test_masks_beside_the_observation(tmp_path: Path) -> None:
    config = {"env_config": {"masks": "info"}}
    trainer = randomised(outplay.PPO(env=Forbidding, config={**SMALL, **config}))
    observation = samples(Forbidding(masks="info"), 1)[0]
    with serving(Path(trainer.save(tmp_path)), Forbidding) as client:
        for allowed in range(4):
            mask = [number == allowed for number in range(4)]
            found = client.post("/act", json={"observation": as_json(observation), "mask": mask}).json()
            assert found["action"] == allowed
        for mask, sentence in (([1, 0], "shape (2,)"), ([0] * 4, "allows no action"), ([2, 0, 0, 0], "other than")):
            response = client.post("/act", json={"observation": as_json(observation), "mask": mask})
            assert response.status_code == 400
            assert sentence in response.json()["error"]


def test_an_image_as_base64(tmp_path: Path) -> None:
    trainer = randomised(outplay.PPO(env=Frames, config=SMALL))
    image = samples(Frames(), 3)[2]
    encoded = {"data": base64.b64encode(image.tobytes()).decode(), "dtype": "uint8", "shape": [8, 8]}
    with serving(Path(trainer.save(tmp_path)), Frames) as client:
        response = client.post("/act", json={"observation": encoded})
        assert response.json()["action"] == trainer.compute_single_action(image, explore=False)
        for change, sentence in (
            ({"data": "%"}, "not base64"),
            ({"data": encoded["data"][:8]}, "6 bytes; its dtype and shape need 64"),
            ({"dtype": "object"}, "unknown dtype"),
            ({"dtype": "float32"}, "need 256"),
            ({"shape": [64]}, "shape (64,)"),
            ({"shape": [True]}, "shape"),
            ({"more": 1}, "exactly data, dtype and shape"),
        ):
            response = client.post("/act", json={"observation": {**encoded, **change}})
            assert response.status_code == 400, change
            assert sentence in response.json()["error"]


def test_a_policy_without_a_server(tmp_path: Path) -> None:
    trainer = randomised(outplay.PPO(env=Nested, config=SMALL))
    observations = samples(Nested(), 5)
    policy = load_policy(trainer.save(tmp_path), env=Nested)
    expected = [as_json(trainer.compute_single_action(each, explore=False)) for each in observations]
    assert policy.act(observations) == expected
    assert policy.act([]) == []
    policy.check(observations[0])
    with pytest.raises(outplay.EnvError, match=r"has no observation\['pair'\]"):
        policy.check({"switch": 1})
