"""The names of settings and metrics in Stable-Baselines3, RLlib, CleanRL and Tianshou, and Outplay's names for them.

Messages about unknown names use this table. Its names are not accepted as settings: many of them differ in meaning.

>>> counterpart("learning_rate", lambda name: True)
Synonym(ours='lr', remark='')
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Synonym(NamedTuple):
    """Outplay's name of a setting, empty if there is none; and what differs."""

    ours: str
    remark: str = ""


def counterpart(name: str, exists: Callable[[str], bool]) -> Synonym | None:
    """Outplay's name for a setting of another library; None if the name is unknown.

    A name may have several counterparts (SB3's n_steps is one thing for PPO, another for DQN). The first one that
    `exists`, or else the first, is returned.
    """
    found = SETTINGS.get(name.lower().replace("-", "_"), ())
    return next((row for row in found if exists(row.ours)), found[0] if found else None)


def _row(*texts: str) -> tuple[Synonym, ...]:
    """Counterparts as "name" or "name: remark"; "–: remark" if there is none."""
    parts = (text.partition(": ") for text in texts)
    return tuple(Synonym("" if ours == "–" else ours, remark) for ours, _, remark in parts)


_STEPS_PER_ENV = "rollout_fragment_length: steps per environment; train_batch_size is the total per iteration"
_MINIBATCH = ("sgd_minibatch_size: the minibatch; train_batch_size is the steps per iteration", "train_batch_size")
_UPDATES = "training_intensity: updates per environment step"
_TEMPERATURE = "initial_alpha: the initial temperature; constant with learn_alpha: false"
_TARGET = "target_network_update_freq: counted in updates, not in steps"
_EPSILON_STEPS = "exploration_config.epsilon_timesteps: environment steps, not a fraction of the run"
_SDE = "–: state-dependent exploration is not implemented; SAC has exploration_config.noise_correlation"
_VALUE_CLIP = "vf_clip_param: the maximum squared value error, as in RLlib"
_STOP = "stop.timesteps_total"
_ITERATIONS = "stop.training_iteration: an iteration collects train_batch_size steps and learns from them"
_GPU = "num_gpus: 0 or 1"
_LOSS = "–: the value loss is the mean squared error, that of DQN the Huber loss"
_TRACKING = "loggers: for example [{wandb: {project: poles, entity: team}}]"
_RESTARTS = "max_worker_restarts: a worker that crashes is always replaced"
_REPLAY = _row("buffer_size: capacity; see also prioritized_replay, prioritized_replay_alpha, prioritized_replay_beta")

