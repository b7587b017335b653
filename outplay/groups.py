"""Groups of settings inside those of an algorithm: the model, the optimizer, exploration, curricula, evaluations.

Each field has one sentence, which is also its entry in docs/configuration.md.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, FiniteFloat, PlainSerializer, model_validator

from outplay.conditions import TIME_METRICS, metric_name
from outplay.errors import ConfigError, nearest
from outplay.settings import Decay, Few, Fraction, NotNegative, Positive, Settings, plain


def _square(filters: Any) -> Any:
    """[out, kernel, stride], where RLlib's form has [kernel, kernel]."""
    if not isinstance(filters, list):
        return filters
    return [
        [f[0], *f[1][:1], f[2]] if isinstance(f, list) and len(f) == 3 and isinstance(f[1], list) else f
        for f in filters
    ]


def _import_path(value: Any) -> Any:
    """Classes are written to files as import paths."""
    return f"{value.__module__}:{value.__qualname__}" if isinstance(value, type) else value


ClassOrPath = Annotated[str | type | None, PlainSerializer(_import_path, when_used="json")]


class ModelConfig(Settings):
    """The network."""

    fcnet_hiddens: list[Positive] | None = Field(
        None,
        description="Sizes of the hidden layers; default [64, 64], with Q-values (DQN, PQN, SAC, TD3, DDPG) "
        "[256, 256], after convolutions [512].",
    )
    fcnet_activation: Literal["tanh", "relu", "elu", "swish", "linear"] | None = Field(
        None,
        description="Activation of the hidden layers; default tanh, relu with Q-values and after convolutions.",
    )
    conv_filters: Annotated[list[tuple[Positive, Positive, Positive]] | None, BeforeValidator(_square)] = Field(
        None, description="Convolutions as [filters, kernel, stride] each; the default depends on the image size."
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Precision of the matrix products of convolutions and hidden layers; outputs and weights stay "
        "float32. auto: bfloat16 for continuous actions with SAC, TD3 and DDPG if all hidden layers have at least 128 "
        "units, on CPUs with instructions for it; else float32. Part of the result.",
    )
    use_bias: bool = Field(True, description="Whether layers have a bias; the value head always has one.")
    layer_norm: bool = Field(
        False,
        description="LayerNorm (Ba et al. 2016) after each hidden layer and each convolution, before the activation; "
        "there over the channels of each pixel. Recurrent cores and custom models have their own layers, the critics "
        "of SAC, TD3 and DDPG have critic_norm.",
    )
    initializer: Literal["orthogonal", "normal"] = Field(
        "orthogonal",
        description="Weight initialisation: orthogonal with a small output layer; or normal with standard deviation "
        "1/√n for n inputs.",
    )
    initial_log_std: Annotated[float, Field(ge=-10, le=2)] = Field(
        0.0,
        description="Box actions from a normal distribution (PPO, A2C, PG, IMPALA, APPO, …): initial log standard "
        "deviation. The bounds of the space are -1 and 1; -1 to -2 suits robots with many joints.",
    )
    max_sequence_length: Positive = Field(
        64, description="Maximum length of Sequence observations, and of text with text: characters; padded to it."
    )
    sequence_pooling: Literal["mean_max", "attention"] = Field(
        "mean_max", description="How the elements of a sequence are combined: mean and maximum, or attention."
    )
    text: Literal["ignore", "characters"] = Field(
        "ignore", description="Text observations: ignored, or embedded by characters."
    )
    action_embeddings: str | None = Field(
        None,
        description="Parametric actions: the part of a Dict observation with the embedding of each action, (n, d). The "
        "logit or Q-value of an action is the dot product of its embedding and the network's output.",
    )
    sparse_inputs: bool = Field(
        False,
        description="The first layer skips zero inputs: for sparse observations (no images, no normalisation).",
    )
    vf_share_layers: bool | None = Field(
        None,
        description="Whether policy and value share all layers but the last; default: for images. Recurrent networks "
        "always share them.",
    )
    use_lstm: bool = Field(False, description="An LSTM after the hidden layers.")
    use_gru: bool = Field(False, description="A GRU after the hidden layers.")
    lstm_cell_size: Positive = Field(128, description="Size of the LSTM or GRU.")
    max_seq_len: Positive = Field(
        20,
        description="Recurrent networks learn from sequences of at most this many steps (truncated backpropagation).",
    )
    lstm_use_prev_action: bool = Field(
        False, description="Recurrent networks also get the previous action (one-hot if it is discrete)."
    )
    lstm_use_prev_reward: bool = Field(False, description="Recurrent networks also get the previous reward.")
    use_attention: bool = Field(
        False, description="A causal transformer over the last steps of the episode, after the hidden layers."
    )
    attention_num_transformer_units: Few = Field(1, description="Layers of the transformer.")
    attention_dim: Positive = Field(64, description="Size of the transformer's layers.")
    attention_num_heads: Few = Field(2, description="Attention heads.")
    attention_head_dim: Positive = Field(32, description="Size of an attention head.")
    attention_memory_inference: Positive = Field(
        50, description="Number of previous steps that each step attends to, when acting and when learning."
    )
    attention_position_wise_mlp_dim: Positive = Field(
        64, description="Size of the hidden layer of the transformer's feed-forward networks."
    )

    custom_model: ClassOrPath = Field(
        None,
        description="A torch.nn.Module in the place of convolutions and hidden layers, or its import path "
        "(module:Class). docs/models.md shows how to write one.",
    )
    custom_model_config: Annotated[dict[str, Any], BeforeValidator(lambda v: plain(v, "custom_model_config"))] = Field(
        {}, description="Keyword arguments of the custom model."
    )
    custom_action_dist: ClassOrPath = Field(
        None, description="A class of action distributions, or its import path (module:Class); see docs/models.md."
    )

    @model_validator(mode="after")
    def _one_core(self) -> Self:
        chosen = [name for name in ("use_lstm", "use_gru", "use_attention") if getattr(self, name)]
        if len(chosen) > 1:
            raise ValueError(f"{chosen[0]} and {chosen[1]} exclude each other; set one of them")
        if chosen and self.vf_share_layers is False:
            raise ValueError(f"vf_share_layers: with {chosen[0]}, policy and value share their layers; leave it out")
        if not chosen and (self.lstm_use_prev_action or self.lstm_use_prev_reward):
            custom = "; a recurrent custom_model does not get them" if self.custom_model is not None else ""
            raise ValueError(
                f"lstm_use_prev_action and lstm_use_prev_reward need use_lstm, use_gru or use_attention{custom}"
            )
        return self

    @model_validator(mode="after")
    def _without_effect(self) -> Self:
        """Refuse settings that have no effect. A core that is switched off by name (use_lstm: false) may have them."""
        if self.custom_model_config and self.custom_model is None:
            raise ValueError("custom_model_config needs a custom_model, whose arguments it has")
        is_chosen = self.layer_norm and not type(self).model_fields["layer_norm"].default
        if is_chosen and self.custom_model is not None and not self.fcnet_hiddens:
            raise ValueError("layer_norm: a custom_model has its own layers; leave it out, or add fcnet_hiddens")
        if not self.is_recurrent and not self.model_fields_set & {"use_lstm", "use_gru", "use_attention"}:
            cells, attention = "use_lstm or use_gru", "use_attention"
            needs = {name: attention for name in type(self).model_fields if name.startswith("attention_")}
            needs["lstm_cell_size"] = cells
            if self.custom_model is None:
                needs["max_seq_len"] = "use_lstm, use_gru, use_attention or a recurrent custom_model"
            if given := [name for name in type(self).model_fields if name in self.model_fields_set & needs.keys()]:
                raise ValueError(f"{given[0]} needs {needs[given[0]]}: without it, it has no effect")
        return self

    @property
    def is_recurrent(self) -> bool:
        return self.use_lstm or self.use_gru or self.use_attention


