"""From experiments, run folders and what a user wrote, to what a Run is made of."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from outplay.algorithms import Algorithm, find_algorithm
from outplay.envs import check_trust, import_folders, import_path, is_import_path
from outplay.errors import CheckpointError, ConfigError
from outplay.runs.callbacks import Callback, check_callback_trust, find_callback, make_callbacks
from outplay.runs.checkpoint import find_checkpoint
from outplay.runs.experiments import Experiment, nested
from outplay.runs.folder import RunFolder
from outplay.runs.results import as_path, find_run

log = logging.getLogger("outplay")


def import_places(experiment: Experiment, folders: Iterable[Path]) -> list[Path]:
    """Where modules are looked up, besides the working directory."""
    return [*folders, *map(Path, experiment.import_from)]


def make_algorithm(experiment: Experiment, folders: Iterable[Path] = (), resuming: bool = False) -> Algorithm:
    """The algorithm of an experiment; stop conditions and the names of callbacks are checked, too.

    `resuming`: a checkpoint will be restored, so `auto` is not resolved again.
    """
    places = import_places(experiment, folders)
    for path in experiment.callbacks:
        find_callback(path, places)
    algorithm = find_algorithm(experiment.run)(
        env=experiment.env, config=experiment.config, folders=places, resuming=resuming
    )
    if any(name.startswith("evaluation/") for name in experiment.stop) and not algorithm.config.evaluation_interval:
        algorithm.stop()
        raise ConfigError("stop: a condition on evaluation/… needs evaluation_interval, or it is never reached")
    return algorithm


def recorded_experiment(
    folder: RunFolder,
    change: Callable[[Experiment], Experiment],
    env: Any = None,
    callbacks: Sequence[str] = (),
    trust: bool = False,
) -> Experiment:
    """The experiment of a run as config.yaml records it and `change` alters it.

    What it would import must be trusted, or repeated: its environment by `env`, its callbacks by `callbacks`.
    """
    recorded = folder.experiment(trust)
    where = f"run {folder}"
    check_trust(recorded.env, env, trust, where, f"repeat it with --env {recorded.env}, or add --trust")
    check_callback_trust(recorded.callbacks, callbacks, trust, where)
    changed = change(recorded)
    if others := sorted(key for key in changed.config if changed.config[key] != recorded.config.get(key)):
        log.warning("settings differ from the run's (%s): from here on it is another run", ", ".join(others))
    if find_algorithm(changed.run) is not find_algorithm(recorded.run):
        raise CheckpointError(f"{where} is of {recorded.run}, not of {changed.run}")
    if changed.name != recorded.name:
        raise ConfigError(f"{where} belongs to the experiment {recorded.name!r}; --name is for new runs")
    return changed.model_copy(update={"env": changed.env if env is None else env})


def assemble(
    experiment: Experiment, folders: Iterable[Path], callbacks: Sequence[Callback | str], resuming: bool = False
) -> tuple[Experiment, Algorithm, list[Callback]]:
    """What a run is made of. Callbacks that are import paths become part of the experiment, which is recorded."""
    objects = [callback for callback in callbacks if not isinstance(callback, str)]
    paths = [*experiment.callbacks, *(callback for callback in callbacks if isinstance(callback, str))]
    places = import_places(experiment, folders)
    # The experiment remembers where modules were looked up, for the time that its algorithm is made again.
    update = {"callbacks": list(dict.fromkeys(paths)), "import_from": [str(place) for place in places]}
    experiment = experiment.model_copy(update=update)
    algorithm = make_algorithm(experiment, resuming=resuming)
    try:
        return experiment, algorithm, make_callbacks(experiment.callbacks, objects, places)
    except BaseException:
        algorithm.stop()
        raise


def with_settings(experiment: Experiment, algorithm: Algorithm, settings: Mapping[str, Any]) -> Experiment:
    """The experiment of a run with all settings that its algorithm has now, but for those that are given."""
    config = {key: value for key, value in algorithm.get_config().items() if key != "env"}
    config |= {key: value for key, value in experiment.config.items() if key not in config}  # functions
    for key, value in settings.items():
        config = nested(config, key, value)
    return experiment.model_copy(update={"config": config})


def as_recorded(experiment: Experiment, algorithm: Algorithm) -> dict[str, Any]:
    """What config.yaml says of a run: all settings, and where its modules were found."""
    body = experiment.model_dump(mode="json", exclude={"name", "env", "config"})
    found = [folder for path in experiment.callbacks if ":" in path for folder in import_folders(path)]
    body["import_from"] = list(dict.fromkeys(str(folder) for folder in [*algorithm.env_folders, *found]))
    body["config"] = {key: value for key, value in algorithm.get_config().items() if key != "env"}
    return {"env": import_path(algorithm.env_spec.name), **body}


def env_to_repeat(algorithm: Algorithm) -> str:
    """The import path of its environment, which a user has to repeat or to trust; empty if nothing is imported."""
    name = algorithm.env_spec.name
    return name if is_import_path(name) else ""


def find_saved(path: str | Path, results: Path) -> Path:
    """A checkpoint, for its weights, from what a user wrote: itself, or a run as `find_run` finds it (its newest)."""
    try:
        return find_checkpoint(path)
    except CheckpointError:
        given = as_path(path)
        if given.exists() and not list(given.glob("*/config.yaml")):
            raise
    return find_checkpoint(find_run(path, results))
