"""Every Python block of README and docs runs, and every link points somewhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
DOCUMENTS += sorted((ROOT / "docs").glob("*.md"))


def blocks(document: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if blocks(d)], ids=lambda d: d.name)
def test_its_code_runs(document: Path, run_script: Callable[..., Any]) -> None:
    """The blocks of a document are one program, from top to bottom."""
    result = run_script("\n".join(blocks(document)))
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_its_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), f"{document.name} points to {target}"


@pytest.mark.parametrize("engine", ["inline", "process", "ray"])
def test_the_example_finds_the_weights(engine: str, run_script: Callable[..., Any]) -> None:
    text = (ROOT / "examples" / "parallel_gradients.py").read_text()
    assert len(text.splitlines()) < 60
    result = run_script(text, "--engine", engine, "--updates", "40")
    assert "weights [ 3.  -2.   0.5] bias 1.0" in result.stdout, result.stderr
