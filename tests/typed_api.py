"""What type checkers know about the public API. tests/test_typing.py checks this file; it is not run.

`assert_type` fails for another type. A `type: ignore` fails if there is no such error.
"""

from __future__ import annotations

from typing import Any, assert_type

import outplay
from outplay import DQN, PPO, Algorithm, PPOConfig, Ref, Result, Run

trainer = PPO("CartPole-v1", lr=1e-3)
assert_type(trainer.config, PPOConfig)
assert_type(trainer.config.clip_param, float)
assert_type(PPO.from_checkpoint("x").config, PPOConfig)
assert_type(DQN("CartPole-v1").config.buffer_size, int)
trainer.config.clip()  # type: ignore[attr-defined]
outplay.gett()  # type: ignore[attr-defined]
any_algorithm: Algorithm = trainer
assert_type(trainer.learn(1_000), PPO)

result = trainer.train()
assert_type(result, Result)
assert_type(result["episode_return_mean"], float)
assert_type(result["learner"], dict[str, float])
print(result["episode_reward"])  # type: ignore[typeddict-item]
assert_type(trainer.last_result["timesteps_total"], int)
assert_type(Run.create({"env": "CartPole-v1"}).step(), Result)
outplay.pretty_print(result)


class Best(outplay.Callback):
    def on_result(self, run: Run, result: dict[str, Any]) -> None:
        result["best"] = max(result["episode_returns"])


trainer.learn(1_000, callbacks=Best())
trainer.learn(1_000, callbacks=[Best(), "module:Other"])


@outplay.remote
def scaled(x: float, factor: int = 2) -> float:
    return x * factor


assert_type(scaled.remote(1.0), Ref[float])
assert_type(outplay.get(scaled.remote(1.0, factor=3)), float)
assert_type(outplay.get([scaled.remote(1.0), scaled.remote(2.0)]), list[float])
assert_type(outplay.get(outplay.put("x")), str)
assert_type(outplay.wait([scaled.remote(1.0)]), tuple[list[Ref[float]], list[Ref[float]]])
scaled.remote(scaled.remote(1.0))
scaled.remote(1.0, outplay.put(2))
assert_type(scaled.options(num_cpus=2).remote(1.0), Ref[float])
scaled.remote("x")  # type: ignore[call-overload]
scaled.remote(1.0, power=2)  # type: ignore[call-overload]
scaled.remote()  # type: ignore[call-overload]


@outplay.remote(num_returns=2)
def both(x: int) -> tuple[int, int]:
    return x, x


first, second = both.remote(1)
both.remote("x")  # type: ignore[call-overload]


@outplay.remote(max_retries=0)
def once(x: int) -> str:
    return str(x)


assert_type(once.remote(1), Ref[str])


class Counter:
    def __init__(self, start: int) -> None:
        self.value = start

    def add(self, amount: int) -> int:
        self.value += amount
        return self.value


RemoteCounter = outplay.remote(Counter)
counter = RemoteCounter.remote(start=1)
assert_type(counter, outplay.ActorHandle)
assert_type(outplay.get(counter.add.remote(1)), Any)
RemoteCounter.remote(outplay.put(1))
RemoteCounter.remote("x")  # type: ignore[call-overload]
outplay.remote(max_restarts=1)(Counter).remote(1)


@outplay.remote(max_concurrency=2)
class Buffer:
    SIZE = 10

    def __init__(self, size: int = SIZE) -> None:
        self.size = size

    def room(self) -> int:
        return self.size - Buffer.SIZE


assert_type(Buffer.remote(size=1), outplay.ActorHandle)
assert_type(Buffer.options(num_cpus=2).remote(1), outplay.ActorHandle)
Buffer.remote(outplay.put(1))
Buffer.remote("x")  # type: ignore[call-overload]
Buffer.options(num_cpus=2).remote("x")  # type: ignore[call-overload]
Buffer.remotely()  # type: ignore[attr-defined]
