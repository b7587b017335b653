"""Who may use the dashboard, and the security headers of all answers.

Without a token, the Host must be loopback and a page that asks must be the dashboard's own. With a token, the API needs
it: as a header, or as the cookie that the printed link sets. What changes something also checks Host and Origin, and
takes JSON only: a form of another page cannot send it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outplay.web.access import HOST_REFUSED, Access
from outplay.web.addresses import host_in, is_ip
from outplay.web.answers import error_answer

_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_REFUSED = (
    "the token is missing or wrong: open the link that `outplay dashboard` printed, or send the header "
    "Authorization: Bearer TOKEN"
)
_ORIGIN = "this Origin is not allowed: pages of other servers must not use the dashboard"
_HOST = "this Host is not allowed: open the page by the address or the name of the machine"
_JSON = "send JSON, with the header Content-Type: application/json"
_READING = ("GET", "HEAD", "OPTIONS")


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, host: str, port: int, token: str | None) -> None:
        self._app = app
        self._access = Access(host, token)
        self._name = f"outplay_token_{port}"
        # A token may have characters that cookies must not have; and cookies should not tell it.
        self._cookie = hmac.digest((token or "").encode(), b"outplay dashboard", hashlib.sha256).hex()
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        answer = self._refusal(scope) or self._with_cookie(scope)
        await (answer or self._app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        is_api = scope["path"].startswith("/api/")
        is_changing = scope["type"] == "websocket" or scope["method"] not in _READING
        if not self._access.needs_token and not self._access.is_own_host(headers):
            return error_answer(403, HOST_REFUSED)
        if (is_changing or is_api) and not _is_same_origin(headers):
            return error_answer(403, _ORIGIN)
        if is_changing and self._access.needs_token and not self._is_machine(headers):
            return error_answer(403, _HOST)
        if is_api and self._access.needs_token and not self._has_token(headers):
            return error_answer(401, _REFUSED, {"WWW-Authenticate": "Bearer"})
        if is_changing and scope["type"] == "http" and not _is_json(headers):
            return error_answer(415, _JSON)
        return None

    def _is_machine(self, headers: Headers) -> bool:
        """Whether the Host is an address or a name of this machine. DNS rebinding needs another name."""
        host = host_in(f"//{headers.get('host', '')}")
        if host is None:
            return False
        own = os.uname().nodename.lower().partition(".")[0]
        return self._access.is_own_host(headers) or is_ip(host) or host.partition(".")[0] == own

    def _has_token(self, headers: Headers) -> bool:
        if self._access.has_token(headers):
            return True
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self._name)
        except CookieError:
            return False
        return found is not None and hmac.compare_digest(found.value.encode(), self._cookie.encode())

    def _with_cookie(self, scope: Scope) -> Response | None:
        """GET /?token=… sets the cookie and leads to the same address without the token."""
        if scope["type"] != "http" or scope["path"] != "/" or scope["method"] != "GET" or self._token is None:
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if not given:
            return None
        if not hmac.compare_digest(given[-1].encode(), self._token.encode()):
            return error_answer(401, _REFUSED, {"WWW-Authenticate": "Bearer"})
        rest = urlencode([pair for pair in query if pair[0] != "token"])
        answer = RedirectResponse("/" + (f"?{rest}" if rest else ""), 303)
        answer.set_cookie(self._name, self._cookie, path="/", httponly=True, samesite="strict")
        return answer


def _is_same_origin(headers: Headers) -> bool:
    """Whether the request is from a page of this server, or from no page: programs send no Origin."""
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    if origin is None:
        return True
    try:
        found = urlsplit(origin)
        return found.scheme in ("http", "https") and found.netloc.lower() == headers.get("host", "").lower()
    except ValueError:
        return False


def _is_json(headers: Headers) -> bool:
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"
