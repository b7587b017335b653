"""`outplay tune`."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from outplay.cli import completion
from outplay.cli.engine import check_engine, engine_options, start_engine
from outplay.cli.options import Command, Group
from outplay.cli.output import command_output
from outplay.errors import ConfigError

if TYPE_CHECKING:
    from outplay.tune import Callback, ExperimentAnalysis
    from outplay.tune.files import SearchFile

_TOP = 20  # trials in the table of a report
_PREVIEW = 5  # configs that --dry-run prints

app = typer.Typer(cls=Group, invoke_without_command=True, rich_markup_mode=None)


@app.callback()
def tune(
    context: typer.Context,
    file: Annotated[
        Path | None,
        typer.Option(
            "-f", "--file", metavar="FILE", help="An experiment file with variables, or a recipe: tune-cartpole."
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="STUDY", help="Continue a study from its folder.", autocompletion=completion.studies),
    ] = None,
    num_samples: Annotated[
        int | None,
        typer.Option(metavar="N", help="Number of samples; each grid is repeated this many times; -1: no limit."),
    ] = None,
    max_concurrent_trials: Annotated[
        int | None, typer.Option(metavar="N", help="Trials at the same time; default: one per core.")
    ] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="METRIC=VALUE", help="When a trial ends; repeatable.")
    ] = None,
    timesteps: Annotated[str | None, typer.Option(metavar="N", help="The same as --stop timesteps_total=N.")] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Algorithm setting or variable, as lr={uniform: [0, 1]}; repeatable."),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help="inline, process (default) or ray: where trials run.",
            autocompletion=completion.engines,
        ),
    ] = None,
    address: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Address of a Ray cluster: auto, or host:port.")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Random seed of the search.")] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the study; default: the experiment and the date.")
    ] = None,
    results_dir: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of all runs; default ~/outplay_results.")
    ] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Import modules that a study or file names.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the variables and the first configs, and exit.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per result of a trial.")] = False,
) -> None:
    """Search for settings: trials of an experiment file with variables.

    \b
    outplay tune -f tune-cartpole
    outplay tune -f search.yml --num-samples 50
    outplay tune --resume cartpole
    outplay tune report cartpole
    """
    if context.invoked_subcommand is not None:
        return
    changes = {"num_samples": num_samples, "max_concurrent_trials": max_concurrent_trials, "seed": seed}
    given = {key: value for key, value in changes.items() if value is not None}
    if (file is None) == (resume is None):
        raise ConfigError(
            "nothing to search: give a file (-f FILE), or a study to continue (--resume STUDY)"
            if file is None
            else "-f and --resume cannot be combined: a study keeps its file"
        )
    check_engine(engine, address)
    from outplay.runs.results import results_folder

    results = results_folder(results_dir)
    if resume is not None:
        fixed = {"--name": name, "--config": config, "--stop": stop, "--timesteps": timesteps, "--seed": seed}
        if changed := [option for option, value in fixed.items() if value]:
            raise ConfigError(f"{changed[0]} cannot be combined with --resume: a study keeps its settings")
        search, folder = _recorded(resume, results, trust)
        search.tune |= given
        folders: list[Path] = []
    else:
        assert file is not None
        file = _found(file)
        search = _from_file(file, trust, stop or [], timesteps, config or [])
        search.tune |= given
        folder = _new_folder(search, results, name)
        folders = [file.parent.absolute()]
    search.import_from = [*search.import_from, *(str(path) for path in folders)]
    if dry_run:
        _print_preview(search, folder)
        return
    with command_output() as (out, err):
        _check(search, trust, is_recorded=resume is not None)
        start_engine(engine, address)
        _search(search, folder, resume is not None, as_json, engine_options(engine, address), out, err)


def _found(file: Path) -> Path:
    """A file, or the recipe of this name."""
    from outplay.tune.files import recipes

    return recipes().get(str(file), file) if not file.exists() else file


def _from_file(file: Path, trust: bool, stop: list[str], timesteps: str | None, config: list[str]) -> SearchFile:
    from outplay.runs.experiments import checked_metric, parse_setting
    from outplay.tune.files import SearchFile

    search = SearchFile.load(file, trust)
    limits = [] if timesteps is None else [parse_setting(f"timesteps_total={timesteps}", "--timesteps")]
    limits += [parse_setting(text, "--stop") for text in stop]
    if limits:
        search.experiment["stop"] = {checked_metric(key, "--stop"): value for key, value in limits}
    for text in config:
        search.set(*parse_setting(text, "--config"))
    return search


def _recorded(study: str, results: Path, trust: bool) -> tuple[SearchFile, Path]:
    from outplay.tune.files import SearchFile, find_study

    folder = find_study(study, results)
    return SearchFile.of_study(folder, trust), folder


def _new_folder(search: SearchFile, results: Path, name: str | None) -> Path:
    from outplay.errors import RunError
    from outplay.tune import Tuner
    from outplay.tune.files import new_name

    folder = results / (name or new_name(search.name))
    if Tuner.can_restore(folder):
        raise RunError(
            f"there is a study {folder.name!r} already; continue it with --resume {folder.name}, or use another --name"
        )
    return folder


def _check(search: SearchFile, trust: bool, is_recorded: bool) -> None:
    """Check the experiments of trials, as `outplay train` does. Files in a study's folder have to be trusted."""
    from outplay.errors import EnvError
    from outplay.runs.loading import check_trusted, make_algorithm

    for number, job in enumerate(search.check()):
        if is_recorded:
            check_trusted(job, trust, search.where)
        if number == 0:
            first = job
    try:
        make_algorithm(first).stop()
    except (ConfigError, EnvError) as error:
        raise type(error)(f"{search.where}: {error}") from error


