"""Optuna's storages: in memory, or a database that several drivers share."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from outplay.errors import ConfigError

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage


def open_study(
    storage: str | BaseStorage | None, name: str | None, modes: tuple[str, ...], sampler: BaseSampler
) -> tuple[Study, BaseStorage]:
    """The study of this name, a new one if there is none, and its storage. Raises ConfigError if that is impossible."""
    import optuna

    directions = ["maximize" if mode == "max" else "minimize" for mode in modes]
    if storage is None:
        memory = optuna.storages.InMemoryStorage()
        return _quietly(storage=memory, sampler=sampler, directions=directions), memory
    if name is None:
        raise ConfigError(
            "storage needs a study_name: drivers with the same storage and study_name share their results"
        )
    opened = open_storage(storage) if isinstance(storage, str) else storage
    study = _quietly(storage=opened, sampler=sampler, directions=directions, study_name=name, load_if_exists=True)
    if [direction.name.lower() for direction in study.directions] != directions:
        found = ", ".join({"maximize": "max", "minimize": "min"}[d.name.lower()] for d in study.directions)
        raise ConfigError(f"the study {name!r} in this storage has mode {found}, not {', '.join(modes)}")
    return study, opened


def open_storage(url: str) -> BaseStorage:
    """Raises ConfigError if the URL is wrong, its driver is not installed, or the server does not answer."""
    import optuna
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    try:
        parsed = make_url(url)
    except SQLAlchemyError:
        raise ConfigError(f"storage must be a URL such as postgresql://user@host/database, not {url!r}") from None
    # Writers of SQLite wait for each other, and connections are closed after use; a server may have closed a connection
    # that was idle.
    options: dict[str, Any] = {"pool_pre_ping": True}
    if parsed.get_backend_name() == "sqlite":
        options = {"connect_args": {"timeout": 60}, "poolclass": NullPool}
    shown = parsed.render_as_string(hide_password=True)
    try:
        storage = optuna.storages.RDBStorage(url, engine_kwargs=options)
    except ImportError as error:
        reason = str(error.__cause__ or error.__context__ or error)
        raise ConfigError(f"storage {shown!r} needs a database driver: {_first_line(reason)}") from error
    except (SQLAlchemyError, optuna.exceptions.OptunaError) as error:
        cause = error.__cause__ or error
        raise ConfigError(f"storage {shown!r} cannot be opened: {_first_line(str(cause))}") from error
    weakref.finalize(storage, storage.engine.dispose)  # closes its connections
    return storage


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no reason given"


def _quietly(**arguments: Any) -> Study:
    """optuna.create_study without its line in the log."""
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(level, optuna.logging.WARNING))
    try:
        return optuna.create_study(**arguments)
    finally:
        optuna.logging.set_verbosity(level)
