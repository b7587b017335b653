"""Errors as JSON, {"error": one sentence}, and the bodies of requests."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse


def error_answer(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": sentence}, status, headers)


def http_error_answer(error: HTTPException, paths: str) -> JSONResponse:
    """The answer for an HTTPException. `paths`: the sentence about a path that does not exist."""
    sentence = error.detail
    if error.status_code == 404 and sentence == "Not Found":
        sentence = paths
    if error.status_code == 405:
        sentence = f"this path does not take this method; it takes {(error.headers or {}).get('Allow', '')}"
    return error_answer(error.status_code, sentence, error.headers)


async def body_of(request: Request, most: int) -> bytes:
    """The body of a request. Raises HTTPException 413 as soon as it is too large."""
    too_large = HTTPException(413, f"the body is larger than {most:,} bytes, the limit of this server")
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > most:
        raise too_large
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise too_large
        parts.append(part)
    return b"".join(parts)