class OptimizerConfig(Settings):
    """The optimizer's arguments. The learning rate is `lr`."""

    type: Literal["adam", "rmsprop", "sgd"] = Field("adam", description="Optimizer.")
    betas: tuple[Decay, Decay] = Field((0.9, 0.999), description="Adam: decay rates β₁ and β₂.")
    eps: NotNegative = Field(1e-5, description="Adam and RMSProp: ε, added to the denominator.")
    decay: Decay = Field(0.99, description="RMSProp: decay rate α.")
    momentum: Fraction = Field(0.0, description="SGD: momentum.")


_FOR_ACTORS = "is for algorithms with deterministic continuous actions: TD3 and DDPG"
# The types of exploration that other algorithms and libraries have, and what they are for.
_EXPLORATION = {
    "StochasticSampling": "samples from the policy's action distribution: for PPO, A2C, PG, SAC, IMPALA and APPO",
    "EpsilonGreedy": "is for algorithms with Q-values: DQN and PQN",
    "SoftQ": "is for algorithms with Q-values: DQN and PQN",
    "Random": "is for algorithms that learn from the actions of any policy: DQN, PQN, SAC, TD3 and DDPG",
    "GaussianNoise": _FOR_ACTORS,
    "OrnsteinUhlenbeckNoise": _FOR_ACTORS,
    "ParameterNoise": "is for DQN",
}


