"""Builds the parts of a Run (experiment, algorithm, callbacks) from experiments, run folders and user input."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from outplay.algorithms import Algorithm, imported
from outplay.algorithms import find_algorithm as find_algorithm  # tune imports it from here
from outplay.algorithms.saving import check_evaluation_trust
from outplay.conditions import check_level, check_reachable
from outplay.envs import check_trust, import_folders, import_path, is_import_path
from outplay.envs.lookup import apply_registrations as apply_registrations  # tune imports them from here
from outplay.envs.lookup import registrations as registrations
from outplay.errors import CheckpointError, ConfigError
from outplay.runs.bundles import is_bundle, unpacked_checkpoint
from outplay.runs.callbacks import Callback, check_callback_trust, find_callback, make_callbacks
from outplay.runs.callbacks import is_import_path as is_callback_path
from outplay.runs.checkpoint import NoCheckpointError, find_checkpoint
from outplay.runs.experiments import Experiment, nested
from outplay.runs.experiments import experiment as checked_experiment
from outplay.runs.finding import find_run
from outplay.runs.folder import RunFolder
from outplay.runs.results import as_path, runs_by_name
from outplay.runs.sinks import checked_loggers
from outplay.settings import validated

log = logging.getLogger("outplay")


def module_folders(experiment: Experiment, folders: Iterable[Path]) -> list[Path]:
    """The folders that modules are imported from, besides the working directory."""
    return [*folders, *map(Path, experiment.import_from)]


def make_algorithm(experiment: Experiment, folders: Iterable[Path] = (), resuming: bool = False) -> Algorithm:
    """Make the algorithm of an experiment. Also checks stop conditions, loggers and names of callbacks.

    `resuming`: a checkpoint will be restored, so `auto` settings are not resolved again.
    """
    search = module_folders(experiment, folders)
    checked_loggers(experiment.loggers)
    for path in experiment.callbacks:
        find_callback(path, search)
    algorithm = find_algorithm(experiment.run)(
        env=experiment.env, config=experiment.config, folders=search, resuming=resuming
    )
    try:
        _check_stop(experiment, algorithm)
    except ConfigError:
        algorithm.stop()
        raise
    return algorithm


def check_settings(data: dict[str, Any], where: str) -> None:
    """Check the settings of an experiment and of its algorithm. No environment is made."""
    experiment = checked_experiment(data, where)
    algorithm = find_algorithm(experiment.run)
    validated(algorithm.Config, experiment.config, f"{algorithm.__name__} config")


def _check_stop(experiment: Experiment, algorithm: Algorithm) -> None:
    config = algorithm.config
    try:
        check_reachable(experiment.stop, bool(config.evaluation_interval), config.info_metrics)
        check_level(experiment.stop, 0 if config.curriculum is None else len(config.curriculum.levels))
    except ConfigError as error:
        raise ConfigError(f"stop: {error}") from None


def with_stop(experiment: Experiment, algorithm: Algorithm, stop: Mapping[str, float], where: str) -> Experiment:
    """The experiment with other stop conditions. `where` begins error messages."""
    if not isinstance(stop, Mapping):
        raise ConfigError(f"{where}: stop must be conditions {{metric: value}}, not {stop!r}")
    changed = checked_experiment({**experiment.model_dump(), "stop": dict(stop)}, where)
    _check_stop(changed, algorithm)
    return changed


_OF_THE_TRAINER = ("env", "run", "config", "import_from")


def experiment_of(
    algorithm: Algorithm, env: Any, settings: str | Mapping[str, Any]
) -> tuple[Experiment, list[Callback]]:
    """The experiment and the callbacks of an algorithm that was made in Python: see `Run.record`."""
    if isinstance(settings, str):
        settings = {"name": settings}
    if not isinstance(settings, Mapping):
        raise ConfigError(f"run: a name, or settings as {{'name': …, 'loggers': …}}, are needed, not {settings!r}")
    if taken := [key for key in _OF_THE_TRAINER if key in settings]:
        raise ConfigError(f"run: {taken[0]} is an argument of the trainer itself, not of its run")
    callbacks = settings.get("callbacks", [])
    objects = [callback for callback in callbacks if not isinstance(callback, str)]
    config = {key: value for key, value in algorithm.get_config().items() if key != "env"}
    data = {**settings, "env": env, "run": type(algorithm).__name__, "config": config}
    data["callbacks"] = [callback for callback in callbacks if isinstance(callback, str)]
    experiment = checked_experiment(data, "run")
    checked_loggers(experiment.loggers)
    _check_stop(experiment, algorithm)
    return experiment, make_callbacks(experiment.callbacks, objects, module_folders(experiment, algorithm.env_folders))


def callbacks_of(experiment: Experiment, callbacks: Sequence[Callback | str]) -> list[Callback]:
    """Callbacks from objects and import paths."""
    objects = [callback for callback in callbacks if not isinstance(callback, str)]
    paths = [callback for callback in callbacks if isinstance(callback, str)]
    return make_callbacks(paths, objects, module_folders(experiment, ()))


_changes_are_meant: ContextVar[bool] = ContextVar("changes_are_meant", default=False)


@contextmanager
def meant_changes() -> Iterator[None]:
    """A context in which runs are resumed with other settings without a warning: trials of a study."""
    token = _changes_are_meant.set(True)
    try:
        yield
    finally:
        _changes_are_meant.reset(token)


def recorded_experiment(
    folder: RunFolder,
    change: Callable[[Experiment], Experiment],
    env: Any = None,
    callbacks: Sequence[str] = (),
    trust: bool = False,
) -> Experiment:
    """The experiment in a run's config.yaml, modified by `change`.

    Import paths in config.yaml must be trusted, or repeated: the environment in `env`, callbacks in `callbacks`,
    `env_task_fn` and classes of the model by `change`.
    """
    recorded = folder.experiment(trust)
    where = f"run {folder}"
    check_trust(recorded.env, env, trust, where, f"repeat it with --env {recorded.env}, or add --trust")
    check_callback_trust(recorded.callbacks, callbacks, trust, where)
    check_evaluation_trust(recorded.config, env, trust, where, "add --trust")
    changed = change(recorded.model_copy(update={"config": imported.without_untrusted(recorded.config, trust)}))
    imported.check_trust(recorded.config, changed.config, where, "repeat it with --config {}={}, or add --trust")
    others = sorted(key for key in changed.config if changed.config[key] != recorded.config.get(key))
    if others and not _changes_are_meant.get():
        log.warning("settings differ from those of the run (%s): the result may differ", ", ".join(others))
    if find_algorithm(changed.run) is not find_algorithm(recorded.run):
        raise CheckpointError(f"{where} belongs to {recorded.run}, not to {changed.run}")
    if changed.name != recorded.name:
        raise ConfigError(f"{where} belongs to the experiment {recorded.name!r}; --name is for new runs")
    return changed.model_copy(update={"env": changed.env if env is None else env})


def check_trusted(experiment: Experiment, trust: bool, where: str) -> None:
    """Raise CheckpointError if an experiment from disk names something to import, and the user does not trust it."""
    check_trust(experiment.env, None, trust, where, "add --trust")
    check_callback_trust(experiment.callbacks, (), trust, where)
    check_evaluation_trust(experiment.config, None, trust, where, "add --trust")
    imported.check_trust(experiment.config, imported.without_untrusted(experiment.config, trust), where, "add --trust")


def assemble(
    experiment: Experiment, folders: Iterable[Path], callbacks: Sequence[Callback | str], resuming: bool = False
) -> tuple[Experiment, Algorithm, list[Callback]]:
    """The experiment, algorithm and callbacks of a run. Callbacks given as strings are recorded in the experiment."""
    objects = [callback for callback in callbacks if not isinstance(callback, str)]
    paths = [*experiment.callbacks, *(callback for callback in callbacks if isinstance(callback, str))]
    search = module_folders(experiment, folders)
    # The experiment keeps the folders: Run.reconfigure() makes the algorithm again.
    update = {"callbacks": list(dict.fromkeys(paths)), "import_from": [str(folder) for folder in search]}
    experiment = experiment.model_copy(update=update)
    algorithm = make_algorithm(experiment, resuming=resuming)
    try:
        return experiment, algorithm, make_callbacks(experiment.callbacks, objects, search)
    except BaseException:
        algorithm.stop()
        raise


def with_settings(experiment: Experiment, algorithm: Algorithm, settings: Mapping[str, Any]) -> Experiment:
    """The experiment with the algorithm's present settings, overridden by `settings`."""
    config = {key: value for key, value in algorithm.get_config().items() if key != "env"}
    config |= {key: value for key, value in experiment.config.items() if key not in config}  # e.g. env_task_fn
    for key, value in settings.items():
        config = nested(config, key, value)
    return experiment.model_copy(update={"config": config})


