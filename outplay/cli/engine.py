"""The options --engine and --address."""

from __future__ import annotations

import shlex

from outplay.errors import ConfigError


def check_engine(engine: str | None, address: str | None) -> None:
    """Raise ConfigError if --engine and --address do not fit."""
    from outplay.engine.api import Settings, checked

    try:
        checked(Settings(engine or ("process" if address is None else "ray"), None, address, None))
    except ValueError as error:
        raise ConfigError(f"--engine: {error}") from error


def start_engine(engine: str | None, address: str | None) -> None:
    """Start the engine that --engine and --address name."""
    if engine is None and address is None:
        return  # the process engine starts on first use
    import outplay

    outplay.init(engine or "ray", address=address)


def engine_options(engine: str | None, address: str | None) -> str:
    """The options as they are typed, for a command that is suggested to the user."""
    given = {"--engine": engine, "--address": address}
    return "".join(f" {option} {shlex.quote(value)}" for option, value in given.items() if value is not None)
