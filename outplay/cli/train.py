"""`outplay train`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from outplay.cli.output import separate_output
from outplay.errors import ConfigError, EnvError
from outplay.registry import algorithms

if TYPE_CHECKING:
    from outplay.runs.experiments import Experiment
    from outplay.runs.run import Run

_RUN = f"The algorithm: {', '.join(algorithms.shipped)}, or one of an installed package; default PPO."


def train(
    recipe: Annotated[str | None, typer.Argument(help="A built-in recipe: `outplay recipes` lists them.")] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="An experiment file (YAML).")] = None,
    env: Annotated[str | None, typer.Option(help="A Gymnasium id, or an import path (module:Class).")] = None,
    run: Annotated[str | None, typer.Option(help=_RUN)] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="METRIC=VALUE: stop when the metric reaches the value; repeatable."),
    ] = None,
    config: Annotated[list[str] | None, typer.Option(help="KEY=VALUE: a setting, as lr=0.001; repeatable.")] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Batch size: train_batch_size in steps, or train_batch_episodes if that is set (pong-pg)."),
    ] = None,
    num_workers: Annotated[str | None, typer.Option(help="Number of worker processes: 0, 1, 2 … or auto.")] = None,
    engine: Annotated[str | None, typer.Option(help="Where workers run: inline, process (default) or ray.")] = None,
    address: Annotated[
        str | None, typer.Option(help="With --engine ray: the address of the cluster (auto, host:port).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed of the run.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the experiment: the folder of its runs.")] = None,
    results_dir: Annotated[Path | None, typer.Option(help="Folder of all runs; default ~/outplay_results.")] = None,
    checkpoint_freq: Annotated[int | None, typer.Option(help="Iterations between checkpoints; 0: none.")] = None,
    callback: Annotated[
        list[str] | None,
        typer.Option(help="A callback: an import path (module:Class), or a registered name; repeatable."),
    ] = None,
    resume: Annotated[str | None, typer.Option(help="Resume this run from its newest checkpoint.")] = None,
    init_from: Annotated[
        str | None, typer.Option(help="Start a new run from the weights of this run or checkpoint.")
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Allow importing from the modules and folders that a run or file names.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per iteration.")] = False,
) -> None:
    """Train an agent: a recipe, an experiment file, or any environment.

    outplay train cartpole; outplay train --env Acrobot-v1 --stop timesteps_total=100000; outplay train -f custom.yml
    """
    overrides = _Overrides(env, run, stop, config, batch_size, num_workers, seed, name, checkpoint_freq, callback)
    _check_sources(recipe, file, env, resume, init_from)
    _check_engine(engine, address)
    folders = [] if file is None else [file.parent]
    if resume is not None:
        if dry_run:
            _print_configuration([overrides.applied_to_run(resume, results_dir, trust)], folders, resuming=True)
            return
        with _command_output() as (out, err):
            _start_engine(engine, address)
            _train(lambda: overrides.resumed(resume, results_dir, trust, folders), as_json, out, err)
        return
    jobs = [overrides.apply(experiment) for experiment in _experiments(recipe, file, overrides, trust)]
    if name is not None and len(jobs) > 1:
        raise ConfigError(f"--name is for one experiment, and {file} contains {len(jobs)}")
    if dry_run:
        _print_configuration(jobs, folders)
        return
    with _command_output() as (out, err):
        _check_all(jobs, folders, file)
        _start_engine(engine, address)
        for job in jobs:
            if not _train(lambda job=job: _created(job, results_dir, folders, init_from, file), as_json, out, err):
                break  # Ctrl-C stops all experiments


def _check_all(jobs: list[Experiment], folders: list[Path], file: Path | None) -> None:
    """Check all experiments of a file before the first one is trained."""
    if len(jobs) > 1:
        from outplay.runs.loading import make_algorithm

        for job in jobs:
            with _in_file(file, job):
                make_algorithm(job, folders).stop()


@contextmanager
def _in_file(file: Path | None, job: Experiment) -> Iterator[None]:
    """Prefix error messages with the file and the experiment."""
    try:
        yield
    except (ConfigError, EnvError) as error:
        if file is None:
            raise
        raise type(error)(f"{file}, {job.name}: {error}") from error


class _Overrides:
    """Command line options that override the settings of a recipe, a file or a resumed run."""

    def __init__(
        self,
        env: str | None,
        run: str | None,
        stop: list[str] | None,
        config: list[str] | None,
        batch_size: int | None,
        num_workers: str | None,
        seed: int | None,
        name: str | None,
        checkpoint_freq: int | None,
        callbacks: list[str] | None,
    ) -> None:
        from outplay.runs.experiments import checked_metric, parse_setting

        self.env = env
        self.callbacks = callbacks or []
        self.stop = {checked_metric(k, "--stop"): v for k, v in (parse_setting(text, "--stop") for text in stop or [])}
        self.settings = [parse_setting(text, "--config") for text in config or []]
        self.batch_size = batch_size
        if num_workers is not None:
            self.settings.append(("num_workers", num_workers if num_workers == "auto" else _integer(num_workers)))
        if seed is not None:
            self.settings.append(("seed", seed))
        given = {"env": env, "run": run, "name": name, "checkpoint_freq": checkpoint_freq}
        self.given = {key: value for key, value in given.items() if value is not None}

    def config(self, config: dict[str, Any]) -> dict[str, Any]:
        """`config` with the overrides applied."""
        from outplay.runs.experiments import nested

        for key, value in self.settings:
            config = nested(config, key, value)
        if self.batch_size is not None:
            counts_episodes = config.get("train_batch_episodes") is not None
            config = {**config, "train_batch_episodes" if counts_episodes else "train_batch_size": self.batch_size}
        return config

    def apply(self, base: Experiment) -> Experiment:
        from outplay.runs.experiments import experiment

        data = {**base.model_dump(), **self.given, "config": self.config(base.config)}
        data["callbacks"] = list(dict.fromkeys([*base.callbacks, *self.callbacks]))
        if self.stop:
            data["stop"] = self.stop
        return experiment(data, "the command line" if self.given or self.settings or self.stop else base.name)

    def applied_to_run(self, resume: str, results_dir: Path | None, trust: bool) -> Experiment:
        from outplay.runs.folder import RunFolder
        from outplay.runs.loading import recorded_experiment
        from outplay.runs.results import find_run, results_folder

        folder = RunFolder(find_run(resume, results_folder(results_dir)))
        return recorded_experiment(folder, self.apply, self.env, self.callbacks, trust)

    def resumed(self, resume: str, results_dir: Path | None, trust: bool, folders: list[Path]) -> Run:
        from outplay.runs.results import find_run, results_folder
        from outplay.runs.run import Run

        folder = find_run(resume, results_folder(results_dir))
        run = Run.resume(folder, self.apply, self.env, trust, folders, self.callbacks)
        start = f"iteration {run.resumed_from}" if run.resumed_from else "the start: the run has no checkpoint"
        typer.echo(f"resumed from {start} ({run.folder})", err=True)
        if run.is_finished:
            typer.echo("the run has already reached its stop condition; set another: --stop METRIC=VALUE", err=True)
        return run


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"--num-workers takes an integer or auto, not {text!r}") from None


def _check_sources(
    recipe: str | None, file: Path | None, env: str | None, resume: str | None, init: str | None
) -> None:
    sources = [name for name, given in (("a recipe", recipe), ("-f", file), ("--resume", resume)) if given is not None]
    if len(sources) > 1:
        raise ConfigError(f"{' and '.join(sources)} cannot be combined: each of them names what to train")
    if not sources and env is None:
        raise ConfigError(
            "nothing to train: name a recipe (outplay recipes), a file (-f FILE) or an environment (--env ENV)"
        )
    if resume is not None and init is not None:
        raise ConfigError("--resume and --init-from cannot be combined: one resumes a run, the other starts a new one")


def _experiments(recipe: str | None, file: Path | None, overrides: _Overrides, trust: bool) -> list[Experiment]:
    from outplay.runs.experiments import Experiment, load_file, load_recipe

    if recipe is not None:
        return [load_recipe(recipe)]
    if file is not None:
        return load_file(file, trust)
    return [Experiment(env=overrides.env)]


def _print_configuration(jobs: list[Experiment], folders: list[Path], resuming: bool = False) -> None:
    import yaml

    from outplay.runs.loading import make_algorithm

    for job in jobs:
        with separate_output(), make_algorithm(job, folders, resuming) as algorithm:
            config = algorithm.get_config()
            del config["env"]
            body = job.model_dump(mode="json", exclude={"name"})
            data = {job.name: {**body, "run": type(algorithm).__name__, "config": config}}
        typer.echo(yaml.safe_dump(data, sort_keys=False), nl=False)


def _check_engine(engine: str | None, address: str | None) -> None:
    from outplay.engine.api import Settings, checked

    try:
        checked(Settings(engine or ("process" if address is None else "ray"), None, address, None))
    except ValueError as error:
        raise ConfigError(f"--engine: {error}") from error


def _start_engine(engine: str | None, address: str | None) -> None:
    if engine is None and address is None:
        return  # the process engine starts on first use
    import outplay

    outplay.init(engine or "ray", address=address)


def _created(
    job: Experiment, results_dir: Path | None, folders: list[Path], init_from: str | None, file: Path | None
) -> Run:
    from outplay.runs.results import results_folder
    from outplay.runs.run import Run

    with _in_file(file, job):
        return Run.create(job, results_folder(results_dir), folders, init_from)


def _train(make: Any, as_json: bool, out: TextIO, err: TextIO) -> bool:
    """Make a run and train it. Returns whether it reached a stop condition, without a request to stop."""
    from outplay.cli.display import display
    from outplay.cli.interrupts import interruptible

    run = make()
    if not run.experiment.stop:
        typer.echo("no stop condition: the run trains until Ctrl-C", file=err)
    with display(run, as_json, out, err) as show, interruptible(run, out):
        reason = run.train(show)
    if not as_json:
        typer.echo(f"{reason}; the run is in {run.folder}", file=out)
        if run.video is not None:
            typer.echo(f"video of one episode: {run.video}", file=out)
            return not run.is_stopping
        typer.echo(f"to record a video: outplay evaluate {_argument_for(run)} --video game.mp4", file=out)
    return not run.is_stopping


def _argument_for(run: Run) -> str:
    """The command line argument that names this run: its experiment, if the folder is in the default place."""
    from outplay.runs.loading import imported_env
    from outplay.runs.results import results_folder

    is_default = run.folder.path.parent == results_folder(None) / run.experiment.name
    env = imported_env(run.algorithm)
    return (run.experiment.name if is_default else str(run.folder)) + (f" --env {env}" if env else "")


@contextmanager
def _command_output() -> Iterator[tuple[TextIO, TextIO]]:
    """stdout and stderr without the output of environments. Log messages of the package go to stderr."""
    import logging

    with separate_output() as (out, err):
        handler = logging.StreamHandler(err)
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        logging.getLogger("outplay").addHandler(handler)
        try:
            yield out, err
        finally:
            logging.getLogger("outplay").removeHandler(handler)