def recorded_settings(experiment: Experiment, algorithm: Algorithm) -> dict[str, Any]:
    """The content of config.yaml: all settings, and the folders that modules were imported from."""
    body = experiment.model_dump(mode="json", exclude={"name", "env", "config"})
    found = [folder for path in experiment.callbacks if is_callback_path(path) for folder in import_folders(path)]
    body["import_from"] = list(dict.fromkeys(str(folder) for folder in [*algorithm.env_folders, *found]))
    body["config"] = {key: value for key, value in algorithm.get_config().items() if key != "env"}
    return {"env": import_path(algorithm.env_spec.name), **body}


def names_imports(algorithm: Algorithm) -> bool:
    """Whether config.yaml has import paths beside the environment's, which users must repeat or trust."""
    config = algorithm.config
    return isinstance(config.env_task_fn, str) or bool(imported.classes_of(config.model))


def imported_env(algorithm: Algorithm) -> str:
    """The import path of the environment, which users must repeat or trust; empty for registered environments."""
    name = algorithm.env_spec.name
    return name if is_import_path(name) else ""


def find_weights(path: str | Path, results: Path) -> Path:
    """The checkpoint for what a user types: its path, or the newest checkpoint of a run as `find_run` finds it.

    That of a bundle is unpacked to a temporary folder.
    """
    problem = None
    if str(path) not in runs_by_name(results):
        if is_bundle(path):
            return find_checkpoint(unpacked_checkpoint(path))
        try:
            return find_checkpoint(path)
        except NoCheckpointError as error:
            problem = error
    try:
        run = find_run(path, results)
    except CheckpointError:
        if problem is not None and as_path(path).exists():
            raise problem from None
        raise
    try:
        return find_checkpoint(run)
    except NoCheckpointError:
        raise CheckpointError(f"the run {run} has no checkpoint yet") from None
