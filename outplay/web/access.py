"""Who may talk to a server: the token, and the Host and Origin headers.

A server on loopback without a token must not answer web pages of other hosts that a browser on this machine shows.
With DNS rebinding such a page reaches 127.0.0.1 under its own name, which is then the Host. A page may also open a
WebSocket, or send a simple request, to 127.0.0.1: then its own address is the Origin.
"""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers

from outplay.web.addresses import host_in, is_loopback

HOST_REFUSED = "this Host is not allowed: without a token, the server answers to localhost only"
ORIGIN_REFUSED = "this Origin is not allowed: without a token, web pages of other hosts are refused"
TOKEN_REFUSED = "the token is missing or wrong: send the header Authorization: Bearer TOKEN"  # noqa: S105


class Access:
    """What the headers of a request are compared with."""

    def __init__(self, host: str, token: str | None) -> None:
        """`host`: the address that the server listens on."""
        self._host = host.lower()
        self._expected = None if token is None else f"Bearer {token}".encode()

    @property
    def needs_token(self) -> bool:
        return self._expected is not None

    def is_own_host(self, headers: Headers) -> bool:
        return self._is_own(host_in(f"//{headers.get('host', '')}"))

    def is_own_origin(self, headers: Headers) -> bool:
        """Whether a page of this server sent the request, or no page: programs send no Origin. Ports may differ."""
        origin = headers.get("origin")
        return origin is None or self._is_own(host_in(origin))

    def has_token(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = f"{scheme.title()} {token}".encode("latin-1")  # names of schemes are not case-sensitive
        return self._expected is not None and hmac.compare_digest(given, self._expected)

    def _is_own(self, host: str | None) -> bool:
        return host is not None and (is_loopback(host) or host == self._host)
