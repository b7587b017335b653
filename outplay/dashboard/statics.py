"""The files of the page. Paths from the network are only looked up in a listing that is made at the start."""

from __future__ import annotations

from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}


class StaticFiles:
    """The files of `static/`, by their path in it."""

    def __init__(self, folder: Path | None = None) -> None:
        folder = folder or Path(__file__).parent / "static"
        self._files = {
            path.relative_to(folder).as_posix(): path
            for path in folder.rglob("*")
            if path.is_file() and path.suffix in _TYPES
        }

    def answer(self, path: str) -> Response:
        """The response for a file. Raises HTTPException 404. Browsers ask each time whether it has changed."""
        file = self._files.get(path)
        if file is None or not file.is_file():
            raise HTTPException(404, "the page has no such file")
        return FileResponse(file, headers={"Content-Type": _TYPES[file.suffix], "Cache-Control": "no-cache"})