class ExplorationConfig(Settings):
    """Exploration while training."""

    type: Literal["StochasticSampling"] = Field(
        "StochasticSampling",
        description="Sample from the policy's action distribution: the only type for on-policy algorithms.",
    )

    @classmethod
    def check_type(cls, given: Any, algorithm: str) -> None:
        """Raise ValueError if other algorithms or libraries have this type, and this algorithm does not."""
        *others, last = get_args(cls.model_fields["type"].annotation)
        if isinstance(given, str) and given in _EXPLORATION and given not in (*others, last):
            allowed = f"{', '.join(others)} and {last}" if others else last
            raise ValueError(f"exploration_config.type: {given} {_EXPLORATION[given]}; {algorithm} supports {allowed}")


def _metric_names(conditions: Any) -> Any:
    """Conditions with Outplay's names of metrics. Refuses metrics that differ from run to run."""
    if not isinstance(conditions, dict):
        return conditions
    try:
        named = {metric_name(name) if isinstance(name, str) else name: value for name, value in conditions.items()}
    except ConfigError as error:
        raise ValueError(f"curriculum: {error}") from None
    if timed := TIME_METRICS & named.keys():
        raise ValueError(f"curriculum: {min(timed)} depends on the machine, so a run would not be reproducible")
    return named


Conditions = Annotated[dict[str, FiniteFloat], BeforeValidator(_metric_names)]


class CurriculumConfig(Settings):
    """The levels of a curriculum. Training starts on the first one."""

    levels: Annotated[list[Any], BeforeValidator(lambda value: plain(value, "curriculum.levels"))] = Field(
        [], description="The task of each level, from the easiest to the hardest: what set_task(task) gets."
    )
    promote_when: Conditions = Field(
        {}, description="Conditions {metric: value}: the next level starts when all metrics are at least their values."
    )
    demote_when: Conditions = Field(
        {}, description="Conditions {metric: value}: the level before starts when all metrics are at most their values."
    )
    min_episodes: Positive = Field(
        20,
        description="Episodes of a level that must have ended before it is left; at most metrics_num_episodes count.",
    )
    min_iterations: Positive = Field(1, description="Iterations that a level lasts at least.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.levels or None in self.levels:
            raise ValueError(
                "curriculum.levels must be a list of tasks, one per level, none of them null; for example [5, 10, 20]"
            )
        if len(self.levels) > 1 and not self.promote_when:
            raise ValueError(
                "curriculum.promote_when is missing: the first level would never end; for example "
                "promote_when: {episode_return_mean: 0.8}"
            )
        if self.promote_when.get("curriculum_level", 0) > 0:
            raise ValueError("curriculum.promote_when: a condition on curriculum_level is never reached on level 0")
        for name in self.promote_when.keys() & self.demote_when.keys():
            if self.demote_when[name] >= self.promote_when[name]:
                raise ValueError(
                    f"curriculum.demote_when.{name} must be less than promote_when.{name} "
                    f"({self.promote_when[name]:g}), not {self.demote_when[name]:g}"
                )
        return self


def _plain_dict(name: str) -> BeforeValidator:
    return BeforeValidator(lambda value: value if value is None else plain(value, name))


class EvaluationConfig(Settings):
    """What differs in evaluations: settings of the environment and of acting. null: as in training."""

    env: str | None = Field(
        None,
        description="The environment of evaluations: another one, with the same spaces. It does not get the env_config "
        "and the curriculum tasks of the training environment.",
    )
    env_config: Annotated[dict[str, Any] | None, _plain_dict("evaluation_config.env_config")] = Field(
        None, description="Arguments of the environment that differ; the others are those of the training environment."
    )
    explore: bool | None = Field(None, description="RLlib's spelling of evaluation_explore, which it sets.")
    max_episode_steps: Positive | None = Field(
        None, description="Truncate episodes after this many steps: more, or fewer, than in training."
    )
    frame_stack: Few | None = Field(None, description="Number of stacked frames per observation.")
    atari_preprocessing: bool | None = Field(None, description="See atari_preprocessing.")
    fire_on_reset: bool | None = Field(None, description="See fire_on_reset.")
    env_step_timeout_s: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Time limit of a step or reset, in seconds."
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_settings_of_training(cls, data: Any) -> Any:
        for key in data if isinstance(data, dict) else ():
            if isinstance(key, str) and key not in cls.model_fields:
                near = nearest(key, cls.model_fields)
                hint = near if "Did you mean" in near else f"; it takes {', '.join(cls.model_fields)}"
                raise ValueError(f"evaluation_config: {key!r} is not a setting of evaluations{hint}")
        return data
