"""A file from disk does not decide which code runs: only with trust are the folders that it names looked into."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from outplay import PPO, CheckpointError, EnvError
from outplay.envs import check_trust
from tests.cli.common import SMALL, Outcome, exit_code
from tests.cli.conftest import cli  # noqa: F401 - a fixture

MODULE = """
from pathlib import Path
from tests.probes import Walk

Path({marker!r}).touch()
"""


class Scene:
    """A run of `mymaze:Walk` from a stranger: its files name a folder with a module of the same name as the user's."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.hostile, self.own = folder / "hostile", folder / "own"
        for place in (self.hostile, self.own):
            place.mkdir()
            (place / "mymaze.py").write_text(MODULE.format(marker=str(place / "was imported")))
        monkeypatch.chdir(self.own)
        monkeypatch.setenv("OUTPLAY_RESULTS", str(folder / "results"))
        path = list(sys.path)
        self.start = lambda: monkeypatch.setattr(sys, "path", list(path))
        assert self.outplay("train", "--env", "mymaze:Walk", *SMALL, "--stop", "training_iteration=1") == 0
        (self.run,) = (folder / "results").glob("*/*")
        (self.checkpoint,) = self.run.glob("checkpoints/*")

    def name_the_hostile_folder(self) -> None:
        state = self.checkpoint / "state.json"
        state.write_text(json.dumps({**json.loads(state.read_text()), "env_folders": [str(self.hostile)]}))
        manifest = self.checkpoint / "manifest.json"
        digest = hashlib.sha256(state.read_bytes()).hexdigest()
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "state.json": digest}))
        config = self.run / "config.yaml"
        (body,) = yaml.safe_load(config.read_text()).values()
        config.write_text(yaml.safe_dump({"default": {**body, "import_from": [str(self.hostile)]}}))
        (self.folder / "stranger.yaml").write_text(config.read_text())

    def outplay(self, *arguments: str) -> int:
        """The exit code of a command in the user's folder, as from a fresh interpreter."""
        self.start()
        self.monkeypatch.delitem(sys.modules, "mymaze", raising=False)
        importlib.invalidate_caches()
        return exit_code(self.monkeypatch, *arguments)

    def use(self, way: str, *more: str) -> int:
        """Use the run or its checkpoint, the environment repeated."""
        self.name_the_hostile_folder()
        for place in (self.hostile, self.own):
            (place / "was imported").unlink(missing_ok=True)
        commands = {
            "evaluate": ["evaluate", str(self.checkpoint), "--env", "mymaze:Walk", "--episodes", "1"],
            "resume": ["train", "--resume", str(self.run), "--env", "mymaze:Walk", "--stop", "training_iteration=2"],
            "dry run": ["train", "--resume", str(self.run), "--env", "mymaze:Walk", "--dry-run"],
            "file": ["train", "-f", str(self.folder / "stranger.yaml"), "--stop", "training_iteration=1"],
        }
        return self.outplay(*commands[way], *more)

    def imported(self) -> list[str]:
        return [place.name for place in (self.hostile, self.own) if (place / "was imported").exists()]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


@pytest.mark.parametrize("way", ["evaluate", "resume", "dry run", "file"])
def test_only_trust_looks_into_folders_that_a_file_names(
    scene: Scene, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scene.use(way) == 0
    assert scene.imported() == ["own"]

    (scene.own / "mymaze.py").unlink()
    capsys.readouterr()
    assert scene.use(way) == 2
    assert scene.imported() == []
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "no module 'mymaze'" in sentence
    assert "(with --trust, or trust=True, also the folders that the run or checkpoint names)" in sentence

    assert scene.use(way, "--trust") == 0
    assert scene.imported() == ["hostile"]


def test_only_trust_looks_into_folders_that_a_checkpoint_names(scene: Scene) -> None:
    scene.use("dry run")
    (scene.own / "was imported").unlink()
    scene.monkeypatch.delitem(sys.modules, "mymaze")
    with PPO.from_checkpoint(scene.checkpoint, env="mymaze:Walk"):
        assert scene.imported() == ["own"]
    (scene.own / "mymaze.py").unlink()
    (scene.own / "was imported").unlink()
    scene.monkeypatch.delitem(sys.modules, "mymaze")
    importlib.invalidate_caches()
    with pytest.raises(EnvError, match="no module 'mymaze'"):
        PPO.from_checkpoint(scene.checkpoint, env="mymaze:Walk")
    assert scene.imported() == []
    with PPO.from_checkpoint(scene.checkpoint, trust=True):
        assert scene.imported() == ["hostile"]


@pytest.mark.parametrize("env", ["outplay.envs.examples:RepeatAfterMe", "outplay.envs.examples.memory.RepeatAfterMe"])
def test_an_example_of_outplay_needs_no_trust(cli: Callable[..., Outcome], tmp_path: Path, env: str) -> None:  # noqa: F811
    code, out, err = cli("train", "--env", env, *SMALL, "--stop", "training_iteration=1")
    assert code == 0, err
    assert "--trust" not in out
    (run,) = (tmp_path / "results").glob("*/*")
    assert cli("train", "--resume", str(run), "--stop", "training_iteration=2")[0] == 0
    code, out, err = cli("evaluate", str(run), "--episodes", "1")
    assert code == 0, err
    assert "\n1 episode, " in out


@pytest.mark.parametrize(
    "env", ["outplay.imports:import_for", "outplay.envs.examples.maze:np.load", "outplay.envs.examples:maze.np"]
)
def test_other_names_in_outplay_need_trust(env: str) -> None:
    """A function that imports, or that reads files, may be called with any env_config."""
    with pytest.raises(CheckpointError, match="which would be imported; if you trust it"):
        check_trust(env, None, False, "it", "add --trust")
