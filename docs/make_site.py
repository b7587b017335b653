"""Makes the site from the repository as it is: hooks of mkdocs, and an extension of griffe, which reads docstrings.

Links in README and docs are relative paths in the repository, so that they also work where the repository is browsed.
In the site, README is the first page, and each file outside of docs/ that a page links to is a page too.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")
EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
DEFINITIONS = re.compile(r"(?:^|(?<=\n\n))(?:\w+ {2,}\S.*(?:\n {4,}\S.*)*(?:\n|$))+")


def on_files(files: Files, config: Any) -> Files:
    """Add README and the linked files outside of docs/."""
    for path in sorted(_outside()):
        content = (ROOT / path).read_text()
        if not path.endswith(".md"):
            content = f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n`````{_language(path)}\n{content}`````\n"
        files.append(File.generated(config, _page_of(path), content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point the links at pages of the site."""
    origin = _origin_of(page.file.src_uri)

    def link(match: re.Match[str]) -> str:
        target = _target(origin, match[0])
        if not (ROOT / target).is_file():
            return match[0]  # mkdocs reports it
        return posixpath.relpath(_page_of(target), posixpath.dirname(page.file.src_uri) or ".")

    return LINK.sub(link, markdown)


def _outside() -> set[str]:
    """README, and all files outside of docs/ that can be reached from it and from docs/ by links."""
    found: set[str] = set()
    left = ["README.md", *(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]
    while left:
        path = left.pop()
        if path in found:
            continue
        if not path.startswith("docs/"):
            found.add(path)
        left += [target for target in _links(path) if not target.startswith("docs/")]
    return found


def _links(path: str) -> Iterator[str]:
    if path.endswith(".md"):
        targets = (_target(path, match[0]) for match in LINK.finditer((ROOT / path).read_text()))
        yield from (target for target in targets if (ROOT / target).is_file())


def _target(path: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def _page_of(path: str) -> str:
    """The page or picture of the site for a file of the repository."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return path if path.endswith(".md") else f"{path}.md"


def _origin_of(page: str) -> str:
    """The file of the repository for a page of the site."""
    if page == "index.md":
        return "README.md"
    return f"docs/{page}" if (ROOT / "docs" / page).is_file() else page


def _language(path: str) -> str:
    return {".py": "python", ".yml": "yaml", ".yaml": "yaml"}.get(Path(path).suffix, "text")


class Docstrings(griffe.Extension):
    """Outplay's docstrings as Markdown: examples become code, `name  description` lists become lists."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    """A docstring with its examples and lists in Markdown.

    >>> as_markdown("One line.\\n\\n>>> f(1)\\n2")
    'One line.\\n\\n```pycon\\n>>> f(1)\\n2\\n```'
    >>> as_markdown("a   the first\\nbc  the second")
    '- `a`: the first\\n- `bc`: the second\\n'
    """
    listed = DEFINITIONS.sub(lambda match: _as_list(match[0]), docstring)
    return EXAMPLE.sub(lambda match: f"```pycon\n{match[0]}\n```", listed)


def _as_list(definitions: str) -> str:
    lines = re.sub(r"\n {4,}", " ", definitions).splitlines()
    return "".join("- `{}`: {}\n".format(*re.split(r" {2,}", line, maxsplit=1)) for line in lines)
