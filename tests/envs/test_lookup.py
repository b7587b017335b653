"""Finding and making environments."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import outplay
from outplay import PPO, EnvError
from outplay.envs import EnvSpec, find_env, has_native_vector, make_vector
from outplay.envs.lookup import is_import_path
from outplay.envs.unknown import unknown_env_message
from tests import probes

# Finding


def test_a_gymnasium_id() -> None:
    assert find_env("CartPole-v1") == ("CartPole-v1", None)
    with pytest.raises(EnvError, match=r"no environment 'CartPole-v9'\. Did you mean 'CartPole-v1'"):
        find_env("CartPole-v9")
    with pytest.raises(EnvError, match=r"no environment 'Nothing'.*; give a Gymnasium id, an import path"):
        find_env("Nothing")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Breakout", "ALE/Breakout-v5"),
        ("pong", "ALE/Pong-v5"),
        ("PongNoFrameskip-v4", "ALE/Pong-v5"),
        ("BreakoutNoFrameskip-v4", "ALE/Breakout-v5"),
        ("PongDeterministic-v4", "ALE/Pong-v5"),
        ("Pong-ramDeterministic-v4", "ALE/Pong-v5"),
        ("SpaceInvaders-v0", "ALE/SpaceInvaders-v5"),
        ("ms_pacman", "ALE/MsPacman-v5"),
        ("ALE/Breakout", "ALE/Breakout-v5"),
        ("ALE/breakout-v5", "ALE/Breakout-v5"),
        ("ALE/Pong-v4", "ALE/Pong-v5"),
        ("tictactoe3d", "ALE/TicTacToe3D-v5"),
        ("cartpole", "CartPole-v1"),
        ("CartPole", "CartPole-v1"),
        ("Cartpole-v1", "CartPole-v1"),
        ("LunarLander-v2", "LunarLander-v3"),
        ("mountain-car", "MountainCar-v0"),
        ("blackjack", "Blackjack-v1"),
    ],
)
@pytest.mark.parametrize("registered", [False, True])  # ale-py registers its old ids, too, once a game was made
def test_the_usual_names_of_environments_lead_to_ids(name: str, meant: str, registered: bool) -> None:
    import ale_py.registration  # which registers them

    before = dict(gymnasium.registry)
    try:
        for known in [known for known, spec in before.items() if str(spec.entry_point).startswith("ale_py")]:
            del gymnasium.registry[known]
        if registered:
            ale_py.registration.register_v0_v4_envs()
            ale_py.registration.register_v5_envs()
        assert unknown_env_message(name, []) == f"no environment {name!r}. Did you mean {meant!r}?"
    finally:
        gymnasium.registry.clear()
        gymnasium.registry.update(before)


def test_an_import_path_is_looked_up_beside_the_file_and_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    beside, here = tmp_path / "beside", tmp_path / "here"
    for folder, module in ((beside, "env_beside"), (here, "env_here")):
        folder.mkdir()
        (folder / f"{module}.py").write_text("from tests.probes import Walk\nclass Mine(Walk):\n    pass\n")
    monkeypatch.chdir(here)
    for name in ("env_beside.Mine", "env_beside:Mine", "env_here.Mine"):
        found, factory = find_env(name, [beside])
        assert (found, factory.__name__) == (name, "Mine")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "no_such_module.Env",
            "no module 'no_such_module' for the environment 'no_such_module.Env'; searched: the folder of",
        ),
        ("tests.probes:Wlak", "module 'tests.probes' has no 'Wlak'. Did you mean 'Walk'?"),
        ("tests.probes:np", "'tests.probes:np' is a module, not a class"),
        ("tests.no_such:Walk", "no module 'tests.no_such'"),
    ],
)
def test_an_import_path_that_does_not_exist(name: str, sentence: str) -> None:
    with pytest.raises(EnvError) as caught:
        find_env(name)
    assert sentence in str(caught.value)


def test_a_module_that_raises_or_needs_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raising_env.py").write_text("1 / 0\n")
    (tmp_path / "needing_env.py").write_text("import a_module_nobody_has\n")
    with pytest.raises(EnvError, match=r"importing 'raising_env' .* raised ZeroDivisionError"):
        find_env("raising_env.Env")
    with pytest.raises(EnvError, match="needs the module 'a_module_nobody_has', which is not installed"):
        find_env("needing_env.Env")


@pytest.mark.parametrize(
    ("env", "module", "sentence"),
    [
        ("HalfCheetah-v5", "mujoco", "'HalfCheetah-v5' needs MuJoCo: pip install 'outplay[mujoco]'"),
        ("LunarLander-v3", "Box2D", "'LunarLander-v3' needs Box2D: pip install 'outplay[box2d]'"),
    ],
)
def test_an_environment_whose_package_is_missing(
    env: str, module: str, sentence: str, run_script: Callable[..., Any]
) -> None:
    result = run_script(f"import sys\nsys.modules[{module!r}] = None\nfrom outplay import PPO\nPPO({env!r})")
    assert sentence in result.stderr


def test_a_registered_name() -> None:
    outplay.register_env("probe-walk", lambda env_config: probes.Walk(**env_config))
    with PPO(env="probe-walk", config={"env_config": {"length": 3}, "num_workers": 0}) as trainer:
        assert trainer.env_spec.make().unwrapped.length == 3  # type: ignore[attr-defined]
    assert not is_import_path("probe-walk")
    with pytest.raises(outplay.ConfigError, match="takes a class or a function, not 5"):
        outplay.register_env("x", 5)  # type: ignore[arg-type]


def test_what_counts_as_code_to_import() -> None:
    assert is_import_path("custom_env.CustomEnv")
    assert is_import_path("package.module:Class")
    assert not is_import_path("CartPole-v1")
    assert not is_import_path("ALE/Pong-v5")


# Making


def test_env_config_is_one_dict_or_keywords() -> None:
    def takes_env_config(env_config: dict[str, Any]) -> Any:
        return probes.Walk(**env_config)

    def takes_config(config: dict[str, Any]) -> Any:
        return probes.Walk(**config)

    for factory in (takes_env_config, takes_config, probes.Walk):
        spec = EnvSpec("it", factory, {"length": 3})
        assert spec.make().unwrapped.length == 3  # type: ignore[attr-defined]
    with pytest.raises(EnvError, match=r"'it' could not be created with env_config \{'size': 3\}: TypeError"):
        EnvSpec("it", probes.Walk, {"size": 3}).make()
    with pytest.raises(EnvError, match="could not be created with env_config"):
        EnvSpec("CartPole-v1", None, {"size": 3}).make()


def test_time_limits_and_frame_stacks() -> None:
    env = EnvSpec("it", probes.Walk, max_episode_steps=2, frame_stack=3).make()
    observation, _ = env.reset(seed=0)
    assert observation.shape == (3, 2)
    env.step(1)
    assert env.step(1)[3] is True
    assert make_vector(EnvSpec("CartPole-v1", max_episode_steps=3), 2).cart.max_episode_steps == 3  # type: ignore[attr-defined]


def test_an_old_environment_is_adapted_with_a_word_on_what_to_change(caplog: pytest.LogCaptureFixture) -> None:
    env = EnvSpec("not seen before", probes.Old, {"cut": True}).make()  # each name is told once
    assert "let reset(seed=None, options=None) return (observation, info)" in caplog.text
    first, info = env.reset(seed=4)
    again, _ = env.reset(seed=4)
    assert np.array_equal(first, again)
    assert info == {}
    steps = [env.step(1) for _ in range(5)]
    assert [(s[2], s[3]) for s in steps] == [(False, False)] * 4 + [(False, True)]
    env = EnvSpec("old one", probes.Old).make()
    env.reset(seed=4)
    assert [env.step(1)[2:4] for _ in range(5)][-1] == (True, False)


def test_a_vector_is_refused_by_the_name_of_its_autoreset_mode() -> None:
    def vector() -> Any:
        return gymnasium.make_vec("CartPole-v1", 2)

    with pytest.raises(EnvError, match=r"is a VectorEnv \(autoreset mode AutoresetMode.NEXT_STEP\)"):
        EnvSpec("it", vector).make()


def test_something_that_is_no_environment() -> None:
    with pytest.raises(EnvError, match=r"'it' \(a dict\) has no reset"):
        EnvSpec("it", dict).make()


def test_which_vector_is_used() -> None:
    assert has_native_vector(EnvSpec("CartPole-v1"))
    assert has_native_vector(EnvSpec("CartPole-v1", None, {"sutton_barto_reward": True}))
    assert not has_native_vector(EnvSpec("CartPole-v1", frame_stack=2))
    assert not has_native_vector(EnvSpec("Acrobot-v1"))
    assert has_native_vector(EnvSpec("ALE/Pong-v5"))
    assert not has_native_vector(EnvSpec("ALE/Pong-v5", atari_preprocessing=False))
