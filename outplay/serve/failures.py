"""Errors of requests as JSON: {"error": one sentence}."""

from __future__ import annotations

import logging

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from outplay.errors import ConfigError, EnvError
from outplay.serve.batching import OverloadedError
from outplay.serve.sessions import TooManySessionsError
from outplay.web.answers import error_answer, http_error_answer

log = logging.getLogger("outplay")

_PATHS = "there is nothing at this path; there are: /act, /sessions, /ws, /info, /health, /metrics"
_LATER = {"Retry-After": "1"}


def error_response(error: Exception) -> JSONResponse:
    """The response for an exception. What is not a mistake of the client is logged."""
    if isinstance(error, HTTPException):
        return http_error_answer(error, _PATHS)
    if isinstance(error, (ConfigError, EnvError)):
        return error_answer(400, str(error))
    if isinstance(error, OverloadedError):
        return error_answer(503, "too many observations wait for an action; try again later", _LATER)
    if isinstance(error, TooManySessionsError):
        return error_answer(503, "there are too many sessions; delete some, or try again later", _LATER)
    log.error("a request failed", exc_info=error)
    return error_answer(500, "internal error: the log of the server has the reason")
