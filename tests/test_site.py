"""The site of the documents: its pages, its API reference, and the build itself."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import outplay
import outplay.testing

ROOT = Path(__file__).parent.parent
PAGES = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}


def pages(nav: Any) -> list[str]:
    """The pages of the navigation, in order."""
    if isinstance(nav, str):
        return [nav]
    return [page for item in (nav.values() if isinstance(nav, dict) else nav) for page in pages(item)]


def test_the_navigation_has_every_page_once() -> None:
    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert len(listed) == len(set(listed))
    assert set(listed) >= PAGES
    assert {page for page in listed if page not in PAGES and not (ROOT / page).exists()} == {"index.md"}  # README


def test_the_readme_has_the_pages_in_the_order_of_the_navigation() -> None:
    nav = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    readme = (ROOT / "README.md").read_text().partition("## Documentation")[2]
    linked = [link.removeprefix("docs/") for link in re.findall(r"\]\(([^)]+)\)", readme)]
    assert linked == [page for page in nav if page in linked]
    assert set(linked) >= {page for page in PAGES if not page.startswith("api/")}


def documented(text: str) -> list[Any]:
    """The objects of the lines `::: path.of.an.object`; a module stands for all that it defines."""
    found: list[Any] = []
    for path in re.findall(r"^::: (\S+)$", text, re.MULTILINE):
        module, _, name = path.rpartition(".")
        thing = getattr(import_module(module), name)
        found += vars(thing).values() if isinstance(thing, ModuleType) else [thing]
    return found


def test_the_api_reference_has_every_public_name() -> None:
    found = documented("\n".join(path.read_text() for path in (ROOT / "docs" / "api").glob("*.md")))
    expected = {f"outplay.{name}": getattr(outplay, name) for name in outplay.__all__}
    for module in (outplay.util, outplay.testing):
        expected |= {f"{module.__name__}.{name}": getattr(module, name) for name in module.__all__}
    of_python = {"outplay.__version__", "outplay.util", "outplay.util.Empty", "outplay.util.Full"}
    missing = {name for name, thing in expected.items() if not any(thing is other for other in found)}
    assert missing - of_python == set()


@pytest.fixture(scope="module")
def make_site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_site", ROOT / "docs" / "make_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CLASS = ">>> class A:\n...     x = 1\n...\n...     y = 2"


@pytest.mark.parametrize(
    ("docstring", "markdown"),
    [
        ("One line.", "One line."),
        ("Text.\n\n>>> f(1)\n2\n\nMore.", "Text.\n\n```pycon\n>>> f(1)\n2\n```\n\nMore."),
        (f"Text.\n\n{CLASS}", f"Text.\n\n```pycon\n{CLASS}\n```"),
        ("Text.\n\na   one\nbc  two,\n    three\n\nEnd.", "Text.\n\n- `a`: one\n- `bc`: two, three\n\nEnd."),
        ("Tree:\n\n    A\n    └── B    (C)", "Tree:\n\n    A\n    └── B    (C)"),
    ],
)
def test_docstrings_become_markdown(docstring: str, markdown: str, make_site: ModuleType) -> None:
    assert make_site.as_markdown(docstring) == markdown


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build the site as `make site` does."""
    command = re.search(r"-m mkdocs build .*", (ROOT / "Makefile").read_text())
    assert command is not None
    arguments = [sys.executable, *command[0].split(), "--site-dir", str(site)]
    return subprocess.run(arguments, cwd=root, capture_output=True, text=True)


@pytest.mark.slow
def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    result = build(ROOT, tmp_path)
    assert result.returncode == 0, result.stderr
    training = (tmp_path / "api" / "training.html").read_text()
    assert 'id="outplay.algorithms.ppo.PPO"' in training
    assert '<span class="gp">&gt;&gt;&gt; </span>' in training  # a prompt, highlighted
    assert "<blockquote>" not in training
    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|iframe)[^>]* src="(https?:[^"]+)"', page.read_text())
        loaded += re.findall(r'<link rel="(?:stylesheet|preconnect)"[^>]* href="(https?:[^"]+)"', page.read_text())
        assert loaded == [], page
    index = json.loads((tmp_path / "search" / "search_index.json").read_text())
    found = {entry["location"].split("#")[0] for entry in index["docs"] if "fragment" in entry["text"].lower()}
    assert "concepts.html" in found


@pytest.mark.slow
@pytest.mark.parametrize("link", ["nowhere.md", "concepts.md#nowhere", "#nowhere", "../outplay/nowhere.py"])
def test_a_broken_link_fails_the_build(link: str, tmp_path: Path) -> None:
    root = tmp_path / "repository"
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(".*", "site", "__pycache__"))
    with (root / "docs" / "callbacks.md").open("a") as page:
        page.write(f"\n[a link]({link})\n")
    result = build(root, tmp_path / "site")
    assert result.returncode != 0
    assert f"contains a link '{link}'" in result.stderr
