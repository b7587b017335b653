"""Search files: an experiment whose values may be variables, with a section `tune`.

cartpole:
  env: CartPole-v1
  run: PPO
  stop: {timesteps_total: 50000}
  config:
    lr: {loguniform: [1.0e-5, 1.0e-2]}
    gamma: {choice: [0.99, 0.999]}
  tune:
    num_samples: 20
    scheduler: {type: asha, max_t: 100}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import outplay
from outplay.conditions import metric_name
from outplay.errors import ConfigError, RunError, nearest, shortened
from outplay.files import replace_file, writing
from outplay.parsing import read_yaml
from outplay.runs.experiments import Experiment, experiment, nested
from outplay.runs.results import folder_name
from outplay.streams import stream
from outplay.tune.callbacks import Callback
from outplay.tune.configs import FailureConfig, RunConfig, TuneConfig
from outplay.tune.domains import MAKERS, Categorical, Grid
from outplay.tune.folder import StudyFolder
from outplay.tune.names import made
from outplay.tune.search import Variants
from outplay.tune.spaces import Space, Values, parsed
from outplay.tune.tuner import Tuner

NAME = "search.yml"  # in a study's folder
_PLAIN = ("num_samples", "max_concurrent_trials", "time_budget_s", "seeds", "report_seeds", "aggregate", "seed")
_KEYS = (
    *("metric", "mode", "search", "scheduler", "points_to_evaluate", "resources_per_trial", "max_failures"),
    *_PLAIN,
)
_BY_VARIABLE = ("hyperparam_mutations", "hyperparam_bounds")  # settings of schedulers that name variables
_FREE = ("env_config", "custom_model_config")  # settings with keys of any name
_MOST_CHECKED = 200


@dataclass
class SearchFile:
    """What a search file contains. Options of the command line change it before the study is made."""

    name: str  # of the experiment
    experiment: dict[str, Any]  # as in the file, with variables as {"uniform": [0, 1]}
    tune: dict[str, Any]
    where: str  # for error messages
    import_from: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path, trust: bool = False) -> SearchFile:
        """Read a file. As for `outplay train -f`, its `import_from` is ignored without `trust`."""
        data = read_yaml(path)
        if not isinstance(data, dict) or not data:
            raise ConfigError(f"{path}: expected an experiment, as name: {{env: …, config: …, tune: …}}")
        if len(data) > 1:
            inside = "; tune belongs inside the experiment" if "tune" in data else ""
            raise ConfigError(f"{path}: expected one experiment, not {len(data)} ({', '.join(map(str, data))}){inside}")
        ((name, body),) = data.items()
        if not isinstance(body, dict):
            raise ConfigError(f"{path}: the experiment {name!r} must be settings (env: …), not {shortened(repr(body))}")
        body = dict(body)
        where = f"{path}, {name}"
        section = body.pop("tune", None) or {}
        if not isinstance(section, dict):
            raise ConfigError(f"{where}: tune must be settings, as {{num_samples: 20}}, not {shortened(repr(section))}")
        if unknown := [key for key in section if key not in _KEYS]:
            raise ConfigError(f"{where}: tune has no setting {unknown[0]!r}{nearest(str(unknown[0]), _KEYS)}")
        folders = body.pop("import_from", [])
        folders = [str(folder) for folder in folders] if trust and isinstance(folders, list) else []
        return cls(str(body.pop("name", name)), body, dict(section), where, folders)

    def set(self, key: str, value: Any) -> None:
        """Change a setting of the algorithm; dots separate the keys of nested settings."""
        config = self.experiment.get("config") or {}
        self.experiment["config"] = nested(config if isinstance(config, dict) else {}, key, value)

    # The space.

    @property
    def template(self) -> dict[str, Any]:
        """The experiment with its variables."""
        run = self.experiment.get("run", "PPO")
        if not isinstance(run, str):
            raise ConfigError(f"{self.where}: run must be the name of one algorithm, not {shortened(repr(run))}")
        try:
            _check_makers(self.experiment, "")
            found = parsed({"config": {}, **self.experiment})
        except ConfigError as error:
            raise ConfigError(f"{self.where}: {error}") from error
        found["import_from"] = self.import_from
        return {key: value for key, value in found.items() if value is not None}

    def check(self) -> Iterator[Experiment]:
        """Experiments of trials, validated: one at random, and one for each value of each choice."""
        space = Space(self.template)
        for values in _samples(space):
            data = space.config(values)
            yield experiment({"name": self.name, **data}, self.where)

    def _names(self, values: Any, space: Space, what: str) -> Values:
        """Values by variables. In the file, the level `config` may be left out, and dots may separate levels."""
        if not isinstance(values, Mapping):
            raise ConfigError(f"{self.where}: {what} must be values by variables, as {{lr: 0.001}}, not {values!r}")
        found: Values = {}
        for key, value in values.items():
            name = str(key).replace(".", "/")
            name = name if name in space.names else f"config/{name}"
            if name not in space.names:
                known = [each.removeprefix("config/") for each in space.names]
                raise ConfigError(f"{self.where}: {what}: no variable {key!r}{nearest(str(key), known)}")
            found[name] = value
        return found

    # The study.

    def tuner(
        self,
        name: str,
        results: Path,
        callbacks: Sequence[Callback] = (),
        resume: bool = False,
    ) -> Tuner:
        """The study in the folder `results`/`name`. All settings are checked; nothing is written."""
        section, template = self.tune, self.template
        space = Space(template)
        if not self.experiment.get("stop") and not section.get("scheduler") and not section.get("time_budget_s"):
            raise ConfigError(
                f"{self.where}: without a stop condition the trials never end; add stop: {{timesteps_total: 50000}}, "
                "or --timesteps N"
            )
        if (points := section.get("points_to_evaluate")) is not None:
            if not isinstance(points, list):
                raise ConfigError(f"{self.where}: points_to_evaluate must be a list, as [{{lr: 0.001}}]")
            points = [self._names(point, space, "points_to_evaluate") for point in points]
        search, scheduler = section.get("search"), section.get("scheduler")
        searcher = None if search is None else made("search", search, self.where, points_to_evaluate=points)
        if isinstance(searcher, Variants):  # the default, whose samples are counted by num_samples
            searcher = None
        try:
            config = TuneConfig(
                metric=self._metric,
                mode=section.get("mode", "max"),
                search_alg=searcher,
                scheduler=None if scheduler is None else made("scheduler", self._by_variable(scheduler), self.where),
                points_to_evaluate=None if searcher is not None else points,
                **{key: section[key] for key in _PLAIN if section.get(key) is not None},
            )
            failures = FailureConfig(section.get("max_failures", 0))
            where = RunConfig(name=name, storage_path=results, callbacks=callbacks, failure_config=failures, verbose=0)
            return Tuner(
                self.experiment.get("run", "PPO"),
                param_space=template,
                tune_config=config,
                run_config=where,
                resources_per_trial=section.get("resources_per_trial"),
                resume=resume,
            )
        except ConfigError as error:
            prefix = "" if str(error).startswith(self.where) else f"{self.where}: "
            raise ConfigError(f"{prefix}{error}") from error

    @property
    def _metric(self) -> str | list[str]:
        given = self.tune.get("metric", "episode_return_mean")
        try:
            return metric_name(given) if isinstance(given, str) else [metric_name(str(each)) for each in given]
        except (ConfigError, TypeError) as error:
            raise ConfigError(f"{self.where}: metric: {error}") from error

    def _by_variable(self, scheduler: Any) -> Any:
        """Mutations of a scheduler may be written without the level `config`, too."""
        if not isinstance(scheduler, Mapping):
            return scheduler
        changed = dict(scheduler)
        for key in _BY_VARIABLE:
            if isinstance(changed.get(key), Mapping) and "config" not in changed[key]:
                named = {str(name).replace(".", "/"): value for name, value in changed[key].items()}
                _check_makers(named, key)
                changed[key] = {f"config/{name}": value for name, value in parsed(named).items()}
        return changed

    # The copy in the study's folder, from which it is resumed.

    def save(self, folder: Path) -> None:
        """Write the copy. Raises RunError if there is a study in the folder."""
        import yaml

        if StudyFolder(folder).exists:
            raise RunError(f"there is a study in {folder} already; continue it with --resume, or use another --name")
        body = {**self.experiment, "tune": self.tune, "import_from": self.import_from}
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / NAME, yaml.safe_dump({self.name: body}, sort_keys=False, allow_unicode=True))

    @classmethod
    def of_study(cls, folder: Path, trust: bool) -> SearchFile:
        """The file that a study was started with."""
        StudyFolder(folder).check_is_study()
        if not (folder / NAME).exists():
            raise RunError(
                f"{folder} has no {NAME}: it was started in Python; continue it there, with resume=True and its name"
            )
        return cls.load(folder / NAME, trust)


def _check_makers(config: Any, path: str) -> None:
    """Raise ConfigError for a variable whose kind is misspelt, as {"unifrm": [0, 1]}, or needs Python."""
    if isinstance(config, list):
        for i, value in enumerate(config):
            _check_makers(value, f"{path}/{i}")
    if not isinstance(config, Mapping):
        return
    if len(config) == 1 and path.rpartition("/")[2] not in _FREE:
        ((name, value),) = config.items()
        if name == "sample_from":
            raise ConfigError(f"{path}: sample_from is a Python function: it cannot be used in a file")
        close = get_close_matches(str(name), MAKERS, n=1, cutoff=0.75)
        if name not in MAKERS and isinstance(value, list) and close:
            raise ConfigError(f"{path}: there is no variable {name!r}. Did you mean {close[0]!r}?")
    for key, value in config.items():
        _check_makers(value, f"{path}/{key}" if path else str(key))


def _samples(space: Space) -> Iterator[Values]:
    """Values at random, then others until each value of each choice has been taken once."""
    rng = stream(0, "tune check")
    first = space.sample(rng)
    yield first
    taken = {(name, _text(value)) for name, value in first.items()}
    waiting = [first]
    while waiting and len(taken) < _MOST_CHECKED:
        known = waiting.pop()
        for name, domain in space.domains_of(known).items():
            for value in domain.values if isinstance(domain, Categorical | Grid) else ():
                if (name, _text(value)) in taken:
                    continue
                taken.add((name, _text(value)))
                waiting.append(space.sample(rng, {**known, name: value}))
                yield waiting[-1]


def _text(value: Any) -> str:
    return shortened(repr(value), 200)


def new_name(experiment_name: str) -> str:
    """A name for a new study."""
    return folder_name(f"{experiment_name}_{datetime.now():%Y-%m-%d_%H-%M-%S}")


# Studies on disk.


def studies_in(results: Path) -> dict[str, Path]:
    """All studies of a results folder by name, the newest last."""
    files = sorted(results.glob("*/study.json"), key=lambda file: file.stat().st_mtime_ns)
    return {file.parent.name: file.parent for file in files}


def find_study(name: str, results: Path) -> Path:
    """The folder of a study: by its path, its name, or the start of one; of several, the newest."""
    text = str(name).rstrip("/")
    studies = studies_in(results)
    if text in studies:
        return studies[text]
    if (path := StudyFolder(text)).exists:
        return path.path
    if found := [folder for each, folder in studies.items() if text and each.startswith(text)]:
        return found[-1]
    hint = nearest(text, studies) if studies else f"; there is no study in {results}"
    raise RunError(f"there is no study {shortened(text)!r}{hint}")


def recipes() -> dict[str, Path]:
    """The searches that ship with Outplay, by name."""
    folder = Path(outplay.__file__).parent / "recipes"
    return {path.stem: path for path in sorted(folder.glob("tune-*.yml"))}
