"""Distributed DQN by hand: agents share a network through a parameter server and feed a buffer; a trainer runs beside.

python examples/dqn_by_hand.py --agents 2
python examples/dqn_by_hand.py --agents 8 --engine ray --address auto
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

import outplay

ENV = "CartPole-v1"
GOAL, WINDOW = 475.0, 20  # solved: the mean return of the last 20 episodes
DISCOUNT, RATE, BATCH = 0.99, 1e-3, 128
REWARD_SCALE = 0.1  # values of about 10, not 100: the loss is quadratic only near 0
SIZE, FIRST_STEPS = 50_000, 1_000  # of the buffer, and how many it holds before the trainer starts
UPDATES_PER_STEP = 0.5
LEAST_UPDATES, MOST_OWED = 50, 500  # of the trainer: in a round, and before agents wait for it
TARGET_EVERY = 100  # updates
EPSILON_STEPS, EPSILON_LEAST = 8_000, 0.02

Weights = dict[str, np.ndarray]
Steps = dict[str, np.ndarray]


class DQN(nn.Sequential):
    """Observations to the value of each action."""

    def __init__(self, weights: Weights | None = None) -> None:
        super().__init__(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
        if weights is not None:
            self.load_state_dict({name: torch.tensor(array) for name, array in weights.items()})

    def weights(self) -> Weights:
        return {name: tensor.numpy().copy() for name, tensor in self.state_dict().items()}


@outplay.remote
class ParameterServer:
    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def get_weights(self) -> Weights:
        return self.weights

    def set_weights(self, weights: Weights) -> None:
        self.weights = weights

    def save(self, path: str) -> None:
        np.savez(path, **self.weights)  # arrays, not a pickle that would be executed when it is read


# A remote class: the tutorial never makes its buffer one, so its DataBuffer.remote() fails before the first step.
@outplay.remote
class DataBuffer:
    def __init__(self, size: int) -> None:
        self.columns: Steps = {
            "states": np.zeros((size, 4), np.float32),
            "actions": np.zeros(size, np.int64),
            "rewards": np.zeros(size, np.float32),
            "next_states": np.zeros((size, 4), np.float32),
            "terminated": np.zeros(size, np.float32),
        }
        self.size, self.added = size, 0
        self.rng = np.random.default_rng(0)

    # A round of episodes in one call: the tutorial sends every single step, and a call costs more than a step.
    def add(self, steps: Steps) -> None:
        places = (self.added + np.arange(len(steps["actions"]))) % self.size
        for name, column in self.columns.items():
            column[places] = steps[name]
        self.added += len(places)

    def sample(self, number: int) -> Steps:
        rows = self.rng.integers(0, self.get_len(), number)
        return {name: column[rows] for name, column in self.columns.items()}

    def get_len(self) -> int:
        return min(self.added, self.size)


# An agent plays a few episodes and is then asked again: so agents and trainer take turns on the engine inline, too.
@outplay.remote
def worker_agents(server: Any, buffer: Any, epsilon: float, episodes: int, seed: int) -> tuple[list[float], int]:
    network, rng, env = DQN(outplay.get(server.get_weights.remote())), np.random.default_rng(seed), gymnasium.make(ENV)
    rows: dict[str, list[Any]] = {name: [] for name in ("states", "actions", "rewards", "next_states", "terminated")}
    returns = []
    for episode in range(episodes):
        state, _ = env.reset(seed=seed * 1000 + episode)
        total, over = 0.0, False
        while not over:
            with torch.inference_mode():
                greedy = int(network(torch.from_numpy(state)).argmax())
            action = int(rng.integers(2)) if rng.random() < epsilon else greedy
            next_state, reward, terminated, truncated, _ = env.step(action)
            # Not `done`: after 500 steps an episode is cut off, but the pole still stands. To call that an end, as the
            # tutorial does, teaches that standing for long is worthless.
            for name, value in zip(rows, (state, action, reward, next_state, terminated), strict=True):
                rows[name].append(value)
            state, total, over = next_state, total + float(reward), terminated or truncated
        returns.append(total)
    outplay.get(buffer.add.remote({name: np.array(column) for name, column in rows.items()}))
    return returns, len(rows["actions"])


# What it has to remember goes in and comes out, so that it needs no process of its own between two rounds. Whether
# there is enough to learn from, the main program knows: the tutorial resets its flag in every round and asks each time.
@outplay.remote
def worker_train(server: Any, buffer: Any, memory: dict[str, Any] | None, updates: int) -> dict[str, Any]:
    main = DQN(outplay.get(server.get_weights.remote()))
    target = DQN(main.weights() if memory is None else memory["target"])
    optimizer = torch.optim.Adam(main.parameters(), lr=RATE)
    done = 0 if memory is None else memory["updates"]
    if memory is not None:
        optimizer.load_state_dict(memory["optimizer"])
    drawn = outplay.get(buffer.sample.remote(BATCH * updates))  # for all updates of this round in one call
    rows = {name: torch.tensor(column).split(BATCH) for name, column in drawn.items()}
    for i in range(updates):
        with torch.no_grad():
            best = main(rows["next_states"][i]).argmax(-1, keepdim=True)
            following = target(rows["next_states"][i]).gather(-1, best).squeeze(-1)
            goal = REWARD_SCALE * rows["rewards"][i] + DISCOUNT * (1 - rows["terminated"][i]) * following
        value = main(rows["states"][i]).gather(-1, rows["actions"][i].unsqueeze(-1)).squeeze(-1)
        optimizer.zero_grad()
        nn.functional.smooth_l1_loss(value, goal).backward()
        nn.utils.clip_grad_norm_(main.parameters(), 10.0)
        optimizer.step()
        done += 1
        if done % TARGET_EVERY == 0:
            target.load_state_dict(main.state_dict())
    outplay.get(server.set_weights.remote(main.weights()))
    return {"target": target.weights(), "optimizer": optimizer.state_dict(), "updates": done}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["inline", "process", "ray"], default="process")
    parser.add_argument("--address", help='of a Ray cluster: "auto" or "host:port"')
    parser.add_argument("--agents", type=int, default=2)
    parser.add_argument("--most-steps", type=int, default=150_000)
    parser.add_argument("--save", help="write the network's weights here, as .npz")
    args = parser.parse_args()
    if args.agents < 1:
        parser.error(f"--agents is {args.agents}: at least one has to play")

    # A slot for each agent and one for the trainer, whatever the machine has; the two actors take none.
    slots = {} if args.address else {"num_cpus": args.agents + 1}
    outplay.init(args.engine, address=args.address, **slots)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # inline the trainer runs here, and more are no faster for layers this small
    server, buffer = ParameterServer.remote(DQN().weights()), DataBuffer.remote(SIZE)
    steps, rounds, updates, returns = 0, 0, 0, []

    def next_agent() -> Any:
        nonlocal rounds
        rounds += 1
        epsilon = max(EPSILON_LEAST, 1 - steps / EPSILON_STEPS)
        return worker_agents.remote(server, buffer, epsilon, 2, rounds)

    agents, trainer, memory = [next_agent() for _ in range(args.agents)], None, None
    while steps < args.most_steps:
        ready, _ = outplay.wait([*([] if trainer is None else [trainer]), *agents], num_returns=1)
        if ready[0] is trainer:
            memory, trainer = outplay.get(trainer), None  # if it failed, that is raised here
        else:
            agents.remove(ready[0])
            played, length = outplay.get(ready[0])
            returns += played
            steps += length
            mean = sum(returns[-WINDOW:]) / len(returns[-WINDOW:])
            print(f"steps {steps}, episodes {len(returns)}, updates {updates}, mean return {mean:.1f}", flush=True)
            if len(returns) >= WINDOW and mean >= GOAL:
                print(f"solved after {steps} steps")
                break
        owed = int(steps * UPDATES_PER_STEP) - updates if steps >= FIRST_STEPS else 0
        if trainer is None and owed >= LEAST_UPDATES:
            trainer = worker_train.remote(server, buffer, memory, owed)
            updates += owed
        elif owed > MOST_OWED:
            continue  # agents wait for the trainer, or it would learn from what an old network did
        while len(agents) < args.agents:
            agents.append(next_agent())
    if trainer is not None:
        outplay.get(trainer)  # its last round counts, too
    if args.save:
        outplay.get(server.save.remote(args.save))
    outplay.shutdown()


if __name__ == "__main__":
    main()
