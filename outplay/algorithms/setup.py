"""Setup of an Algorithm: its arguments, checks of the environment, specs of environment, policy and rollouts."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from outplay import cuda
from outplay.algorithms import curriculum, imported
from outplay.algorithms.resolution import resolved
from outplay.collect import RolloutSpec
from outplay.collect.window import check_window
from outplay.config import AlgorithmConfig
from outplay.envs import EnvSpec, Probe, env_name, find_env, import_folders, import_path, probe_env
from outplay.errors import CheckpointError, ConfigError, shortened
from outplay.experiment import Experiment
from outplay.groups import EvaluationConfig, ModelConfig
from outplay.learning.learner import Learner
from outplay.policies import Policy, PolicySpec
from outplay.preprocessors import Preprocessor, from_dict, load
from outplay.sequences import Reading
from outplay.settings import validated

if TYPE_CHECKING:
    from outplay.algorithms.algorithm import Algorithm

log = logging.getLogger("outplay")

C = TypeVar("C", bound=AlgorithmConfig)


@dataclass(frozen=True)
class EvaluationEnv:
    """The environment of evaluations: that of training, unless evaluation_config changes it."""

    spec: EnvSpec
    probe: Probe


@dataclass(frozen=True)
class Setup:
    """What an Algorithm is made of."""

    env: Any  # as it was given
    config: AlgorithmConfig  # checked, with `auto` resolved
    env_spec: EnvSpec
    probe: Probe
    evaluation_env: EvaluationEnv
    policy: PolicySpec
    task_function: curriculum.TaskFunction | None  # of the setting env_task_fn
    folders: list[Path]  # of the modules that were imported


def prepared(
    kind: type[Algorithm],
    env: Any,
    config: Mapping[str, Any] | AlgorithmConfig | None,
    keywords: Mapping[str, Any],
    folders: list[Path],
    resuming: bool,
) -> Setup:
    """Check the arguments of an Algorithm and its environments: see `Algorithm.__init__`."""
    env, given = env_and_settings(kind.__name__, env, config, keywords)
    name, factory = find_env(env, folders)
    given, named = named_evaluation_env(given, folders)
    checked = validated(kind.Config, {**given, "env": name}, f"{kind.__name__} config", lambda: Experiment)
    if checked.num_gpus and torch.cuda.is_available():
        cuda.begin_libraries()
    checked, preprocessor = with_preprocessor(checked)
    task_function = curriculum.task_function(checked.env_task_fn, folders)
    model = imported.with_classes(checked.model, folders)
    evaluated = import_folders(named[0]) if named else []
    imported_from = list(dict.fromkeys([*import_folders(name), *evaluated, *imported.folders_of(checked)]))
    log.setLevel(checked.log_level)
    spec = env_spec(name, factory, checked)
    probe = probe_env(spec, checked.seed)
    spec = replace(spec, global_streams=probe.global_streams)
    curriculum.check_tasks(spec, probe, checked)
    evaluation = evaluation_env(checked, EvaluationEnv(spec, probe), named)
    if checked.render_env:
        check_window(evaluation.spec)
    checked = resolved(checked, spec, probe, resuming)
    model = model.model_copy(update={"precision": checked.model.precision})
    if not resuming:
        kind.Learner.check_input(checked, probe.leaves, probe.action_space, probe.has_action_masks)
    warn_about_environment(name, probe)
    policy = policy_spec(checked, model, probe, kind.policy_class, kind.with_value)
    policy = replace(policy, preprocessor=preprocessor)
    return Setup(env, checked, spec, probe, evaluation, policy, task_function, imported_from)


def with_preprocessor(config: C) -> tuple[C, Preprocessor | None]:
    """The settings with the preprocessor itself in the place of its file: a checkpoint needs no other file."""
    given = config.preprocessor
    if given is None:
        return config, None
    try:
        found = load(given) if isinstance(given, str) else from_dict(given, "it")
        found.check_fitted()
    except (CheckpointError, ConfigError) as error:
        raise ConfigError(f"preprocessor: {error}") from error
    return config.model_copy(update={"preprocessor": found.to_dict()}), found


def env_and_settings(
    algorithm: str, env: Any, config: Mapping[str, Any] | AlgorithmConfig | None, keywords: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """The environment, which `env` or `config` names, and the other settings. `keywords` override `config`."""
    if isinstance(config, AlgorithmConfig):
        config = {name: getattr(config, name) for name in config.model_fields_set}
    if config is not None and not isinstance(config, Mapping):
        hint = f"; the environment is the first argument, as in {algorithm}({config!r}, lr=…)" * isinstance(config, str)
        raise ConfigError(f"config: settings (key: value) are needed, not {config!r}{hint}")
    settings = {key: value for key, value in (config or {}).items() if key not in keywords}
    settings |= keywords  # last: if a setting has two names, the later one counts
    other = settings.pop("env", None)
    if env is not None and other is not None and env_name(env) != env_name(other):
        raise ConfigError(f"two environments are named: env is {env!r}, and env in config is {other!r}")
    env = other if env is None else env
    if env is None:
        raise ConfigError(f"{algorithm} needs an environment: env='CartPole-v1', a class, an import path")
    return env, settings


def env_spec(name: str, factory: Any, config: AlgorithmConfig) -> EnvSpec:
    return EnvSpec(
        name=name,
        factory=factory,
        env_config=config.env_config,
        max_episode_steps=config.max_episode_steps,
        frame_stack=config.frame_stack,
        atari_preprocessing=config.atari_preprocessing,
        step_timeout_s=config.env_step_timeout_s,
        fire_on_reset=config.fire_on_reset,
        reading=Reading(config.model.max_sequence_length, config.model.text == "characters"),
    )


def named_evaluation_env(settings: dict[str, Any], folders: Iterable[Path]) -> tuple[dict[str, Any], Any]:
    """The settings with the name of `evaluation_config.env`, which may be a class; and its (name, factory), or None."""
    evaluation = settings.get("evaluation_config")
    if isinstance(evaluation, EvaluationConfig):
        evaluation = evaluation.model_dump()
    if not isinstance(evaluation, dict) or evaluation.get("env") is None:
        return settings, None
    name, factory = find_env(evaluation["env"], folders)
    return {**settings, "evaluation_config": {**evaluation, "env": import_path(name)}}, (name, factory)


def evaluation_env(config: AlgorithmConfig, training: EvaluationEnv, named: Any) -> EvaluationEnv:
    """The environment of evaluations. `training` is that of training, `named` the (name, factory) of another one."""
    changed = {key: value for key, value in config.evaluation_config if value is not None}
    if not changed:
        return training
    spec = training.spec
    if named is not None:
        name, factory = named
        spec = replace(env_spec(name, factory, config), env_config={})
    names = {"env_step_timeout_s": "step_timeout_s"}
    fields = {names.get(key, key): value for key, value in changed.items() if key not in ("env", "env_config")}
    spec = replace(spec, **fields, env_config={**spec.env_config, **changed.get("env_config", {})}, global_streams=())
    if spec.fire_on_reset and not spec.is_atari:
        raise ConfigError("evaluation_config: fire_on_reset is only for ALE/… games with atari_preprocessing")
    probe = probe_env(spec, config.seed)
    for kind in ("observation_space", "action_space"):
        if (found := getattr(probe, kind)) != (needed := getattr(training.probe, kind)):
            raise ConfigError(
                f"evaluation_config: the {kind.replace('_', ' ')} of {spec.name!r} is {_in_one_line(found)} in "
                f"evaluations, but {_in_one_line(needed)} in training ({training.spec.name!r}); they must be equal"
            )
    if probe.inexact:
        log.warning("evaluation_config: %s, so evaluations are not exactly reproducible", probe.inexact)
    return EvaluationEnv(replace(spec, global_streams=probe.global_streams), probe)


def _in_one_line(space: Any) -> str:
    return shortened(" ".join(str(space).split()), 100)


def check_recurrence(policy: Policy, algorithm: str, supports_recurrence: bool) -> None:
    """Raise ConfigError if the network is recurrent and the algorithm cannot train such networks."""
    if policy.network.core is not None and not supports_recurrence:
        raise ConfigError(f"model: {algorithm} cannot train recurrent networks; use another algorithm, or frame_stack")


def add_learners(learner: Learner[Any], policy: PolicySpec) -> None:
    """Give the learner the others of `num_learners`, which start on first use. ConfigError if it cannot have them."""
    if learner.config.num_learners == 1:
        return
    if getattr(learner.config, "critic_norm", None) == "batch":
        raise ConfigError(
            "critic_norm: batch needs num_learners: 1, since each learner sees only a part of a minibatch; use "
            "critic_norm: layer or one learner"
        )
    from outplay.learning.mirrors import Mirrors  # torch.distributed is loaded only if it is used

    learner.mirrors = Mirrors(learner, policy)


def warn_about_environment(env: str, probe: Probe) -> None:
    """Log why resuming will not be exact, where action masks come from, and which observations are ignored."""
    if probe.inexact:
        remedy = f"; {probe.remedy}" if probe.remedy else ""
        log.warning("environment %r: %s, so a resumed run will not be exact%s", env, probe.inexact, remedy)
    if probe.mask_sources:
        log.info("environment %r: %s is its action mask", env, probe.mask_sources[0])
    if probe.mask_warning:
        log.warning("environment %r: %s", env, probe.mask_warning)
    if probe.left_out:
        names = ", ".join(probe.left_out)
        log.warning(
            "environment %r: text is left out of its observations: %s; to use it, set model.text: characters",
            env,
            names,
        )


def policy_spec(
    config: AlgorithmConfig, model: ModelConfig, probe: Probe, policy_class: type[Policy], with_value: bool
) -> PolicySpec:
    """`model` are the settings of the network, with classes in the place of import paths."""
    return PolicySpec(
        observation_space=probe.observation_space,
        action_space=probe.action_space,
        model=model,
        seed=config.seed,
        with_value=with_value,
        normalize_observations=config.normalize_observations is True,
        normalize_actions=config.normalize_actions,
        clip_actions=config.clip_actions,
        policy_class=policy_class,
        options=policy_class.options_from(config),
        with_masks=probe.has_action_masks,
    )


def rollout_spec(config: AlgorithmConfig, env: EnvSpec, policy: PolicySpec) -> RolloutSpec:
    return RolloutSpec(
        env=env,
        policy=policy,
        seed=config.seed,
        group_sizes=config.group_sizes,
        fragment_length=config.fragment_length,
        complete_episodes=config.batch_mode == "complete_episodes",
        explore=config.explore,
        device="cuda" if config.act_on_gpu else "cpu",
        max_worker_restarts=config.max_worker_restarts,
        info_metrics=tuple(config.info_metrics),
    )


@dataclass(frozen=True)
class Resources:
    """CPUs and GPUs that an algorithm uses."""

    cpus: int
    gpus: int


def resources(config: AlgorithmConfig, num_workers: int) -> Resources:
    assert isinstance(config.learner_threads, int)
    processes = num_workers + config.evaluation_num_workers + getattr(config, "replay_shards", 0)
    each = config.num_gpus if config.num_gpus_per_learner is None else config.num_gpus_per_learner
    gpus = math.ceil(config.num_learners * each)
    return Resources(cpus=config.num_learners * config.learner_threads + processes, gpus=gpus)
