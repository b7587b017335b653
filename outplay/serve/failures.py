"""Errors of requests as JSON: {"error": one sentence}."""

from __future__ import annotations

import logging

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from outplay.errors import ConfigError, EnvError
from outplay.serve.batching import OverloadedError
from outplay.serve.sessions import TooManySessionsError

log = logging.getLogger("outplay")

_PATHS = "there is nothing at this path; there are: /act, /sessions, /ws, /info, /health, /metrics"
_LATER = {"Retry-After": "1"}


def error_response(error: Exception) -> JSONResponse:
    """The response for an exception. What is not a mistake of the client is logged."""
    if isinstance(error, HTTPException):
        sentence = error.detail
        if error.status_code == 404 and sentence == "Not Found":
            sentence = _PATHS
        if error.status_code == 405:
            sentence = f"this path does not take this method; it takes {(error.headers or {}).get('Allow', '')}"
        return JSONResponse({"error": sentence}, error.status_code, error.headers)
    if isinstance(error, (ConfigError, EnvError)):
        return JSONResponse({"error": str(error)}, 400)
    if isinstance(error, OverloadedError):
        return JSONResponse({"error": "too many observations wait for an action; try again later"}, 503, _LATER)
    if isinstance(error, TooManySessionsError):
        return JSONResponse({"error": "there are too many sessions; delete some, or try again later"}, 503, _LATER)
    log.error("a request failed", exc_info=error)
    return JSONResponse({"error": "internal error: the log of the server has the reason"}, 500)
