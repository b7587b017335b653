"""Every Python block of README and docs runs, every link leads somewhere, and what they list is complete."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from outplay.registry import algorithms

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
DOCUMENTS += sorted((ROOT / "docs").rglob("*.md"))


# Commands that are not run, with the reason; and what makes the long ones short.
NOT_RUN = {
    "git clone": "the repository is here already",
    "make ": "make test is what runs this",
    "pip install": "needs a network",
    "source ": "the tests have their environment",
    "--address auto": "needs a Ray cluster",
    "ray ": "needs a Ray cluster",
    "export RAY": "needs a Ray cluster",
    "python examples/parallel_gradients.py": "needs a Ray cluster; the example has a test of its own below",
    "python parallel_gradients.py": "needs a Ray cluster",
    "outplay serve": "runs until it is stopped; the Python of the same page serves, too",
    "outplay dashboard": "runs until it is stopped; tests/dashboard start it",
    "--dashboard": "opens a browser; tests/dashboard run it",
    "curl ": "needs the server",
    "serve run": "needs ray[serve]",
    "python examples/pong_": "tests of their own run them",
    "python examples/train_classifier.py": "a test of its own runs it",
    "python examples/dqn_by_hand.py": "a test of its own runs it",
    "num_gpus=1": "needs a GPU",
    "outplay train pong-gpu": "needs a GPU",
    "python benchmarks/": "minutes long; its figures are in RESULTS.md",
    ".venv/bin/": "other tests run these",
}
# With many commands; `make test-all` runs them.
LONG = (
    *(
        "dqn.md",
        "pqn.md",
        "td3.md",
        "ddpg.md",
        "appo.md",
        "bc.md",
        "marwil.md",
        "cql.md",
        "iql.md",
        "offline.md",
        "pong.md",
        "sac.md",
        "impala.md",
        "models.md",
        "learners.md",
        "checkpoints.md",
        "testing.md",
        "callbacks.md",
        "environments.md",
        "reproducibility.md",
    ),
    *("from-stable-baselines3.md", "from-rllib.md", "concepts.md", "curriculum.md", "evaluation.md", "loggers.md"),
    *("tune.md", "export.md", "train.md", "serving.md", "sharing.md", "plots.md"),
)
SHORTER = {
    "outplay train cartpole-dqn": " --stop training_iteration=3",
    "outplay train cartpole-pqn": " --stop training_iteration=3",
    "outplay train cartpole-sac": " --stop training_iteration=3",
    **dict.fromkeys(
        [f"outplay train cartpole-{name}" for name in ("bc", "marwil", "cql", "iql")],
        " --stop training_iteration=1 --config train_batch_size=512",
    ),
    "outplay train pendulum-": " --stop training_iteration=3",
    "outplay train pong-dqn": " --stop training_iteration=1 --config train_batch_size=64",
    "outplay train pong-pg": " --stop training_iteration=1 --config max_episode_steps=50",
    "outplay train pong": " --stop training_iteration=1 --config train_batch_size=64",
    "outplay train --env": " --stop training_iteration=1",
    "python -m pytest -q test_package.py": " -k 'TestCorridor or refuses or restored'",
    "outplay train -f": " --stop training_iteration=1 --config train_batch_size=256",
}


def blocks(document: Path) -> list[tuple[str, str]]:
    """(language, text) of every block; one without a language is a picture or an output."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)
    return [(language, text) for language, text in found if language]


def file_of(text: str, suffix: str) -> str | None:
    """A block that begins with a comment like `# maze.py` is a file."""
    match = re.match(rf"# (\S+{suffix})\n", text)
    return match[1] if match else None


def commands(text: str) -> list[str]:
    """The commands of a block that are to be run, made short."""
    chosen = []
    for line in text.replace("\\\n", " ").splitlines():
        command = line.split("  #")[0].strip()
        if not command or command.startswith("#") or any(part in command for part in NOT_RUN):
            continue
        chosen.append(command + next((more for start, more in SHORTER.items() if command.startswith(start)), ""))
    return chosen


