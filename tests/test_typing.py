"""mypy, with its plugin `outplay.mypy`, accepts the Python blocks of README and docs and knows the public API."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_documents import DOCUMENTS, ROOT, blocks, file_of

_WITHOUT_TORCH = "[mypy-torch.*]\nfollow_imports = skip\n"  # reading its source takes most of the time


def write_programs(folder: Path) -> list[str]:
    """Write the blocks of each document as one program, files as files. Returns the names."""
    programs: dict[str, list[str]] = {}
    for document in DOCUMENTS:
        for text in (text for language, text in blocks(document) if language == "python"):
            name = file_of(text, r"\.py") or f"{document.stem.replace('-', '_').lower()}_md.py"
            programs.setdefault(name, []).append(text)
    for name, texts in programs.items():
        (folder / name).write_text("\n".join(texts))
    return sorted(programs)


def errors(folder: Path, names: list[str], cache: Path, config: str) -> list[str]:
    """The errors that a user's mypy reports."""
    settings = "plugins = outplay.mypy\ncheck_untyped_defs = true\nwarn_unused_ignores = true\n"
    untyped = "\n[mypy-onnxruntime.*]\nignore_missing_imports = true\n"  # it has no types
    (folder / "mypy.ini").write_text(f"[mypy]\n{settings}{config}{untyped}")
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", str(cache), *names]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if ": error: " in line]


def errors_of_examples(folder: Path, cache: Path, config: str) -> list[str]:
    names = write_programs(folder)
    assert "readme_md.py" in names
    (folder / "typed_api.py").write_text((ROOT / "tests" / "typed_api.py").read_text())
    return errors(folder, [*names, "typed_api.py"], cache, config)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_examples_and_the_public_api_have_types(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    cache = pytestconfig.cache.mkdir("mypy") if pytestconfig.cache else tmp_path / "cache"
    assert errors_of_examples(tmp_path, cache, _WITHOUT_TORCH) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_examples_have_types_with_those_of_torch(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    cache = pytestconfig.cache.mkdir("mypy-torch") if pytestconfig.cache else tmp_path / "cache"
    assert errors_of_examples(tmp_path, cache, "") == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_wrong_example_is_noticed(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    (tmp_path / "wrong.py").write_text("import outplay\nref: outplay.Ref[int] = outplay.put('x')\noutplay.gett(ref)\n")
    cache = pytestconfig.cache.mkdir("mypy") if pytestconfig.cache else tmp_path / "cache"
    found = errors(tmp_path, ["wrong.py"], cache, _WITHOUT_TORCH)
    assert len(found) == 2, found
