"""Names of other libraries lead to ours: the table is true, and messages use it."""

from __future__ import annotations

import pytest

from outplay import PPO, ConfigError
from outplay.algorithms import find_algorithm
from outplay.experiment import Experiment
from outplay.registry import algorithms
from outplay.runs.experiments import METRICS, experiment
from outplay.settings import has_setting, unknown_setting, validated
from outplay.synonyms import METRIC_NAMES, SETTINGS

CONFIGS = {name: find_algorithm(name).Config for name in algorithms.shipped}
CLASSES = [Experiment, *CONFIGS.values()]
# The parameters of PPO, A2C, DQN, SAC and TD3 in each library that are not settings of Outplay under the same name.
LIBRARIES = {
    "Stable-Baselines3": "learning_rate n_steps batch_size n_epochs gae_lambda clip_range clip_range_vf "
    "normalize_advantage ent_coef vf_coef max_grad_norm use_sde sde_sample_freq target_kl stats_window_size "
    "tensorboard_log policy policy_kwargs verbose device rms_prop_eps use_rms_prop train_freq gradient_steps "
    "replay_buffer_class replay_buffer_kwargs optimize_memory_usage target_update_interval exploration_fraction "
    "exploration_initial_eps exploration_final_eps total_timesteps n_envs net_arch activation_fn "
    "rollout_buffer_class rollout_buffer_kwargs log_interval progress_bar reset_num_timesteps tb_log_name callback "
    "action_noise target_policy_noise target_noise_clip policy_delay target_entropy n_critics",
    "RLlib": "num_rollout_workers num_env_runners num_envs_per_env_runner num_epochs minibatch_size "
    "train_batch_size_per_learner shuffle_batch_per_epoch use_kl_loss horizon "
    "observation_filter epsilon num_steps_sampled_before_learning_starts replay_buffer_config adam_epsilon sigma0 "
    "hiddens td_error_loss_fn store_buffer_in_checkpoints evaluation_num_env_runners grad_clip_by model_config "
    "metrics_num_episodes_for_smoothing checkpoint_frequency num_to_keep evaluation_config use_lstm "
    "burn_in_len categorical_distribution_temperature twin_q initial_alpha alpha_lr smooth_target_policy n_step",
    "CleanRL": "exp_name torch_deterministic cuda track capture_video env_id total_timesteps learning_rate num_steps "
    "anneal_lr gae_lambda num_minibatches update_epochs norm_adv clip_coef clip_vloss ent_coef vf_coef max_grad_norm "
    "target_kl target_network_frequency batch_size start_e end_e exploration_fraction train_frequency save_model "
    "policy_lr q_lr policy_frequency autotune alpha policy_noise noise_clip exploration_noise target_entropy_scale",
    "Tianshou": "discount_factor eps_clip dual_clip value_clip advantage_normalization recompute_advantage "
    "max_grad_norm ent_coef vf_coef gae_lambda action_scaling action_bound_method deterministic_eval "
    "reward_normalization return_scaling estimation_step target_update_freq is_double clip_loss_grad eps_training "
    "eps_inference lr_scheduler max_epochs epoch_num_steps step_per_collect collection_step_num_env_steps "
    "episode_per_collect repeat_per_collect update_per_step training_num test_num batch_size hidden_sizes "
    "max_batchsize auto_alpha alpha_lr update_actor_freq policy_noise noise_clip exploration_noise",
}


def exists(name: str) -> bool:
    return any(has_setting(cls, name) or has_setting(cls, f"model.{name}") for cls in CLASSES)


def test_every_row_leads_to_a_setting_and_is_not_one_itself() -> None:
    for theirs, rows in SETTINGS.items():
        assert not exists(theirs), f"{theirs} is a setting of Outplay"
        for row in rows:
            assert exists(row.ours) if row.ours else row.remark, f"{theirs}: there is no {row.ours!r}"
            metric = row.ours.removeprefix("stop.")
            assert metric == row.ours or metric in METRICS
    assert set(METRIC_NAMES.values()) <= set(METRICS)


def test_what_remarks_mention_exists() -> None:
    """Words with an underscore are names of settings, of Outplay or of the other library."""
    allowed = {"evaluation_", "complete_episodes", "net_arch", "activation_fn"}
    for theirs, rows in SETTINGS.items():
        words = {word.strip(":,;.[]()") for row in rows for word in row.remark.split()}
        unknown = {word for word in words if "_" in word and word not in allowed and not exists(word)}
        assert unknown == set(), theirs


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_parameters_of_a_library_are_known(library: str) -> None:
    assert [name for name in LIBRARIES[library].split() if name not in SETTINGS and not exists(name)] == []


@pytest.mark.parametrize("algorithm", CONFIGS)
def test_every_message_names_our_setting_in_one_sentence(algorithm: str) -> None:
    for theirs, rows in SETTINGS.items():
        with pytest.raises(ConfigError) as caught:
            validated(CONFIGS[algorithm], {theirs: 1}, "here", lambda: Experiment)
        said = str(caught.value)
        assert said.startswith(f"here: unknown setting {theirs!r}; ")
        assert any(repr(row.ours) in said if row.ours else row.remark in said for row in rows)
        assert len(said) < 300
        assert "\n" not in said


