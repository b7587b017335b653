"""How much each variable matters, by Optuna's evaluators."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

from outplay.tune.analysis import ExperimentAnalysis
from outplay.tune.domains import Categorical, Domain, Float, Grid, Integer
from outplay.tune.text import value_text, variables_of

_LEAST = 10  # trials
_MOST_FANOVA = 500  # trials; fANOVA fits a forest, PED-ANOVA is quick


def importances(analysis: ExperimentAnalysis, domains: dict[str, Domain]) -> tuple[dict[str, float], str]:
    """The share of each variable, the largest first, and the name of the method. If empty: the reason why."""
    tried = [t for t in analysis.trials if t.last_result and math.isfinite(analysis.objective.value(t.last_result))]
    everywhere = [name for name in variables_of(tried) if all(name in trial.values for trial in tried)]
    varied = [name for name in everywhere if len({value_text(trial.values[name]) for trial in tried}) > 1]
    if len(tried) < _LEAST:
        return {}, f"importances need at least {_LEAST} trials with a value; there are {len(tried)}"
    if len(varied) < 2:
        return {}, "importances compare variables, and fewer than two of them vary"
    scores = [analysis.objective.value(trial.last_result) for trial in tried]
    if max(scores) == min(scores):
        return {}, "all trials have the same value"
    distributions = {name: _distribution(domains.get(name), [trial.values[name] for trial in tried]) for name in varied}
    rows = [{name: _param(distributions[name], trial.values[name]) for name in varied} for trial in tried]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _evaluated(rows, distributions, scores, analysis.objective.mode)


def _evaluated(
    rows: list[dict[str, Any]], distributions: dict[str, Any], scores: list[float], mode: str
) -> tuple[dict[str, float], str]:
    import optuna
    from optuna.importance import FanovaImportanceEvaluator, PedAnovaImportanceEvaluator, get_param_importances

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study(direction="maximize" if mode == "max" else "minimize")
        study.add_trials(
            [
                optuna.trial.create_trial(params=row, distributions=distributions, value=score)
                for row, score in zip(rows, scores, strict=True)
            ]
        )
        reason = ""
        evaluators: list[tuple[str, Callable[[], Any]]] = [("PED-ANOVA", PedAnovaImportanceEvaluator)]
        if len(rows) <= _MOST_FANOVA:
            evaluators.insert(0, ("fANOVA", lambda: FanovaImportanceEvaluator(seed=0)))
        for name, make in evaluators:
            try:
                found = get_param_importances(study, evaluator=make())
            except (ImportError, ValueError, RuntimeError) as error:  # scikit-learn is missing; degenerate values
                reason = reason or f"{name}: {error}"
            else:
                return {key: float(value) for key, value in found.items() if math.isfinite(value)}, name
        return {}, reason
    finally:
        optuna.logging.set_verbosity(level)


def _distribution(domain: Domain | None, values: list[Any]) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(values) or isinstance(domain, Categorical | Grid):
        return CategoricalDistribution(sorted({value_text(value) for value in values}))
    # The space may be left by population-based training: the bounds are those of the values, too.
    low, high = min(numbers), max(numbers)
    if isinstance(domain, Integer):
        return IntDistribution(min(int(low), domain.low), max(int(high), domain.last), log=domain.log)
    if isinstance(domain, Float):
        low, high = min(low, domain.low), max(high, domain.high)
    return FloatDistribution(float(low), float(high), log=isinstance(domain, Float) and domain.log)


def _param(distribution: Any, value: Any) -> Any:
    kind = type(distribution).__name__
    if kind == "CategoricalDistribution":
        return value_text(value)
    return int(value) if kind == "IntDistribution" else float(value)
