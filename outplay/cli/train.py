"""`outplay train`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from outplay import cuda
from outplay.cli import completion
from outplay.cli.engine import check_engine, start_engine
from outplay.cli.output import command_output, say, separate_output
from outplay.errors import ConfigError, EnvError
from outplay.formatting import number
from outplay.registry import algorithms, env_ids

if TYPE_CHECKING:
    from outplay.runs.experiments import Experiment
    from outplay.runs.run import Run

_RUN = f"{', '.join(algorithms.shipped)}, or one of a package; default PPO. Also --algo."


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help="A built-in recipe: `outplay recipes` lists them.",
            autocompletion=completion.recipes,
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", metavar="FILE", help="An experiment file (YAML).")
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            metavar="ENV", help="A Gymnasium id, or an import path (module:Class).", autocompletion=completion.env_ids
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(metavar="ALGO", help=_RUN, autocompletion=completion.algorithm_names),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC=VALUE", help="Stop when a metric reaches a value; repeatable."),
    ] = None,
    timesteps: Annotated[
        str | None,
        typer.Option(metavar="N", help="The same as --stop timesteps_total=N."),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Algorithm setting, as lr=0.001; repeatable."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Experiment setting, as loggers=[csv]; repeatable."),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(metavar="N", help="train_batch_size, or for pong-pg train_batch_episodes."),
    ] = None,
    num_workers: Annotated[str | None, typer.Option(metavar="N", help="Worker processes: 0, 1, 2 … or auto.")] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help="inline, process (default) or ray: where workers run.",
            autocompletion=completion.engines,
        ),
    ] = None,
    address: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Address of a Ray cluster: auto, or host:port.")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Random seed of the run.")] = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the experiment; default: its environment."),
    ] = None,
    results_dir: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of all runs; default ~/outplay_results.")
    ] = None,
    checkpoint_freq: Annotated[
        int | None, typer.Option(metavar="N", help="Iterations between checkpoints; 0: none.")
    ] = None,
    callback: Annotated[
        list[str] | None,
        typer.Option(metavar="CALLBACK", help="A name or import path (module:Class); repeatable."),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Resume a run from its newest checkpoint.", autocompletion=completion.runs),
    ] = None,
    init_from: Annotated[
        str | None,
        typer.Option(
            metavar="RUN", help="Start with the weights of a run, checkpoint or bundle.", autocompletion=completion.runs
        ),
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Import what a run or file names (environment, model, callbacks).")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per iteration.")] = False,
    dashboard: Annotated[
        bool,
        typer.Option(
            "--dashboard",
            help="Show the run on a web page, until this command ends; or on that of a running `outplay dashboard`.",
        ),
    ] = False,
) -> None:
    """Train an agent: a recipe, an experiment file, or any environment.

    \b
    outplay train cartpole
    outplay train --env Acrobot-v1 --algo DQN --timesteps 100000
    outplay train -f custom.yml --config lr=0.001 --set keep_checkpoints=3
    outplay train --resume cartpole
    """
    overrides = _Overrides(
        {"env": env, "run": run, "name": name, "checkpoint_freq": checkpoint_freq},
        stop or [], timesteps, config or [], set_ or [], batch_size, num_workers, seed, callback or [],
    )  # fmt: skip
    _check_sources(recipe, file, overrides.env, resume, init_from)
    check_engine(engine, address)
    folders = [] if file is None else [file.parent]
    if resume is not None:
        if dry_run:
            _print_configuration([overrides.applied_to_run(resume, results_dir, trust)], folders, resuming=True)
            return
        with command_output() as (out, err), _dashboard(dashboard, results_dir, err):
            start_engine(engine, address)
            _train(lambda: overrides.resumed(resume, results_dir, trust, folders), as_json, out, err)
        return
    jobs = [overrides.apply_to_new(experiment) for experiment in _experiments(recipe, file, overrides, trust)]
    if "name" in overrides.given and len(jobs) > 1:
        raise ConfigError(f"--name is for one experiment, and {file} contains {len(jobs)}")
    if dry_run:
        _print_configuration(jobs, folders)
        return
    with command_output() as (out, err), _dashboard(dashboard, results_dir, err):
        _check_all(jobs, folders, file)
        start_engine(engine, address)
        for job in jobs:
            if not _train(lambda job=job: _created(job, results_dir, folders, init_from, file), as_json, out, err):
                break  # Ctrl-C stops all experiments


@contextmanager
def _dashboard(wanted: bool, results_dir: Path | None, err: TextIO) -> Iterator[None]:
    """A dashboard within the block, if it is wanted. Its link is printed when it can be opened."""
    if not wanted:
        yield
        return
    from outplay.cli.dashboard import open_browser
    from outplay.dashboard.beside import dashboard_beside
    from outplay.runs.results import results_folder

    def tell(link: str, is_new: bool) -> None:
        say(f"dashboard: {link}" + ("" if is_new else " (it was there before, and stays)"), err)
        if is_new:
            open_browser(link)

    with dashboard_beside(results_folder(results_dir), tell):
        yield


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
        options: dict[str, Any],
        stop: list[str],
        timesteps: str | None,
        config: list[str],
        experiment: list[str],
        batch_size: int | None,
        num_workers: str | None,
        seed: int | None,
        callbacks: list[str],
    ) -> None:
        """`options` are those that are named like a setting of the experiment; `experiment` are those of --set."""
        from outplay.runs.experiments import checked_metric, parse_setting

        limits = [] if timesteps is None else [parse_setting(f"timesteps_total={timesteps}", "--timesteps")]
        limits += [parse_setting(text, "--stop") for text in stop]
        self.stop = {checked_metric(key, "--stop"): value for key, value in limits}
        self.settings = [parse_setting(text, "--config") for text in config]
        self.batch_size = batch_size
        if num_workers is not None:
            self.settings.append(("num_workers", num_workers if num_workers == "auto" else _integer(num_workers)))
        if seed is not None:
            self.settings.append(("seed", seed))
        self.experiment = [parse_setting(text, "--set") for text in experiment]
        # --set env=… is --env, which also decides on the name of the experiment and on what is trusted.
        given = {key: value for key, value in self.experiment if key in options}
        self.given = {**given, **{key: value for key, value in options.items() if value is not None}}
        self.env = self.given.get("env")
        added = [
            path for key, value in self.experiment if key == "callbacks" and isinstance(value, list) for path in value
        ]
        self.callbacks = [*added, *callbacks]

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
        from outplay.runs.experiments import experiment, nested

        data = {**base.model_dump(), **({"stop": self.stop} if self.stop else {})}
        for key, value in self.experiment:
            data = nested(data, key, value)
        data |= self.given
        if isinstance(data["config"], dict):
            data["config"] = self.config(data["config"])
        if isinstance(data["callbacks"], list):
            data["callbacks"] = list(dict.fromkeys([*data["callbacks"], *self.callbacks]))
        is_changed = self.given or self.settings or self.stop or self.experiment
        return experiment(data, "the command line" if is_changed else base.name)

    def apply_to_new(self, base: Experiment) -> Experiment:
        """As `apply`, for a new run: another environment than that of `base` gives the experiment its name."""
        from outplay.runs.results import folder_name

        if self.env is not None and folder_name(str(self.env)) != folder_name(str(base.env)):
            base = base.model_copy(update={"name": ""})
        return self.apply(base)

    def applied_to_run(self, resume: str, results_dir: Path | None, trust: bool) -> Experiment:
        from outplay.runs.finding import find_run
        from outplay.runs.folder import RunFolder
        from outplay.runs.loading import recorded_experiment
        from outplay.runs.results import results_folder

        folder = RunFolder(find_run(resume, results_folder(results_dir)))
        return recorded_experiment(folder, self.apply, self.env, self.callbacks, trust)

    def resumed(self, resume: str, results_dir: Path | None, trust: bool, folders: list[Path]) -> Run:
        from outplay.runs.finding import find_run
        from outplay.runs.results import results_folder
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
    from outplay.runs.experiments import Experiment, load_file, load_recipe, recipe_names

    if recipe is not None:
        _check_recipe(recipe, recipe_names())
        return [load_recipe(recipe)]
    if file is not None:
        return load_file(file, trust)
    return [Experiment(env=overrides.env)]


def _check_recipe(recipe: str, known: list[str]) -> None:
    """Raise ConfigError if the argument is something else than a recipe: an environment, a file, an algorithm."""
    if recipe in known:
        return
    if recipe.endswith((".yml", ".yaml")):
        raise ConfigError(f"{recipe!r} is a file, not a recipe: outplay train -f {shlex.quote(recipe)}")
    if recipe in env_ids() or re.search(r"-v\d+$|:", recipe):
        raise ConfigError(f"{recipe!r} is an environment, not a recipe: outplay train --env {shlex.quote(recipe)}")
    if recipe.upper() in algorithms:
        raise ConfigError(f"{recipe!r} is an algorithm, not a recipe: outplay train --env ENV --run {recipe.upper()}")


def _print_configuration(jobs: list[Experiment], folders: list[Path], resuming: bool = False) -> None:
    import yaml

    from outplay.runs.loading import make_algorithm

    for job in jobs:
        with separate_output(), make_algorithm(job, folders, resuming) as algorithm:
            config = algorithm.get_config()
            del config["env"]
            body = job.model_dump(mode="json", exclude={"name"})
            data = {job.name: {**body, "run": type(algorithm).__name__, "config": config}}
            masks = algorithm.probe.mask_sources
        if masks:
            typer.echo(f"# The action mask of {job.name} is {masks[0]} of its environment.")
        typer.echo(yaml.safe_dump(data, sort_keys=False), nl=False)


def _created(
    job: Experiment, results_dir: Path | None, folders: list[Path], init_from: str | None, file: Path | None
) -> Run:
    if job.config.get("num_gpus") == 1:
        cuda.begin_context()  # while torch is imported

    from outplay.runs.results import results_folder
    from outplay.runs.run import Run

    with _in_file(file, job):
        return Run.create(job, results_folder(results_dir), folders, init_from)


def _train(make: Any, as_json: bool, out: TextIO, err: TextIO) -> bool:
    """Make a run and train it. Returns whether it reached a stop condition, without a request to stop."""
    from outplay.cli.display import display
    from outplay.cli.hints import hints
    from outplay.cli.interrupts import interruptible

    run = make()
    if not run.experiment.stop:
        typer.echo("no stop condition: the run trains until Ctrl-C", file=err)
    with display(run, as_json, out, err) as shown, interruptible(run, shown, err):
        reason = run.train(shown.show)
    if not as_json:
        typer.echo(f"{reason}; the run is in {run.folder}", file=out)
        if (last := run.last_evaluation) is not None:
            figure = number(last["episode_return_mean"])
            typer.echo(f"evaluation of iteration {last['iteration']}: return {figure}", file=out)
        if run.video is not None:
            typer.echo(f"video of one episode: {run.video}", file=out)
        for hint in hints(run):
            typer.echo(hint, file=out)
    return not run.is_stopping
