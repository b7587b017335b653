"""TorchTrainer: reports, checkpoints, failures, data sets, and trials of tune."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

import outplay
from outplay import data, preprocessors, train, tune
from outplay.errors import ConfigError, DataError, OutplayError, ResourceError, RunError, TrainError
from outplay.train.group import places_of
from outplay.train.shards import DatasetShard
from tests.train.conftest import Fit, resuming, saved


def test_workers_know_each_other_and_share_a_data_set(fit: Fit) -> None:
    def loop(config: dict[str, Any]) -> None:
        context = train.get_context()
        rank = context.get_world_rank()
        total = torch.tensor([float(rank + 1)])
        distributed.all_reduce(total)
        shard = train.get_dataset_shard("train")
        rows = torch.cat([batch["x"] for batch in shard.iter_torch_batches(batch_size=2)])
        ends = [None, None]
        distributed.all_gather_object(ends, (int(rows[0]), int(rows[-1]), len(shard)))
        loader = train.torch.prepare_data_loader(DataLoader(TensorDataset(torch.arange(6)), batch_size=1))
        facts = {
            "sum": total.item(), "size": context.get_world_size(), "local": context.get_local_rank(), "ends": ends,
            "name": context.get_trial_name(), "device": str(train.torch.get_device()), "more": config["more"],
            "loader": [int(x) for (x,) in loader], "environment": [os.environ["RANK"], os.environ["WORLD_SIZE"]],
            "parallel": type(train.torch.prepare_model(nn.Linear(1, 1))).__name__,
        }  # fmt: skip
        train.report(facts, checkpoint=saved(**{f"rank{rank}": rank}))

    result = fit(
        loop, 2, {"name": "facts"}, train_loop_config={"more": "yes"}, datasets={"train": {"x": np.arange(11)}}
    )
    assert result.error is None
    facts = result.metrics
    assert (facts["sum"], facts["size"], facts["local"]) == (3.0, 2, 0)
    assert facts["ends"] == [[0, 4, 5], [5, 10, 6]]
    assert (facts["name"], facts["device"], facts["more"]) == ("facts_00000", "cpu", "yes")
    assert (facts["loader"], facts["environment"]) == ([0, 2, 4], ["0", "2"])
    assert facts["parallel"] == "DistributedDataParallel"
    assert result.checkpoint is not None
    assert sorted(os.listdir(result.checkpoint.path)) == ["rank0", "rank1"]  # the files of both workers
    assert result.config == {"more": "yes"}


def test_a_preprocessor_is_fitted_in_tasks_that_fit_the_trial(fit: Fit) -> None:
    """Each worker has half a CPU: a task that asked for a whole one would wait for ever. 20 chunks need tasks."""
    x = np.random.default_rng(0).normal(5.0, 2.0, 330_000).astype(np.float32)
    outplay.shutdown()
    outplay.init(
        "process", num_cpus=3
    )  # of which the trial and its workers take at most 2, and a second trial would take 1

    def loop() -> None:
        batch = next(train.get_dataset_shard("train").iter_batches(batch_size=100_000))
        train.report({"mean": float(batch["x"].mean()), "free": outplay.available_resources()["CPU"]})

    result = fit(
        loop,
        scaling_config=train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        datasets={"train": {"x": x}},
        preprocessor=preprocessors.StandardScaler(),
    )
    assert result.error is None
    assert abs(result.metrics["mean"]) < 0.02
    assert result.metrics["free"] >= 1, "nothing is reserved for a second trial"


@pytest.mark.slow
def test_an_error_has_the_traceback_of_the_loop(fit: Fit) -> None:
    def helper() -> None:
        raise LookupError("the data is gone")

    def loop() -> None:
        train.report({"i": 1})
        if train.get_context().get_world_rank() == 1:
            helper()
        distributed.barrier()  # rank 0 waits for rank 1

    result = fit(loop, 2)
    assert isinstance(result.error, TrainError)
    assert "rank 1 of 2 raised" in str(result.error)
    assert "in helper" in str(result.error)
    assert str(result.error).rstrip().endswith("LookupError: the data is gone")
    assert "/outplay/" not in str(result.error)  # the user's frames only
    assert result.metrics["i"] == 1


@pytest.mark.slow
def test_without_max_failures_an_error_ends_it_and_restore_continues(fit: Fit, tmp_path: Path) -> None:
    config = {"fails_at": 2, "folder": str(tmp_path)}
    result = fit(resuming, 1, {"name": "again"}, train_loop_config=config)
    assert "ValueError: once" in str(result.error)
    assert result.metrics["i"] == 1
    assert train.TorchTrainer.can_restore(tmp_path / "again")
    trainer = train.TorchTrainer.restore(tmp_path / "again", resuming, train_loop_config=config)
    result = trainer.fit()
    assert result.error is None
    assert (result.metrics["i"], result.metrics["first"]) == (4, 2)
    with pytest.raises(RunError, match="no training to continue"):
        train.TorchTrainer.restore(tmp_path / "nothing", resuming)


@pytest.mark.slow
def test_a_worker_that_always_dies_ends_the_run_with_a_sentence(fit: Fit) -> None:
    result = fit(resuming, 2, train_loop_config={"dies_at": 2})
    assert "died 4 times" in str(result.error)
    assert result.metrics["i"] == 1


@pytest.mark.slow
def test_workers_must_report_equally_often(fit: Fit) -> None:
    def loop() -> None:
        for i in range(1 + train.get_context().get_world_rank()):
            train.report({"i": i})

    assert "equally often" in str(fit(loop, 2).error)


@pytest.mark.slow
def test_stop_ends_all_workers_and_finally_runs(fit: Fit, tmp_path: Path) -> None:
    def loop(config: dict[str, Any]) -> None:
        try:
            for i in range(1000):
                train.report({"i": i})
        finally:
            Path(config["folder"], f"ended{train.get_context().get_world_rank()}").touch()

    result = fit(loop, 2, {"stop": {"i": 3}}, train_loop_config={"folder": str(tmp_path)})
    assert result.metrics["i"] == 3
    assert {"ended0", "ended1"} <= set(os.listdir(tmp_path))


@pytest.mark.slow
def test_resume_from_checkpoint(fit: Fit) -> None:
    result = fit(resuming, 1, train_loop_config={}, resume_from_checkpoint=saved(i=2))
    assert (result.metrics["first"], result.metrics["training_iteration"]) == (3, 2)


@pytest.mark.slow
def test_a_trainer_is_a_trainable(tmp_path: Path, process_engine: None) -> None:
    def loop(config: dict[str, Any]) -> None:
        total = torch.tensor([config["x"]])
        distributed.all_reduce(total)
        train.report({"value": total.item() + config["y"]})

    trainer = train.TorchTrainer(
        loop, train_loop_config={"x": 0.0, "y": 1.0}, scaling_config=train.ScalingConfig(num_workers=2)
    )
    tuner = tune.Tuner(
        trainer,
        param_space={"train_loop_config": {"x": tune.grid_search([1.0, 2.0])}},
        tune_config=tune.TuneConfig(metric="value", mode="max"),
        run_config=tune.RunConfig(storage_path=tmp_path, verbose=0),
    )
    grid = tuner.fit()
    assert [result.metrics["value"] for result in grid] == [3.0, 5.0]
    assert grid.get_best_result().config == {"train_loop_config": {"x": 2.0}}
    with pytest.raises(ConfigError, match="no 'loop_config'"):
        tune.Tuner(
            trainer,
            param_space={"loop_config": {"x": 1.0}},
            run_config=tune.RunConfig(storage_path=tmp_path, verbose=0),
        )


@pytest.mark.parametrize("rows", [7, 8, 9, 64, 65])
@pytest.mark.parametrize("drop_last", [False, True])
def test_all_shards_have_the_same_number_of_batches(rows: int, drop_last: bool) -> None:
    dataset = data.from_arrays({"x": np.arange(rows)})
    shards = [DatasetShard(dataset, i, 2) for i in range(2)]
    batches = [[b["x"] for b in s.iter_batches(batch_size=4, shuffle=True, drop_last=drop_last)] for s in shards]
    assert len(batches[0]) == len(batches[1])
    seen = sorted(int(x) for part in batches for batch in part for x in batch)
    if drop_last:
        assert len(seen) == len(set(seen))
    else:
        assert seen == list(range(rows))


def test_ranks_on_several_machines() -> None:
    places = places_of(["a", "b", "a", "b", "c"], use_gpu=True)
    assert [(p.world_rank, p.local_rank, p.local_world_size, p.node_rank) for p in places] == [
        (0, 0, 2, 0), (1, 0, 2, 1), (2, 1, 2, 0), (3, 1, 2, 1), (4, 0, 1, 2),
    ]  # fmt: skip


def test_resources() -> None:
    assert train.ScalingConfig(num_workers=2).bundles == [{"cpu": 1}] * 2
    gpus = train.ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"CPU": 3}).bundles
    assert gpus == [{"cpu": 1}, {"cpu": 3, "gpu": 1}, {"cpu": 3, "gpu": 1}]


def test_wrong_settings_are_named() -> None:
    for settings, message in (
        ({"num_workers": 0}, "num_workers must be at least 1, not 0"),
        ({"num_workers": float("nan")}, "num_workers must be an integer, not nan"),
        ({"resources_per_worker": {"CPU": float("nan")}}, "resources_per_worker: CPU must be a finite number"),
        ({"resources_per_worker": {"CPU": -1}}, "resources_per_worker: CPU must be at least 0, not -1"),
        ({"use_gpu": "yes"}, "use_gpu must be"),
        ({"resources_per_worker": {"CPUS": 1}}, "no resource 'CPUS'. Did you mean 'CPU'"),
        ({"resources_per_worker": {"GPU": 1}}, "set use_gpu=True"),
    ):
        with pytest.raises(ConfigError, match=message):
            train.ScalingConfig(**settings)
    with pytest.raises(ConfigError, match="writes its checkpoints itself"):
        train.CheckpointConfig(checkpoint_frequency=3)
    with pytest.raises(OutplayError, match="outside a training loop"):
        train.report({"x": 1})


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"train_loop_per_worker": 5}, "train_loop_per_worker must be a function, not 5"),
        ({"train_loop_config": 5}, "train_loop_config must be a dict, not 5"),
        ({"datasets": {"train": 5}}, "datasets: 'train' must be"),
        ({"scaling_config": 0}, "scaling_config must be a ScalingConfig, not 0"),
        ({"run_config": 0}, "run_config must be a RunConfig, not 0"),
        ({"torch_config": {}}, r"torch_config must be a TorchConfig, not \{\}"),
        ({"torch_config": train.TorchConfig("nccl")}, r"backend 'nccl' needs GPUs: ScalingConfig\(use_gpu=True\)"),
        ({"resume_from_checkpoint": 5}, r"must be train.Checkpoint.from_directory\(folder\), not 5"),
        ({"resume_from_checkpoint": "/none"}, r"must be train.Checkpoint.from_directory\(folder\), not '/none'"),
        ({"resume_from_checkpoint": train.Checkpoint("/none")}, "resume_from_checkpoint: the folder /none does not ex"),
    ],
)
def test_wrong_settings_of_a_trainer_are_named(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        train.TorchTrainer(**{"train_loop_per_worker": resuming, **settings})


def test_an_empty_folder_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is empty; give one that a training has written"):
        train.TorchTrainer(resuming, resume_from_checkpoint=train.Checkpoint.from_directory(tmp_path))


@pytest.mark.parametrize(
    ("kind", "settings", "problem"),
    [
        (train.TorchConfig, {"timeout_s": "a"}, "timeout_s must be a finite number, not 'a'"),
        (train.TorchConfig, {"timeout_s": 0}, "timeout_s must be more than 0 and at most 1,000,000,000 seconds, not 0"),
        (train.TorchConfig, {"timeout_s": float("inf")}, "timeout_s must be a finite number, not inf"),
        (train.TorchConfig, {"backend": 5}, "backend must be the name of a backend of torch.distributed, not 5"),
        (train.TorchConfig, {"backend": "glo"}, "backend: there is no backend 'glo'. Did you mean 'gloo'?"),
        (train.TorchConfig, {"backend": "cpu:gloo,cuda:x"}, "backend: there is no backend 'x'; valid: .*gloo, mpi, nc"),
        (train.RunConfig, {"name": 5}, "name must be a string, not 5"),
        (train.RunConfig, {"failure_config": 5}, "failure_config must be a FailureConfig, not 5"),
        (train.RunConfig, {"checkpoint_config": 5}, "checkpoint_config must be a CheckpointConfig, not 5"),
        (train.RunConfig, {"callbacks": 5}, "callbacks must be a list of objects of tune.Callback, not 5"),
        (train.RunConfig, {"verbose": "a"}, "verbose must be 0 or 1, not 'a'"),
    ],
)
def test_wrong_settings_of_a_config_are_named(kind: Any, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        kind(**settings)


@pytest.mark.parametrize("backend", [None, "gloo", "NCCL", "cpu:gloo,cuda:nccl", "ucc"])
def test_backends_that_torch_knows(backend: str | None) -> None:
    assert train.TorchConfig(backend, timeout_s=5).backend == backend


SHARD = DatasetShard(data.from_arrays({"x": np.arange(6.0), "s": np.array(list("abcdef"))}), 0, 2)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"batch_size": "a"}, "batch_size must be an integer, not 'a'"),
        ({"seed": "a"}, "seed must be an integer, not 'a'"),
        ({"dtypes": "float32"}, "dtypes must be a dtype as torch.float32, or a dict of them by column, not 'float32'"),
        ({"dtypes": {"x": np.float32}}, "dtypes must be a dtype as torch.float32, or a dict of them by column, not a"),
        ({"dtypes": {"y": torch.float32}}, "dtypes: there is no column 'y'; valid: s, x"),
        ({"device": []}, "device must be a device of torch, as 'cpu' or 'cuda:0', not a list"),
        ({"device": "foo"}, r"device: 'foo' cannot be used here \(.*\); use 'cpu', or leave it out"),
        ({"device": "cuda:99"}, r"device: 'cuda:99' cannot be used here \(.*\); use 'cpu', or leave it out"),
    ],
)
def test_wrong_arguments_of_iterators_are_named(settings: dict[str, Any], problem: str) -> None:
    """At the call: not when the first batch is asked for."""
    with pytest.raises((ConfigError, DataError), match=problem) as caught:
        SHARD.iter_torch_batches(**{"device": "cpu", **settings})
    assert "\n" not in str(caught.value)
    if not settings.keys() & {"dtypes", "device"}:
        with pytest.raises(DataError, match=problem):
            SHARD.iter_batches(**settings)


def test_batches_of_tensors() -> None:
    batches = list(SHARD.iter_torch_batches(batch_size=2, dtypes={"x": torch.float32}, device="cpu"))
    assert [batch["x"].tolist() for batch in batches] == [[0, 1], [2]]
    assert batches[0]["x"].dtype == torch.float32
    assert set(batches[0]) == {"x"}


@pytest.mark.parametrize("seed", ["a", None, -1, 1.5, 2**32, 2**70])
def test_seeds_of_reproducible_loops_are_checked(seed: Any) -> None:
    with pytest.raises(ConfigError, match="enable_reproducibility: seed must be"):
        train.torch.enable_reproducibility(seed)


def test_too_many_workers_are_refused(fit: Fit) -> None:
    with pytest.raises(ResourceError, match=r"9 workers .* do not fit: .*resources_per_worker"):
        fit(resuming, 9)


@pytest.mark.slow
def test_a_data_set_that_is_too_small_is_named(fit: Fit) -> None:
    result = fit(resuming, 2, datasets={"train": {"x": np.arange(1)}})
    assert "a data set of 1 rows is too small for 2 workers" in str(result.error)
    assert "Traceback" not in str(result.error)


@pytest.mark.slow
def test_a_preprocessor_is_fitted_in_parallel_before_training(fit: Fit) -> None:
    def loop() -> None:
        train.report({"rows": len(train.get_dataset_shard("train"))})

    rows = {"x": np.arange(400_000, dtype=np.float32)}
    result = fit(loop, 2, datasets={"train": rows}, preprocessor=train.preprocessors.StandardScaler())
    assert result.error is None, result.error
    assert result.metrics["rows"] == 200_000


def test_a_preprocessor_of_another_type_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"preprocessor must be an object of outplay.preprocessors.*not 'scaler'"):
        train.TorchTrainer(lambda: None, preprocessor="scaler")