# Each row lists the libraries that have the name: S = Stable-Baselines3 and its zoo, R = RLlib (old and new),
# C = CleanRL, T = Tianshou.
SETTINGS: dict[str, tuple[Synonym, ...]] = {
    # learning
    "learning_rate": _row("lr"),  # S C
    "discount_factor": _row("gamma"),  # T
    "anneal_lr": _row("lr_schedule: for example [[0, 0.001], [100000, 0]]"),  # C
    "lr_scheduler": _row("lr_schedule: for example [[0, 0.001], [100000, 0]]"),  # T
    "actor_lr": _row("lr"),  # T
    "critic_lr": _row("critic_lr_scale: a multiple of lr"),  # T
    "max_grad_norm": _row("grad_clip"),  # S C T
    "grad_clip_by": _row("–: gradients are clipped by their global norm (grad_clip)"),  # R
    "n_epochs": _row("num_sgd_iter"),  # S
    "num_epochs": _row("num_sgd_iter"),  # R
    "update_epochs": _row("num_sgd_iter"),  # C
    "repeat_per_collect": _row("num_sgd_iter"),  # T
    "update_step_num_repetitions": _row("num_sgd_iter"),  # T
    "batch_size": _row(*_MINIBATCH),  # S C T
    "minibatch_size": _row(*_MINIBATCH),  # R C
    "num_minibatches": _row("sgd_minibatch_size: the size of a minibatch, not their number"),  # C
    "shuffle_batch_per_epoch": _row("shuffle_sequences"),  # R
    "optim": _row("optimizer.type: adam, rmsprop or sgd"),  # T
    "optimizer_class": _row("optimizer.type: adam, rmsprop or sgd"),  # S
    "optimizer_kwargs": _row("optimizer: type, betas, eps, decay, momentum"),  # S
    "adam_epsilon": _row("optimizer.eps"),  # R
    "rms_prop_eps": _row("optimizer.eps"),  # S
    "use_rms_prop": _row("optimizer.type: adam, rmsprop or sgd"),  # S
    # advantages, PPO, A2C
    "gae_lambda": _row("lambda"),  # S C T
    "q_lambda": _row("lambda"),  # C
    "normalize_advantage": _row("normalize_advantages"),  # S
    "norm_adv": _row("normalize_advantages"),  # C
    "advantage_normalization": _row("normalize_advantages"),  # T
    "return_standardization": _row("normalize_advantages"),  # T
    "reward_normalization": _row("normalize_values", "reward_scale: a constant factor"),  # T
    "return_scaling": _row("normalize_values", "reward_scale: a constant factor"),  # T
    "max_batchsize": _row("–: values are estimated for the whole batch"),  # T
    "recompute_advantage": _row("–: advantages are estimated once per batch"),  # T
    "clip_range": _row("clip_param"),  # S
    "clip_coef": _row("clip_param"),  # C
    "eps_clip": _row("clip_param"),  # T
    "dual_clip": _row("–: only clip_param is implemented"),  # T
    "clip_range_vf": _row(_VALUE_CLIP),  # S
    "clip_vloss": _row(_VALUE_CLIP),  # C
    "value_clip": _row(_VALUE_CLIP),  # T
    "ent_coef": _row("entropy_coeff", _TEMPERATURE),  # S C T
    "vf_coef": _row("vf_loss_coeff"),  # S C T
    "target_kl": _row("kl_target: with kl_coeff, an adaptive penalty instead of early stopping"),  # S C
    "use_kl_loss": _row("kl_coeff: 0 is no penalty"),  # R
    # exploration
    "use_sde": _row(_SDE),  # S
    "sde_sample_freq": _row(_SDE),  # S
    "log_std_init": _row("model.initial_log_std"),  # S
    "free_log_std": _row("–: the policy learns its standard deviation"),  # R
    "exploration_fraction": _row(_EPSILON_STEPS),  # S C
    "exploration_initial_eps": _row("exploration_config.initial_epsilon"),  # S
    "exploration_final_eps": _row("exploration_config.final_epsilon"),  # S
    "start_e": _row("exploration_config.initial_epsilon"),  # C
    "end_e": _row("exploration_config.final_epsilon"),  # C
    "epsilon": _row("exploration_config.epsilon_schedule: for example [[0, 1.0], [10000, 0.05]]"),  # R
    "warmup_timesteps": _row(
        "exploration_config.epsilon_schedule: for example [[0, 1.0], [1000, 1.0], [10000, 0.05]]"
    ),  # R
    "random_timesteps": _row(
        "exploration_config.random_timesteps",
        "exploration_config.epsilon_schedule: ε is 1 in steps with random actions",
    ),  # R
    "sub_exploration": _row("exploration_config.epsilon_schedule: ParameterNoise is combined with ε-greedy"),  # R
    "eps_train": _row("exploration_config.initial_epsilon"),  # T
    "eps_training": _row("exploration_config.initial_epsilon"),  # T
    "eps_train_final": _row("exploration_config.final_epsilon"),  # T
    "eps_test": _row("evaluation_explore: false evaluates the greedy policy"),  # T
    "eps_inference": _row("evaluation_explore: false evaluates the greedy policy"),  # T
    # DQN
    "train_freq": _row(_UPDATES),  # S
    "train_frequency": _row(_UPDATES),  # C
    "gradient_steps": _row(_UPDATES),  # S
    "update_per_step": _row(_UPDATES),  # T
    "update_step_num_gradient_steps_per_sample": _row(_UPDATES),  # T
    "target_update_interval": _row(_TARGET),  # S
    "target_network_frequency": _row(_TARGET),  # C
    "target_update_freq": _row(_TARGET),  # T
    "num_steps_sampled_before_learning_starts": _row("learning_starts"),  # R
    "start_timesteps": _row("learning_starts"),  # T
    "replay_buffer_config": _REPLAY,  # R
    "replay_buffer_class": _REPLAY,  # S
    "replay_buffer_kwargs": _REPLAY,  # S
    "replay_buffer_capacity": _row("buffer_size"),  # R
    "prioritized_replay_eps": _row("–: the constant that is added to priorities is fixed"),  # R
    "store_buffer_in_checkpoints": _row("–: the replay buffer is part of every checkpoint"),  # R
    "optimize_memory_usage": _row("–: frames are always stored once"),  # S
    "replay_buffer_save_only_last_obs": _row("–: frames are always stored once"),  # T
    "replay_buffer_ignore_obs_next": _row("–: frames are always stored once"),  # T
    "alpha": _row(_TEMPERATURE, "prioritized_replay_alpha"),  # C T
    "estimation_step": _row("n_step"),  # T
    "is_double": _row("double_q"),  # T
    "sigma0": _row("noisy_sigma"),  # R
    "num_quantiles": _row("num_atoms: with distributional: qr"),  # T
    "categorical_distribution_temperature": _row("–: DQN acts ε-greedily (exploration_config), or with noisy"),  # R
    "td_error_loss_fn": _row(_LOSS),  # R
    "clip_loss_grad": _row(_LOSS),  # T
    # SAC, TD3, DDPG
    "autotune": _row("learn_alpha"),  # C
    "auto_alpha": _row("learn_alpha"),  # T
    "policy_lr": _row("lr"),  # C
    "q_lr": _row("critic_lr_scale: a multiple of lr"),  # C
    "alpha_lr": _row("temperature_lr_scale: a multiple of lr"),  # R T
    "n_critics": _row("num_critics"),  # S
    "twin_q": _row("num_critics: 1 or 2"),  # R
    "policy_frequency": _row("policy_delay"),  # C
    "update_actor_freq": _row("policy_delay"),  # T
    "smooth_target_policy": _row("target_noise: 0 is no smoothing"),  # R
    "target_policy_noise": _row("target_noise"),  # S
    "policy_noise": _row("target_noise"),  # C T
    "noise_clip": _row("target_noise_clip"),  # C T
    "action_noise": _row("exploration_config.type: GaussianNoise or OrnsteinUhlenbeckNoise"),  # S
    "exploration_noise": _row("exploration_config.stddev: in units of half the range of an action"),  # C T
    # IMPALA, APPO
    "broadcast_interval": _row("weights_interval: updates between two versions of the Weights"),  # R
    "learner_queue_size": _row("most_updates_behind: batches that wait before workers pause"),  # R
    "num_aggregation_workers": _row("–: the main process joins Fragments"),  # R
    "vtrace": _row("–: V-trace is always on; its ratios are 1 for steps of the present policy"),  # R
    "vtrace_drop_last_ts": _row("–: the last step of a Fragment bootstraps from the observation after it"),  # R
    "replay_proportion": _row("–: each Fragment is learned from once"),  # R
    "opt_type": _row("optimizer.type: adam, rmsprop or sgd"),  # R
    # the network
    "policy": _row("–: the network follows from the spaces; model holds its settings"),  # S
    "policy_kwargs": _row("model: net_arch is model.fcnet_hiddens, activation_fn is model.fcnet_activation"),  # S
    "model_config": _row("model"),  # R
    "net_arch": _row("model.fcnet_hiddens"),  # S
    "hidden_sizes": _row("model.fcnet_hiddens"),  # T
    "hiddens": _row("model.fcnet_hiddens"),  # R
    "post_fcnet_hiddens": _row("model.fcnet_hiddens: the layers after convolutions, too"),  # R
    "head_fcnet_hiddens": _row("model.fcnet_hiddens"),  # R
    "activation_fn": _row("model.fcnet_activation"),  # S
    "conv_activation": _row("model.fcnet_activation"),  # R
    "ortho_init": _row("model.initializer: orthogonal or normal"),  # S
    "fcnet_kernel_initializer": _row("model.initializer: orthogonal or normal"),  # R
    "share_features_extractor": _row("model.vf_share_layers"),  # S
    "features_extractor_class": _row("model.custom_model: a torch.nn.Module"),  # S
    "features_extractor_kwargs": _row("model.custom_model_config"),  # S
    "rl_module_spec": _row("model.custom_model: a torch.nn.Module"),  # R
    "lstm_hidden_size": _row("model.lstm_cell_size: with model.use_lstm"),  # S
    "n_lstm_layers": _row("–: an LSTM has one layer; model.lstm_cell_size is its size"),  # S
    "shared_lstm": _row("–: policy and value share the LSTM"),  # S
    "enable_critic_lstm": _row("–: policy and value share the LSTM"),  # S
    "attention_memory_training": _row("model.attention_memory_inference: the same when acting and learning"),  # R
    "attention_init_gru_gate_bias": _row("–: the transformer has residual connections without gates"),  # R
    "attention_use_n_prev_actions": _row("model.lstm_use_prev_action: the last action"),  # R
    "attention_use_n_prev_rewards": _row("model.lstm_use_prev_reward: the last reward"),  # R
    "replay_burn_in": _row("burn_in_len"),  # R
    "replay_sequence_length": _row("model.max_seq_len: steps of a sequence without burn_in_len"),  # R
    # environments and collecting
    "env_id": _row("env"),  # C
    "task": _row("env"),  # T
    "env_kwargs": _row("env_config"),  # S
    "n_envs": _row("num_envs"),  # S
    "num_train_envs": _row("num_envs"),  # T
    "training_num": _row("num_envs"),  # T
    "num_envs_per_env_runner": _row("num_envs_per_worker"),  # R
    "num_rollout_workers": _row("num_workers"),  # R
    "num_env_runners": _row("num_workers"),  # R
    "vec_env_cls": _row("num_workers: 0 steps environments in the main process"),  # S
    "vec_env": _row("num_workers: 0 steps environments in the main process"),  # S
    "num_cpus_per_worker": _row("–: a worker uses one core"),  # R
    "num_cpus_per_env_runner": _row("–: a worker uses one core"),  # R
    "n_steps": _row("n_step", _STEPS_PER_ENV),  # S
    "num_steps": _row(_STEPS_PER_ENV),  # C
    "train_batch_size_per_learner": _row("train_batch_size"),  # R
    "timesteps_per_iteration": _row("train_batch_size"),  # R
    "min_sample_timesteps_per_iteration": _row("train_batch_size"),  # R
    "step_per_collect": _row("train_batch_size"),  # T
    "collection_step_num_env_steps": _row("train_batch_size"),  # T
    "episode_per_collect": _row("train_batch_episodes", "batch_mode: complete_episodes; train_batch_size is in steps"),
    "collection_step_num_episodes": _row(
        "train_batch_episodes", "batch_mode: complete_episodes; train_batch_size is in steps"
    ),  # T
    "horizon": _row("max_episode_steps"),  # R
    "stack_num": _row("frame_stack"),  # T
    "frames_stack": _row("frame_stack"),  # T
    "replay_buffer_stack_num": _row("frame_stack"),  # T
    "normalize": _row("normalize_observations: see also normalize_values"),  # S
    "norm_obs": _row("normalize_observations"),  # S
    "norm_reward": _row("normalize_values: the value network predicts standardized returns", "reward_scale"),  # S
    "observation_filter": _row("normalize_observations: true is MeanStdFilter"),  # R
    "clip_reward": _row("clip_rewards: the limit, for example 1"),  # S
    "action_scaling": _row("normalize_actions"),  # T
    "action_bound_method": _row("clip_actions"),  # T
    "preprocessor_pref": _row("atari_preprocessing"),  # R
    "rollout_buffer_class": _row("–: on-policy batches have one format"),  # S
    "rollout_buffer_kwargs": _row("–: on-policy batches have one format"),  # S
    "env_wrapper": _row("env: a function that returns the wrapped environment, or its import path"),  # S
    "wrapper_class": _row("env: a function that returns the wrapped environment, or its import path"),  # S
    "sample_timeout_s": _row("env_step_timeout_s: per step or reset"),  # R
    "max_num_env_runner_restarts": _row("max_worker_restarts"),  # R
    "ignore_worker_failures": _row(_RESTARTS),  # R
    "recreate_failed_workers": _row(_RESTARTS),  # R
    "restart_failed_env_runners": _row(_RESTARTS),  # R
    "multiagent": _row("–: environments with several agents are not supported"),  # R
    # evaluation
    "eval_freq": _row("evaluation_interval: in iterations"),  # S
    "n_eval_episodes": _row("evaluation_duration"),  # S
    "eval_episodes": _row("evaluation_duration"),  # S
    "evaluation_num_episodes": _row("evaluation_duration"),  # R
    "test_num": _row("evaluation_duration"),  # T
    "num_test_envs": _row("evaluation_num_workers: worker processes"),  # T
    "episode_per_test": _row("evaluation_duration"),  # T
    "test_step_num_episodes": _row("evaluation_duration"),  # T
    "evaluation_num_env_runners": _row("evaluation_num_workers"),  # R
    "eval_env": _row("evaluation_config.env"),  # S
    "deterministic": _row("evaluation_explore: false is deterministic"),  # S
    "deterministic_eval": _row("evaluation_explore: false is deterministic"),  # T
    # machine
    "device": _row(_GPU),  # S T
    "cuda": _row(_GPU),  # C
    "num_gpus_per_worker": _row("act_on_gpu: in the main process"),  # R
    "num_gpus_per_env_runner": _row("act_on_gpu: in the main process"),  # R
    "num_threads": _row("learner_threads"),  # S
    "torch_deterministic": _row("–: runs are always deterministic"),  # C
    "framework_str": _row("framework"),  # R
    "verbose": _row("log_level"),  # S
    "stats_window_size": _row("metrics_num_episodes"),  # S
    "metrics_num_episodes_for_smoothing": _row("metrics_num_episodes"),  # R
    "metrics_smoothing_episodes": _row("metrics_num_episodes"),  # R
    # the experiment
    "algo": _row("run"),  # S
    "algorithm": _row("run"),
    "exp_name": _row("name"),  # C
    "total_timesteps": _row(_STOP),  # S C
    "n_timesteps": _row(_STOP),  # S
    "timesteps": _row(_STOP),
    "timesteps_total": _row(_STOP),
    "training_iteration": _row("stop.training_iteration"),
    "episode_return_mean": _row("stop.episode_return_mean"),
    "episode_reward_mean": _row("stop.episode_return_mean"),  # R
    "num_iterations": _row(_ITERATIONS),  # C
    "max_epoch": _row(_ITERATIONS),  # T
    "max_epochs": _row(_ITERATIONS),  # T
    "epoch": _row(_ITERATIONS),  # T
    "step_per_epoch": _row("train_batch_size: environment steps per iteration"),  # T
    "epoch_num_steps": _row("train_batch_size: environment steps per iteration"),  # T
    "checkpoint_frequency": _row("checkpoint_freq"),  # R
    "save_freq": _row("checkpoint_freq: in iterations"),  # S
    "save_model": _row("checkpoint_at_end"),  # C
    "keep_checkpoints_num": _row("keep_checkpoints"),  # R
    "num_to_keep": _row("keep_checkpoints"),  # R
    "tensorboard_log": _row("loggers: for example [tensorboard]"),  # S
    "logdir": _row("loggers: for example [tensorboard]"),  # T
    "capture_video": _row("record_env: with evaluation_interval", "video_at_end"),  # C
    "render": _row("render_env: with evaluation_interval", "video_at_end"),  # T
    "callback": _row("callbacks"),  # S
    "callbacks_class": _row("callbacks"),  # R
    "log_interval": _row("–: metrics are written after every iteration"),  # S
    "progress_bar": _row("–: `outplay train` shows the progress"),  # S
    "reset_num_timesteps": _row("–: --resume continues the count, --init-from starts at 0"),  # S
    "tb_log_name": _row("name"),  # S
    "info_keywords": _row("info_metrics"),  # S
    "trained_agent": _row("–: --init-from RUN starts with the weights of a run"),  # S
    "resume_path": _row("–: --resume RUN resumes a run"),  # T
    "track": _row(_TRACKING),  # C
    "wandb_project_name": _row(_TRACKING),  # C
    "wandb_entity": _row(_TRACKING),  # C
}

# Names of metrics in stop conditions, without the part before the last slash.
METRIC_NAMES = {
    "ep_rew_mean": "episode_return_mean",  # S
    "mean_reward": "episode_return_mean",  # S
    "episodic_return": "episode_return_mean",  # C
    "episode_reward": "episode_return_mean",
    "episode_return": "episode_return_mean",
    "episode_return_mean": "episode_return_mean",  # R: env_runners/…
    "reward": "episode_return_mean",
    "ep_len_mean": "episode_len_mean",  # S
    "episodic_length": "episode_len_mean",  # C
    "total_timesteps": "timesteps_total",  # S
    "num_env_steps_sampled_lifetime": "timesteps_total",  # R
    "agent_timesteps_total": "timesteps_total",  # R
    "global_step": "timesteps_total",  # C
    "timesteps": "timesteps_total",
    "n_timesteps": "timesteps_total",  # S
    "env_step": "timesteps_total",  # T
    "iterations": "training_iteration",  # S
    "num_iterations": "training_iteration",  # C
    "max_epoch": "training_iteration",  # T
    "epoch": "training_iteration",  # T
    "time_elapsed": "time_total_s",  # S
    "episodes": "episodes_total",  # S
}