def _needs_trust(search: SearchFile) -> bool:
    from outplay.errors import CheckpointError
    from outplay.runs.loading import check_trusted

    try:
        for job in search.check():
            check_trusted(job, False, search.where)
    except CheckpointError:
        return True
    return False


def _print_preview(search: SearchFile, folder: Path) -> None:
    import yaml

    from outplay.tune.spaces import described
    from outplay.tune.text import values_text, variable_text

    tuner = search.tuner(folder.name, folder.parent)
    list(search.check())
    total = "no limit" if tuner.total is None else f"{tuner.total}"
    typer.echo(f"trials: {total}")
    typer.echo("variables:")
    for name, domain in tuner.space.domains.items():
        text = yaml.safe_dump(described(domain), default_flow_style=True, width=10_000).strip()
        typer.echo(f"  {variable_text(name)}: {text}")
    typer.echo("first configs:")
    for number, values in enumerate(tuner.preview(_PREVIEW if tuner.total is None else min(_PREVIEW, tuner.total))):
        typer.echo(f"  {number:05d}: {values_text(values) or 'no variables'}")


def _search(
    search: SearchFile, folder: Path, resume: bool, as_json: bool, placement: str, out: TextIO, err: TextIO
) -> None:
    """Run the study. `placement`: the options that say where it runs."""
    from outplay.errors import TuneError
    from outplay.tune.display import StudyDisplay, argument_of
    from outplay.tune.text import error_text

    shown: list[Callback] = [_json_lines(out) if as_json else StudyDisplay(out)]
    tuner = search.tuner(folder.name, folder.parent, shown, resume)
    if not resume:
        search.save(folder)
    options = placement + (" --trust" if _needs_trust(search) else "")
    try:
        with _sigterm_as_interrupt():
            results = tuner.fit()
    except KeyboardInterrupt:
        typer.echo(f"interrupted; to resume: outplay tune --resume {argument_of(folder)}{options}", file=err)
        raise typer.Exit(130) from None
    errors = results.analysis.errors
    if errors and len(errors) == len(results.analysis):
        number, text = next(iter(errors.items()))
        raise TuneError(f"all {len(errors)} trials have failed; trial {number}: {error_text(text)}", results.analysis)


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """A study that is asked to end by a signal ends as by Ctrl-C: nothing is lost."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _json_lines(out: TextIO) -> Callback:
    from outplay.cli.output import discard
    from outplay.runs.history import as_json as to_json
    from outplay.tune import Callback

    class JsonLines(Callback):
        """One line per result."""

        def on_trial_result(
            self,
            iteration: int,  # noqa: ARG002
            trials: Any,  # noqa: ARG002
            trial: Any,
            result: dict[str, Any],
            **info: Any,  # noqa: ARG002
        ) -> None:
            values = {"trial_id": trial.id, "values": trial.values}
            try:
                print(json.dumps({**values, **json.loads(to_json(result))}), file=out, flush=True)
            except BrokenPipeError:  # the reader (`head`, for example) has closed the pipe
                discard(out)
                raise KeyboardInterrupt from None

    return JsonLines()


def report(
    study: Annotated[
        str,
        typer.Argument(metavar="STUDY", help="A study: its name, or its folder.", autocompletion=completion.studies),
    ],
    top: Annotated[int | None, typer.Option(metavar="N", min=1, help="Print the N best trials; default 20.")] = None,
    metric: Annotated[str | None, typer.Option(metavar="METRIC", help="Rank by another metric.")] = None,
    mode: Annotated[str | None, typer.Option(metavar="MODE", help="min or max, for --metric.")] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all trials to a CSV file.")] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write the page; default: report.html of the study.")
    ] = None,
    results_dir: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of all runs; default ~/outplay_results.")
    ] = None,
) -> None:
    """Show the trials of a study: a table, and a page with figures.

    \b
    outplay tune report cartpole --top 10 --csv trials.csv
    """
    import shutil
    import sys

    from outplay.runs.results import results_folder
    from outplay.tune import ExperimentAnalysis
    from outplay.tune.files import find_study
    from outplay.tune.reporting import table_lines, write_csv, write_page

    folder = find_study(study, results_folder(results_dir))
    analysis = ExperimentAnalysis(folder, metric, mode)
    _check_metric(analysis)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000
    for line in table_lines(analysis, width, top or _TOP):
        typer.echo(line)
    if csv is not None:
        write_csv(analysis, csv)
        typer.echo(f"table: {csv}")
    page = folder / "report.html" if html is None else html
    write_page(analysis, page)
    typer.echo(f"page: {page}")


def _check_metric(analysis: ExperimentAnalysis) -> None:
    from outplay.conditions import flattened
    from outplay.errors import nearest

    known = {name: None for trial in analysis.trials for name in flattened(trial.last_result)}
    if not analysis.objective.metrics:
        listed = f"; it has {', '.join(list(known)[:8])}" if known else ""
        raise ConfigError(f"the study has no metric: give --metric METRIC --mode min, or max{listed}")
    if unknown := [name for name in analysis.objective.metrics if known and name not in known]:
        raise ConfigError(f"no trial has reported {unknown[0]!r}{nearest(unknown[0], known)}")


app.command("report", cls=Command, short_help="Show the trials of a study: a table, and a page with figures.")(report)
