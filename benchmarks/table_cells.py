"""The cells of benchmarks/TABLE.md: environments and algorithms, with the return that others publish.

Sources. RL Zoo: benchmark.md of DLR-RM/rl-baselines3-zoo (Stable-Baselines3), one run per figure, evaluated on 150,000
steps; for Gymnasium's older versions of the same environments (HalfCheetah-v3, LunarLander-v2, …). SLM-Lab:
docs/BENCHMARKS.md of kengz/SLM-Lab 5, four runs per figure, mean over the last 100 training episodes. Tianshou:
examples/mujoco/README.md of thu-ml/tianshou, ten runs per figure, the highest evaluation on the way to 1M steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

RL_ZOO, SLM_LAB, TIANSHOU = "RL Zoo", "SLM-Lab", "Tianshou"

AFTER_40M_FRAMES = "after 10M steps"

K, M = 1_000, 1_000_000


@dataclass(frozen=True)
class Cell:
    """One environment and algorithm: what others publish, and the settings that we train with."""

    env: str
    algorithm: str  # the name of the column; "QR-DQN" is DQN with `distributional: qr`
    steps: int
    published: float
    source: str
    recipe: str | None = None  # one that ships; None: the defaults of the algorithm
    variant: str = ""  # the algorithm of the source, where it differs
    run: str = ""  # the algorithm that is trained, where it has another name than the column
    episodes: int = 100  # of the evaluation at the end

    @property
    def name(self) -> str:
        """As `--only` takes it: LunarLander-v3/PPO/300k."""
        return f"{self.env}/{self.algorithm}/{thousands(self.steps)}"

    @property
    def settings(self) -> str:
        return "defaults" if self.recipe is None else f"recipe `{self.recipe}`"

    @property
    def is_atari(self) -> bool:
        return self.env.startswith("ALE/")


def thousands(steps: int) -> str:
    """
    >>> thousands(300_000), thousands(1_000_000), thousands(2_500_000)
    ('300k', '1M', '2.5M')
    """
    return f"{steps / M:g}M" if steps >= M else f"{steps // K}k"


CELLS = [
    Cell("CartPole-v1", "PPO", 100 * K, 500, RL_ZOO),
    Cell("CartPole-v1", "DQN", 50 * K, 500, RL_ZOO, "cartpole-dqn"),
    Cell("CartPole-v1", "A2C", 500 * K, 500, RL_ZOO),
    Cell("Acrobot-v1", "PPO", 300 * K, -81.3, SLM_LAB),
    Cell("Acrobot-v1", "DQN", 100 * K, -76.6, RL_ZOO, "acrobot-dqn"),
    Cell("Acrobot-v1", "QR-DQN", 100 * K, -69.1, RL_ZOO, "acrobot-qrdqn", run="DQN"),
    Cell("Acrobot-v1", "A2C", 500 * K, -83.4, RL_ZOO),
    Cell("MountainCar-v0", "PPO", 1 * M, -110.4, RL_ZOO, "mountaincar"),
    Cell("MountainCar-v0", "DQN", 120 * K, -100.8, RL_ZOO, "mountaincar-dqn"),
    Cell("MountainCar-v0", "QR-DQN", 120 * K, -106.0, RL_ZOO, "mountaincar-qrdqn", run="DQN"),
    Cell("MountainCar-v0", "A2C", 1 * M, -111.3, RL_ZOO, "mountaincar-a2c"),
    Cell("LunarLander-v3", "PPO", 300 * K, 183.3, SLM_LAB),
    Cell("LunarLander-v3", "PPO", 1 * M, 242.1, RL_ZOO, "lunarlander"),
    Cell("LunarLander-v3", "DQN", 100 * K, 154.4, RL_ZOO, "lunarlander-dqn-100k"),
    Cell(
        "LunarLander-v3",
        "DQN",
        300 * K,
        265.9,
        SLM_LAB,
        "lunarlander-dqn",
        variant="double DQN with prioritized replay",
    ),
    Cell("LunarLander-v3", "A2C", 200 * K, 155.8, RL_ZOO, "lunarlander-a2c"),
    Cell("LunarLanderContinuous-v3", "PPO", 1 * M, 270.9, RL_ZOO, "lunarlander-continuous"),
    Cell("LunarLanderContinuous-v3", "SAC", 500 * K, 260.4, RL_ZOO, "lunarlander-continuous-sac"),
    Cell("LunarLanderContinuous-v3", "TD3", 300 * K, 207.5, RL_ZOO, "lunarlander-continuous-td3"),
    Cell("LunarLanderContinuous-v3", "A2C", 5 * M, 84.2, RL_ZOO),
    Cell("Pendulum-v1", "PPO", 100 * K, -172.2, RL_ZOO, "pendulum"),
    Cell("Pendulum-v1", "SAC", 20 * K, -157.0, RL_ZOO, "pendulum-sac"),
    Cell("Pendulum-v1", "TD3", 20 * K, -151.9, RL_ZOO, "pendulum-td3"),
    Cell("Pendulum-v1", "A2C", 1 * M, -163.0, RL_ZOO),
    Cell("MountainCarContinuous-v0", "PPO", 20 * K, 88.3, RL_ZOO, "mountaincar-continuous"),
    Cell("MountainCarContinuous-v0", "SAC", 50 * K, 94.7, RL_ZOO, "mountaincar-continuous-sac"),
    Cell("MountainCarContinuous-v0", "TD3", 300 * K, 93.5, RL_ZOO, "mountaincar-continuous-td3"),
    Cell("MountainCarContinuous-v0", "A2C", 100 * K, 91.2, RL_ZOO, "mountaincar-continuous-a2c"),
    Cell("BipedalWalker-v3", "PPO", 5 * M, 213.3, RL_ZOO, "bipedalwalker"),
    Cell("BipedalWalker-v3", "SAC", 500 * K, 297.7, RL_ZOO, "bipedalwalker-sac"),
    Cell("BipedalWalker-v3", "TD3", 1 * M, 306.0, RL_ZOO, "bipedalwalker-td3"),
    Cell("BipedalWalker-v3", "A2C", 5 * M, 299.8, RL_ZOO, "bipedalwalker-a2c"),
    Cell("HalfCheetah-v5", "PPO", 1 * M, 5819, RL_ZOO, "halfcheetah", episodes=50),
    Cell("HalfCheetah-v5", "SAC", 1 * M, 12139, TIANSHOU, "halfcheetah-sac", episodes=50),
    Cell("HalfCheetah-v5", "TD3", 1 * M, 10201, TIANSHOU, "halfcheetah-td3", episodes=50),
    Cell("HalfCheetah-v5", "A2C", 1 * M, 3041, RL_ZOO, "halfcheetah-a2c", episodes=50),
    Cell("Hopper-v5", "PPO", 1 * M, 2410, RL_ZOO, "hopper", episodes=50),
    Cell("Hopper-v5", "SAC", 1 * M, 3542, TIANSHOU, "hopper-sac", episodes=50),
    Cell("Hopper-v5", "TD3", 1 * M, 3606, RL_ZOO, "hopper-td3", episodes=50),
    Cell("Hopper-v5", "A2C", 1 * M, 733, RL_ZOO, episodes=50),
    Cell("Walker2d-v5", "PPO", 1 * M, 3479, RL_ZOO, "walker2d", episodes=50),
    Cell("Walker2d-v5", "SAC", 1 * M, 5007, TIANSHOU, "walker2d-sac", episodes=50),
    Cell("Walker2d-v5", "TD3", 1 * M, 4718, RL_ZOO, "walker2d-td3", episodes=50),
    # 10M frames of 4 per step; RL Zoo trained for 10M steps, which is four times as long.
    Cell("ALE/Pong-v5", "PPO", 10 * M // 4, 20.99, RL_ZOO, "pong", AFTER_40M_FRAMES, episodes=50),
    Cell("ALE/Pong-v5", "DQN", 10 * M // 4, 20.6, RL_ZOO, "pong-dqn", AFTER_40M_FRAMES, episodes=50),
    Cell("ALE/Pong-v5", "A2C", 10 * M // 4, 17.3, RL_ZOO, "pong-a2c", AFTER_40M_FRAMES, episodes=50),
    Cell("ALE/Breakout-v5", "PPO", 10 * M // 4, 398.0, RL_ZOO, "breakout", AFTER_40M_FRAMES, episodes=50),
    Cell("ALE/Breakout-v5", "DQN", 10 * M // 4, 358.3, RL_ZOO, "breakout-dqn", AFTER_40M_FRAMES, episodes=50),
    Cell("ALE/Breakout-v5", "A2C", 10 * M // 4, 279.8, RL_ZOO, "breakout-a2c", AFTER_40M_FRAMES, episodes=50),
]


def chosen(parts: list[str]) -> list[Cell]:
    """The cells that one of `parts` names: an environment, environment/algorithm or environment/algorithm/steps.

    * and ? match any text and any character.
    """
    found = []
    for cell in CELLS:
        levels = cell.name.removeprefix("ALE/").split("/")
        names = {"/".join(levels[:n]) for n in (1, 2, 3)} | {f"*/{cell.algorithm}", cell.name}
        if not parts or any(fnmatchcase(name, part.removeprefix("ALE/")) for part in parts for name in names):
            found.append(cell)
    return found
