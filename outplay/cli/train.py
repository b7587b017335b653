"""`outplay train`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from outplay.cli.output import apart_from_environments
from outplay.errors import ConfigError, EnvError
from outplay.registry import algorithms

if TYPE_CHECKING:
    from outplay.runs.experiments import Experiment
    from outplay.runs.run import Run

_RUN = f"The algorithm: {', '.join(algorithms.shipped)}, or one of an installed package; PPO unless given."


def train(
    recipe: Annotated[str | None, typer.Argument(help="A recipe that ships: `outplay recipes` lists them.")] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="An experiment file (YAML).")] = None,
    env: Annotated[str | None, typer.Option(help="A Gymnasium id, or an import path (module:Class).")] = None,
    run: Annotated[str | None, typer.Option(help=_RUN)] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE: end when the metric reaches it; repeatable.")
    ] = None,
    config: Annotated[list[str] | None, typer.Option(help="KEY=VALUE: a setting, as lr=0.001; repeatable.")] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="What an update is made from: steps; or episodes, where it counts those (pong-pg)."),
    ] = None,
    num_workers: Annotated[str | None, typer.Option(help="Processes that collect: 0, 1, 2 … or auto.")] = None,
    engine: Annotated[str | None, typer.Option(help="Where workers run: inline, process (the default) or ray.")] = None,
    address: Annotated[
        str | None, typer.Option(help="With --engine ray: the cluster to join (auto, host:port).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Where all randomness comes from.")] = None,
    name: Annotated[str | None, typer.Option(help="The experiment's name.")] = None,
    results_dir: Annotated[Path | None, typer.Option(help="Where runs go; ~/outplay_results unless given.")] = None,
    checkpoint_freq: Annotated[int | None, typer.Option(help="Save every so many iterations.")] = None,
    callback: Annotated[
        list[str] | None, typer.Option(help="An import path (module:Class) of a callback; repeatable.")
    ] = None,
    resume: Annotated[str | None, typer.Option(help="Go on with this run, exactly where it was.")] = None,
    init_from: Annotated[str | None, typer.Option(help="Start from the weights of this run or checkpoint.")] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Import what a run names, from where it says.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the whole configuration, and do nothing.")] = False,
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
        with _own_output() as (out, err):
            _start_engine(engine, address)
            _train(lambda: overrides.resumed(resume, results_dir, trust, folders), as_json, out, err)
        return
    jobs = [overrides.apply(experiment) for experiment in _experiments(recipe, file, overrides, trust)]
    if name is not None and len(jobs) > 1:
        raise ConfigError(f"--name is for one experiment, and {file} holds {len(jobs)}")
    if dry_run:
        _print_configuration(jobs, folders)
        return
    with _own_output() as (out, err):
        _check_all(jobs, folders, file)
        _start_engine(engine, address)
        for job in jobs:
            if not _train(lambda job=job: _created(job, results_dir, folders, init_from, file), as_json, out, err):
                break  # Ctrl-C means all of them


def _check_all(jobs: list[Experiment], folders: list[Path], file: Path | None) -> None:
    """A mistake in the last experiment of a file is told before the first one is trained."""
    if len(jobs) > 1:
        from outplay.runs.loading import make_algorithm

        for job in jobs:
            with _in_file(file, job):
                make_algorithm(job, folders).stop()


@contextmanager
def _in_file(file: Path | None, job: Experiment) -> Iterator[None]:
    """A mistake names the file and the experiment that it is in."""
    try:
        yield
    except (ConfigError, EnvError) as error:
        if file is None:
            raise
        raise type(error)(f"{file}, {job.name}: {error}") from error


class _Overrides:
    """What the command line says over a recipe, a file or an old run."""

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
            self.settings.append(("num_workers", num_workers if num_workers == "auto" else _whole(num_workers)))
        if seed is not None:
            self.settings.append(("seed", seed))
        given = {"env": env, "run": run, "name": name, "checkpoint_freq": checkpoint_freq}
        self.given = {key: value for key, value in given.items() if value is not None}

    def config(self, onto: dict[str, Any]) -> dict[str, Any]:
        from outplay.runs.experiments import nested

        for key, value in self.settings:
            onto = nested(onto, key, value)
        if self.batch_size is not None:
            counts_episodes = onto.get("train_batch_episodes") is not None
            onto = {**onto, "train_batch_episodes" if counts_episodes else "train_batch_size": self.batch_size}
        return onto

    def apply(self, onto: Experiment) -> Experiment:
        from outplay.runs.experiments import experiment

        data = {**onto.model_dump(), **self.given, "config": self.config(onto.config)}
        data["callbacks"] = list(dict.fromkeys([*onto.callbacks, *self.callbacks]))
        if self.stop:
            data["stop"] = self.stop
        return experiment(data, "the command line" if self.given or self.settings or self.stop else onto.name)

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
        made = Run.resume(folder, self.apply, self.env, trust, folders, self.callbacks)
        how = f"went on from iteration {made.resumed_from}" if made.resumed_from else "no checkpoint: from the start"
        typer.echo(f"{how} ({made.folder})", err=True)
        if made.is_finished:
            typer.echo("it has reached its stop condition already; give another: --stop KEY=VALUE", err=True)
        return made


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"--num-workers takes a whole number or auto, not {text!r}") from None


def _check_sources(
    recipe: str | None, file: Path | None, env: str | None, resume: str | None, init: str | None
) -> None:
    sources = [name for name, given in (("a recipe", recipe), ("-f", file), ("--resume", resume)) if given is not None]
    if len(sources) > 1:
        raise ConfigError(f"{' and '.join(sources)} cannot be combined: each says what to train")
    if not sources and env is None:
        raise ConfigError(
            "nothing to train: name a recipe (outplay recipes), a file (-f FILE) or an environment (--env ENV)"
        )
    if resume is not None and init is not None:
        raise ConfigError("--resume goes on with a run, --init-from starts a new one: give one of them")


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
        with apart_from_environments(), make_algorithm(job, folders, resuming) as algorithm:
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
        return  # the process engine starts when it is needed
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
    """Make a run and train it; whether it ended by itself."""
    from outplay.cli.display import display
    from outplay.cli.interrupts import interruptible

    run = make()
    if not run.experiment.stop:
        typer.echo("no stop condition: it trains until Ctrl-C", file=err)
    with display(run, as_json, out, err) as show, interruptible(run, out):
        reason = run.train(show)
    if not as_json:
        typer.echo(f"{reason}; the run is in {run.folder}", file=out)
        if run.video is not None:
            typer.echo(f"a video of a game: {run.video}", file=out)
            return not run.is_stopping
        typer.echo(f"watch it: outplay evaluate {_as_typed(run)} --video game.mp4", file=out)
    return not run.is_stopping


def _as_typed(run: Run) -> str:
    """What names this run on a command line: its experiment, if that leads to it."""
    from outplay.runs.loading import env_to_repeat
    from outplay.runs.results import results_folder

    usual = run.folder.path.parent == results_folder(None) / run.experiment.name
    env = env_to_repeat(run.algorithm)
    return (run.experiment.name if usual else str(run.folder)) + (f" --env {env}" if env else "")


@contextmanager
def _own_output() -> Iterator[tuple[TextIO, TextIO]]:
    """stdout and stderr, without what environments print; warnings of the package are sentences on stderr."""
    import logging

    with apart_from_environments() as (out, err):
        handler = logging.StreamHandler(err)
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        logging.getLogger("outplay").addHandler(handler)
        try:
            yield out, err
        finally:
            logging.getLogger("outplay").removeHandler(handler)
