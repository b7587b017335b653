"""Where a server may listen."""

from __future__ import annotations

import ipaddress
import re
import socket
from urllib.parse import urlsplit

from outplay.errors import ConfigError

_TOKEN = re.compile(r"[\x21-\x7e]+")


def check_port(port: int) -> None:
    if not 0 <= port <= 65535:
        raise ConfigError(f"port must be from 0 to 65535, not {port}")


def check_token(token: str | None) -> None:
    if token is not None and not _TOKEN.fullmatch(token):
        raise ConfigError("the token must be printable ASCII characters without spaces, and not empty")


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach a server at this address. Names other than localhost may not be."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def host_in(address: str) -> str | None:
    """The host of an address such as http://localhost:8000 or //localhost; None if there is none."""
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound to the address. Raises ConfigError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except BaseException:
            bound.close()
            raise
    except (OSError, UnicodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise ConfigError(f"the server cannot listen on {host}, port {port}: {reason}") from error
    return bound


def url_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