@pytest.mark.timeout(600)  # some have many commands, each a program of its own
@pytest.mark.parametrize(
    "document",
    [
        pytest.param(document, marks=[pytest.mark.slow] if document.name in LONG else [], id=document.name)
        for document in DOCUMENTS
        if blocks(document)
    ],
)
def test_its_code_runs(document: Path, tmp_path: Path, run_script: Callable[..., Any]) -> None:
    """Files are written, commands run where they stand; the Python blocks are one program, from top to bottom."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OUTPLAY_RESULTS": str(tmp_path / "results"),
    }
    program = []
    for language, text in blocks(document):
        assert language in ("python", "sh", "yaml", "text", "toml"), f"{document.name} has a block of {language}"
        if language == "sh":
            for command in commands(text):
                result = subprocess.run(
                    command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
                )
                assert result.returncode == 0, f"{command}\n{result.stderr}"
        elif (name := file_of(text, r"\.(py|ya?ml)")) is not None:
            (tmp_path / name).write_text(text)
        elif language == "python":
            program.append(text)
    if program:
        result = run_script("\n".join(program), env=environment)
        assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_no_command_hides_in_a_block_without_a_language(document: Path) -> None:
    for text in re.findall(r"^```\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL):
        assert not re.search(r"^(outplay|python|ray) ", text, re.MULTILINE), f"{document.name}: {text}"


def test_the_list_of_settings_is_up_to_date() -> None:
    program = runpy.run_path(str(ROOT / "docs" / "make_configuration.py"))
    assert (ROOT / "docs" / "configuration.md").read_text() == program["text"](), "run `make docs`"


def test_the_readme_fits_two_screens() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


def prose(document: Path) -> str:
    """The text without its blocks of code."""
    return re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(document: Path) -> set[str]:
    """The anchors of the headings: lower case, without punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", prose(document), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, *(ROOT / "benchmarks" / name for name in ("RESULTS.md", "TABLE.md"))], ids=lambda d: d.name
)
def test_its_links_lead_somewhere(document: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", prose(document)):
        path = document.parent / target if target else document
        assert path.is_file(), f"{document.name} points to {target}"
        if anchor:
            assert anchor in anchors(path), f"{document.name} points to {target}#{anchor}"


EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_all_extras_that_messages_and_documents_name_exist() -> None:
    """A message says `pip install 'outplay[video]'`, a document also `pip install '.[video]'`."""
    named: dict[str, str] = {}
    for path in [*DOCUMENTS, ROOT / "pyproject.toml", *(ROOT / "outplay").rglob("*.py")]:
        for extras in re.findall(r"(?:outplay|['\"]\.)\[([\w, -]+)\]", path.read_text()):
            named |= {extra.strip(): path.name for extra in extras.split(",")}
    assert {"ray", "video", "tensorboard", "envpool", "testing"} <= named.keys()
    assert {extra: place for extra, place in named.items() if extra not in EXTRAS} == {}


def rows(document: Path, first_heading: str) -> list[str]:
    """The first cells of the table whose first column has this heading."""
    table = re.search(rf"^\| {first_heading} \|.*\n\|[ -|]+\n((?:\|.*\n)+)", document.read_text(), re.MULTILINE)
    assert table is not None
    return [line.split("|")[1].strip() for line in table[1].splitlines()]


def test_the_getting_started_page_lists_all_extras() -> None:
    assert set(rows(ROOT / "docs" / "getting-started.md", "extra")) == {f"`{extra}`" for extra in EXTRAS}


def test_the_extra_all_has_all_extras_for_users() -> None:
    listed = Requirement(EXTRAS["all"][0]).extras
    assert listed == EXTRAS.keys() - {"all", "dev", "site", "testing"}
    row = re.search(r"^\| `all` \| (.*) \|$", (ROOT / "docs" / "getting-started.md").read_text(), re.MULTILINE)
    assert row is not None
    assert set(re.findall(r"`(\w+)`", row[1])) == listed


def test_the_getting_started_page_and_the_readme_name_all_algorithms() -> None:
    listed = [re.findall(r"`(\w+)`", cell)[0] for cell in rows(ROOT / "docs" / "getting-started.md", "algorithm")]
    assert sorted(listed) == sorted(algorithms.shipped)
    readme = re.search(r"^Algorithms: .*", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert readme is not None
    assert set(algorithms.shipped) <= set(re.findall(r"\w+", readme[0]))


def needed(requirement: Requirement, seen: set[tuple[str, str]]) -> Iterator[str]:
    """The names of a package and of all that it needs, as installed here."""
    name = canonicalize_name(requirement.name)
    for extra in ("", *requirement.extras):
        if (name, extra) not in seen:
            seen.add((name, extra))
            yield name
            for line in requires(name) or []:
                other = Requirement(line)
                if other.marker is None or other.marker.evaluate({"extra": extra}):
                    yield from needed(other, seen)


def test_the_lock_has_only_what_the_package_and_its_extras_need() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in EXTRAS.values() for line in extra)]
    seen: set[tuple[str, str]] = set()
    found: set[str] = set()
    for requirement in map(Requirement, lines):
        is_for_here = requirement.marker is None or requirement.marker.evaluate()
        if requirement.name not in ("outplay", "envpool") and is_for_here:  # EnvPool is not in the lock
            found |= set(needed(requirement, seen))
    locked = re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert sorted({canonicalize_name(name) for name in locked} - found) == []


@pytest.mark.parametrize("engine", ["inline", "process", pytest.param("ray", marks=pytest.mark.slow)])
def test_the_example_finds_the_weights(engine: str, run_script: Callable[..., Any]) -> None:
    text = (ROOT / "examples" / "parallel_gradients.py").read_text()
    assert len(text.splitlines()) < 60
    result = run_script(text, "--engine", engine, "--updates", "40")
    assert "weights [ 3.  -2.   0.5] bias 1.0" in result.stdout, result.stderr
