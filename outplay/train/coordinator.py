"""The trial of a trainer: it starts the workers, gathers their reports, and keeps their checkpoints."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outplay.errors import ConfigError, nearest
from outplay.files import remove, replace_file
from outplay.train.configs import CheckpointConfig, ScalingConfig
from outplay.train.group import WorkerGroup, check_engine
from outplay.train.worker import Assignment, Backend
from outplay.tune import session
from outplay.tune.checkpoint import complete, name_of, partial_of
from outplay.tune.executions import Event, Job

PREPROCESSOR = "preprocessor.json"  # in each checkpoint
_SCORES = "checkpoints.json"  # in the trial's folder: the metrics by which checkpoints are kept


@dataclass(frozen=True)
class Plan:
    """What a trainer runs in each trial."""

    name: str
    loop: Callable[..., Any]
    config_name: str  # of the setting that is the loop's config
    config: dict[str, Any]
    backend: Backend
    scaling: ScalingConfig
    datasets: dict[str, Any]
    preprocessor: Any
    checkpoints: CheckpointConfig
    checkpoint: str | None  # where training begins

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def resources_per_trial(self) -> list[dict[str, float]]:
        return self.scaling.bundles

    def __call__(self, config: dict[str, Any]) -> None:
        """One trial. `config` may have other settings for the loop, under the name that the trainer gives them."""
        check_engine(self.scaling)
        trial = session.current("a trainer")
        context = trial.context
        folder = Path(context.get_trial_dir())
        for left in folder.glob(".checkpoint_*.partial"):  # by workers that were killed
            remove(left)
        preprocessor, datasets = self._prepared(folder)
        start = trial.checkpoint.path if trial.checkpoint is not None else self.checkpoint
        job = Job(
            context.trial_id, context.study, self._merged(config), str(folder), context.seed, trial.iteration, start,
            resources=self.scaling.worker_resources,
        )  # fmt: skip
        with WorkerGroup(Assignment(self.loop, self.backend, datasets, job), self.scaling) as group:
            while events := group.next_events():
                self._report(trial, folder, events, preprocessor)

    def check_space(self, space: Mapping[str, Any]) -> None:
        """Raise ConfigError if a Tuner's `param_space` has something else than settings of the loop."""
        if unknown := sorted(map(str, set(space) - {self.config_name})):
            raise ConfigError(f"param_space: a trainer has no {unknown[0]!r}{nearest(unknown[0], [self.config_name])}")

    def _merged(self, config: Mapping[str, Any]) -> dict[str, Any]:
        seed = {"seed": config["seed"]} if "seed" in config else {}  # tune's, with several seeds
        return {**self.config, **config.get(self.config_name, {}), **seed}

    def _prepared(self, folder: Path) -> tuple[Any, dict[str, Any]]:
        """The fitted preprocessor, and the data sets that it transforms."""
        if self.preprocessor is None:
            return None, self.datasets
        from outplay import preprocessors

        saved = folder / PREPROCESSOR
        if saved.exists():  # fitted before this trial was interrupted
            fitted = preprocessors.load(saved)
        else:
            fitted = self.preprocessor if self.preprocessor.is_fitted else self._fitted()
            fitted.save(saved)
        return fitted, {name: dataset.map_batches(fitted.transform) for name, dataset in self.datasets.items()}

    def _fitted(self) -> Any:
        if "train" not in self.datasets:
            raise ConfigError("a preprocessor is fitted to the data set 'train': datasets={'train': …}")
        preprocessor = copy.deepcopy(self.preprocessor)  # on the inline engine, it is the user's
        largest = max(bundle.get("cpu", 0.0) for bundle in self.scaling.bundles)
        # A task that needs more than a bundle of this trial would wait for other trials to end.
        return preprocessor.fit(self.datasets["train"], task_cpus=min(1.0, largest))

    def _report(self, trial: session.Session, folder: Path, events: list[Event], preprocessor: Any) -> None:
        iteration = trial.iteration + 1
        metrics = dict(events[0].metrics or {})
        for name in ("training_iteration", "time_this_iter_s", "time_total_s"):
            metrics.pop(name, None)  # the trial's own are written by tune
        checkpoint: Path | None = None
        if any(event.checkpoint for event in events):
            if preprocessor is not None:
                preprocessor.save(partial_of(folder, iteration) / PREPROCESSOR)
            checkpoint = complete(folder, iteration)
        trial.report(metrics, checkpoint)
        if checkpoint is not None and self.checkpoints.num_to_keep is not None:
            self._delete_others(folder, iteration, metrics)

    def _delete_others(self, folder: Path, newest: int, metrics: Mapping[str, Any]) -> None:
        """Delete the checkpoints that `num_to_keep` does not allow. The newest stays: training continues from it."""
        settings, path = self.checkpoints, folder / _SCORES
        attribute = settings.checkpoint_score_attribute
        if attribute is not None and attribute not in metrics:
            raise ConfigError(
                f"checkpoint_score_attribute: {attribute!r} is not reported{nearest(attribute, list(metrics))}"
            )
        scores: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
        scores[str(newest)] = newest if attribute is None else float(metrics[attribute])
        replace_file(path, json.dumps(scores))
        sign = -1 if attribute is not None and settings.checkpoint_score_order == "min" else 1
        existing = [int(each) for each in scores if (folder / name_of(int(each))).exists()]
        best = sorted(existing, key=lambda i: (sign * scores[str(i)], i), reverse=True)
        for iteration in best[settings.num_to_keep :]:
            if iteration != newest:
                remove(folder / name_of(iteration))