@pytest.mark.parametrize(
    ("algorithm", "key", "message"),
    [
        ("PPO", "learning_rate", "unknown setting 'learning_rate'; in Outplay it is 'lr'"),
        ("PPO", "learnin_rate", "unknown setting 'learnin_rate'; in Outplay it is 'lr'"),
        ("PPO", "Learning-Rate", "unknown setting 'Learning-Rate'; in Outplay it is 'lr'"),
        ("PPO", "n_steps", "it is 'rollout_fragment_length' (steps per environment; train_batch_size is the total per"),
        ("DQN", "n_steps", "unknown setting 'n_steps'; in Outplay it is 'n_step'"),
        ("A2C", "batch_size", "in Outplay it is 'train_batch_size'"),
        ("PG", "clip_range", "in Outplay it is 'clip_param', which PG does not have"),
        ("PPO", "use_sde", "Outplay has no such setting: state-dependent exploration is not implemented"),
        ("PPO", "model.net_arch", "unknown setting 'model.net_arch'; in Outplay it is 'model.fcnet_hiddens'"),
        ("PPO", "fcnet_hiddens", "unknown setting 'fcnet_hiddens'. Did you mean 'model.fcnet_hiddens'?"),
        ("PPO", "exp_name", "it is 'name', a setting of the experiment: beside config in a file, or --set name=… on"),
        ("DQN", "intrinsic_reward", "unknown setting 'intrinsic_reward': it is a setting of A2C and PPO, not of DQN"),
        ("PG", "intrinsic_reward", "unknown setting 'intrinsic_reward': it is a setting of A2C and PPO, not of PG"),
        ("DQN", "clip_param", "unknown setting 'clip_param': it is a setting of PPO and APPO, not of DQN"),
        ("PPO", "exploration_config.final_epsilon", "it is a setting of DQN and PQN, not of PPO"),
        (
            "DQN",
            "exploration_config.warmup_timesteps",
            "in Outplay it is 'exploration_config.epsilon_schedule' (for example [[0, 1.0], [1000, 1.0], ",
        ),
        ("SAC", "ent_coef", "in Outplay it is 'initial_alpha' (the initial temperature; constant with learn_alpha: "),
        ("SAC", "alpha", "in Outplay it is 'initial_alpha'"),
        ("DQN", "alpha", "in Outplay it is 'prioritized_replay_alpha'"),
        ("SAC", "policy_lr", "in Outplay it is 'lr'"),
        ("SAC", "random_timesteps", "in Outplay it is 'exploration_config.random_timesteps'"),
        ("DQN", "random_timesteps", "in Outplay it is 'exploration_config.epsilon_schedule'"),
        ("TD3", "policy_noise", "in Outplay it is 'target_noise'"),
        ("PPO", "xyzzy", "unknown setting 'xyzzy'; `outplay settings PPO` lists all"),
        ("PPO", "entropy_coef", "unknown setting 'entropy_coef'. Did you mean 'entropy_coeff'?"),
        (
            "PPO",
            "checkpoint_freq",
            "checkpoint_freq is a setting of the experiment, not of the algorithm: write checkpoint_freq: 3 beside "
            "config in a file, --set checkpoint_freq=3 on the command line, or pass it as run={…} of the trainer in "
            "Python",
        ),
    ],
)
def test_an_unknown_setting_of_an_algorithm(algorithm: str, key: str, message: str) -> None:
    assert message in unknown_setting(CONFIGS[algorithm], key, 3, Experiment)


def test_a_setting_of_the_experiment_in_the_config_of_a_trainer() -> None:
    with pytest.raises(ConfigError, match=r"PPO config: stop is a setting of .* write stop: \{training_iteration: 3\}"):
        PPO(env="CartPole-v1", config={"stop": {"training_iteration": 3}})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"lr": 0.001},
            "it: lr is a setting of the algorithm, not of the experiment: write lr: 0.001 under config in a file, or "
            "--config lr=0.001 on the command line",
        ),
        ({"run": "DQN", "n_step": 3}, "it: n_step is a setting of the algorithm"),
        ({"run": "PPO", "n_step": 3}, "it: unknown setting 'n_step'"),
        ({"run": "nobody", "gamma": 1}, "it: gamma is a setting of the algorithm"),
        ({"model": {"use_bias": False}}, "--config model.use_bias=false on the command line"),
        ({"env_task_fn": print}, "write env_task_fn: … under config"),
        ({"total_timesteps": 5}, "it: unknown setting 'total_timesteps'; in Outplay it is 'stop.timesteps_total'"),
        ({"timesteps_total": 5}, "in Outplay it is 'stop.timesteps_total'"),
        ({"tensorboard_log": "x"}, "in Outplay it is 'loggers' (for example [tensorboard])"),
        ({"learning_rate": 5}, "it is 'lr', a setting of the algorithm: under config in a file, or --config lr=…"),
        ({"stop": {"ep_rew_mean": 5}}, "there is no metric 'ep_rew_mean'. Did you mean 'episode_return_mean'?"),
        ({"stop": {"xyzzy": 5}}, "there is no metric 'xyzzy'; `outplay settings` lists all"),
    ],
)
def test_an_unknown_setting_of_an_experiment(data: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        experiment({"env": "CartPole-v1", **data}, "it")
    assert message in str(caught.value)
