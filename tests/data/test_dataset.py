"""Dataset: batches, shuffling, shards; Parquet and CSV files."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from outplay import data
from outplay.data import Column, Dataset
from outplay.data import parquet as parquet_files
from outplay.errors import DataError


def numbered(rows: int = 1000) -> Dataset:
    x = np.arange(rows)
    return data.from_arrays({"x": x, "grid": (x[:, None, None] + np.zeros((1, 2, 3))).astype(np.float32)})


def on_disk(folder: Path, rows: int = 1000, rows_per_file: int = 300, group_rows: int = 40) -> Dataset:
    """Files with small row groups."""
    numbered(rows).write_parquet(folder, rows_per_file)
    for path in folder.iterdir():
        table = parquet_files.pq.read_table(path)
        parquet_files.pq.write_table(table, path, row_group_size=group_rows)
    return data.read_parquet(folder)


def values(dataset: Dataset, **options: object) -> list[int]:
    return [x for batch in dataset.iter_batches(**options) for x in batch["x"].tolist()]  # type: ignore[arg-type]


def test_batches_are_the_rows_in_order_whatever_the_blocks(tmp_path: Path) -> None:
    dataset = on_disk(tmp_path)
    assert len(dataset) == 1000
    assert dataset.columns == {"x": Column(np.dtype(np.int64)), "grid": Column(np.dtype(np.float32), (2, 3))}
    sizes = [len(batch["x"]) for batch in dataset.iter_batches(64)]
    assert sizes == [64] * 15 + [40]
    assert values(dataset, batch_size=64) == list(range(1000))
    assert len(values(dataset, batch_size=64, drop_last=True)) == 960
    batch = next(dataset.iter_batches(64))
    assert batch["grid"].shape == (64, 2, 3)
    assert (batch["grid"] == batch["x"][:, None, None]).all()


def test_shuffled_rows_are_a_permutation_given_by_seed_and_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outplay.data.dataset._WINDOW_ROWS", 200)
    dataset = on_disk(tmp_path)
    first = values(dataset, batch_size=32, shuffle=True, seed=1)
    assert sorted(first) == list(range(1000))
    assert first == values(dataset, batch_size=32, shuffle=True, seed=1)
    assert first != values(dataset, batch_size=32, shuffle=True, seed=1, epoch=1)
    assert first != values(dataset, batch_size=32, shuffle=True, seed=2)
    assert first == values(dataset.in_memory(), batch_size=32, shuffle=True, seed=1)
    window = first[:200]
    assert max(window) - min(window) > 500, "blocks come in random order"
    assert sorted(window) != window


def test_skipped_batches_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outplay.data.dataset._WINDOW_ROWS", 200)
    dataset = on_disk(tmp_path)
    everything = values(dataset, batch_size=32, shuffle=True)
    for skip in (1, 7, 20, 31):
        assert values(dataset, batch_size=32, shuffle=True, skip=skip) == everything[32 * skip :]
    read = []
    original = parquet_files.ParquetBlock.read
    monkeypatch.setattr(parquet_files.ParquetBlock, "read", lambda self: read.append(self) or original(self))
    next(dataset.iter_batches(32, shuffle=True, skip=20))
    assert len(read) == 5, "one window of 5 row groups"


def test_large_row_groups_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs write row groups of a million rows. In order, they are never read at once."""
    monkeypatch.setattr(parquet_files, "_GROUP_ROWS", 30)
    dataset = on_disk(tmp_path, rows_per_file=1000, group_rows=700)
    dataset = dataset.with_columns({"z": np.arange(1000) * 2})
    monkeypatch.setattr(parquet_files.ParquetBlock, "read", None)
    assert [len(rows["x"]) for rows in dataset.blocks()] == [30] * 23 + [10] + [30] * 10
    part = dataset.rows(95, 755)
    for rows, skip in ((dataset, 0), (dataset, 3), (part, 0), (part, 2)):
        batches = list(rows.iter_batches(64, skip=skip))
        x = np.concatenate([batch["x"] for batch in batches])
        first = 64 * skip + (95 if rows is part else 0)
        assert x.tolist() == list(range(first, 755 if rows is part else 1000))
        assert (np.concatenate([batch["z"] for batch in batches]) == 2 * x).all()
        assert all(len(batch["x"]) == 64 for batch in batches[:-1])


def test_large_row_groups_are_shuffled_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("outplay.data.dataset._LARGE_BLOCK", 10_000)
    dataset = on_disk(tmp_path, rows_per_file=1000, group_rows=700)
    for epoch in range(2):
        assert sorted(values(dataset, batch_size=32, shuffle=True, epoch=epoch)) == list(range(1000))
    (record,) = caplog.records
    assert "data.read_parquet(folder).write_parquet(new_folder)" in record.message
    list(on_disk(tmp_path / "small").iter_batches(32, shuffle=True))
    list(dataset.in_memory().iter_batches(32, shuffle=True))
    assert len(caplog.records) == 1


@pytest.mark.parametrize("number", [1, 3, 7])
def test_shards_are_disjoint_and_together_the_whole(tmp_path: Path, number: int) -> None:
    dataset = on_disk(tmp_path)
    shards = [dataset.shard(i, number) for i in range(number)]
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    assert [x for shard in shards for x in values(shard)] == list(range(1000))
    with pytest.raises(DataError, match="shard 3 of 3 does not exist"):
        dataset.shard(3, 3)


def test_a_dataset_of_files_pickles_as_paths(tmp_path: Path) -> None:
    dataset = on_disk(tmp_path, rows=20_000, rows_per_file=20_000, group_rows=20_000)
    pickled = pickle.dumps(dataset)
    assert len(pickled) < 2000
    assert values(pickle.loads(pickled), batch_size=5000) == list(range(20_000))


def test_functions_are_applied_when_blocks_are_read(tmp_path: Path) -> None:
    dataset = on_disk(tmp_path).map_batches(lambda rows: {"twice": 2.0 * rows["x"]})
    assert dataset.columns == {"twice": Column(np.dtype(np.float64))}
    assert dataset.to_arrays()["twice"].tolist() == [2.0 * x for x in range(1000)]
    with pytest.raises(DataError, match="returned 1 rows for 40"):
        list(on_disk(tmp_path / "b").map_batches(lambda rows: {"x": rows["x"][:1]}).blocks())


def test_selected_columns_are_all_that_is_read(tmp_path: Path) -> None:
    assert set(next(on_disk(tmp_path).select(["x"]).blocks())) == {"x"}
    with pytest.raises(DataError, match=r"no column 'gird'\. Did you mean 'grid'"):
        numbered().select(["gird"])


def test_types_survive_a_file(tmp_path: Path) -> None:
    arrays = {
        "flag": np.array([True, False, True]),
        "byte": np.arange(12, dtype=np.uint8).reshape(3, 2, 2),
        "name": np.array(["a", "bb", ""]),
        "bits": np.array([[True, False], [False, True], [True, True]]),
        "number": np.array([1.5, np.nan, -2.0], np.float32),
    }
    data.from_arrays(arrays, {"kind": "test"}).write_parquet(tmp_path / "d")
    read = data.read_parquet(tmp_path / "d")
    assert read.metadata == {"kind": "test"}
    for name, array in read.to_arrays().items():
        np.testing.assert_array_equal(array, arrays[name])
        assert array.dtype.kind == arrays[name].dtype.kind


def test_files_of_other_programs(tmp_path: Path) -> None:
    """Missing values, dictionaries; lists of variable length are refused."""
    pa, pq = parquet_files.pa, parquet_files.pq
    table = {"n": [1, None, 3], "s": pa.array(["x", None, "x"]).dictionary_encode(), "b": [True, None, False]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    read = data.read_parquet(tmp_path / "a.parquet").to_arrays()
    np.testing.assert_array_equal(read["n"], [1, np.nan, 3])
    np.testing.assert_array_equal(read["b"], [1, np.nan, 0])
    assert read["s"].tolist() == ["x", "", "x"]
    pq.write_table(pa.table({"n": [[1], [1, 2]]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match="column 'n' has the type list"):
        data.read_parquet(tmp_path / "b.parquet")


def test_missing_and_damaged_files_get_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        data.read_parquet(tmp_path / "none")
    with pytest.raises(DataError, match="has no Parquet files"):
        data.read_parquet(tmp_path)
    (tmp_path / "bad.parquet").write_bytes(b"nothing")
    with pytest.raises(DataError, match="is no Parquet file, or it is damaged"):
        data.read_parquet(tmp_path)
    on_disk(tmp_path / "two")
    data.from_arrays({"y": np.zeros(3)}).write_parquet(tmp_path / "two" / "z")
    with pytest.raises(DataError, match="has the columns y; the files before have x, grid"):
        data.read_parquet(tmp_path / "two")
    with pytest.raises(DataError, match="already has data"):
        numbered().write_parquet(tmp_path / "two")


def test_csv_types_fit_all_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outplay.data.csvfiles._BLOCK_BYTES", 30)
    lines = ["id,size,name,maybe"] + [
        f"{i},{i if i < 9 else i + 0.5},n{i}," + ("" if i % 2 else "4") for i in range(20)
    ]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(lines))
    dataset = data.read_csv(path)
    assert len(dataset) == 20
    assert [str(column) for column in dataset.columns.values()] == ["int64", "float64", "str", "float64"]
    rows = pickle.loads(pickle.dumps(dataset)).to_arrays()
    assert rows["id"].tolist() == list(range(20))
    assert rows["size"][8:10].tolist() == [8, 9.5]
    assert rows["name"][3] == "n3"
    assert np.isnan(rows["maybe"][1])
    assert set(next(dataset.select(["name"]).blocks())) == {"name"}
    with pytest.raises(DataError, match="No such file"):
        data.read_csv(tmp_path / "none.csv")


def test_items_and_frames() -> None:
    import pandas

    items = [{"x": 1.0, "name": "a"}, {"x": 2.0, "name": "b"}]
    assert repr(data.from_items(items)) == "Dataset(2 rows; x: float64, name: str)"
    frame = pandas.DataFrame({"x": [1.0, 2.0], "name": ["a", None], "n": pandas.array([1, None], dtype="Int64")})
    rows = data.from_pandas(frame).to_arrays()
    assert rows["name"].tolist() == ["a", ""]
    np.testing.assert_array_equal(rows["n"], [1, np.nan])
    assert data.from_items(items).to_pandas().to_dict("list") == {"x": [1.0, 2.0], "name": ["a", "b"]}
    with pytest.raises(DataError, match="row 1 has the keys"):
        data.from_items([{"x": 1}, {"y": 1}])
    with pytest.raises(DataError, match="strings and other values"):
        data.from_items([{"x": 1}, {"x": "a"}])
    with pytest.raises(DataError, match="has the type object"):
        data.from_arrays({"x": np.array([object()])})
    with pytest.raises(DataError, match="different numbers of rows"):
        data.from_arrays({"x": np.zeros(2), "y": np.zeros(3)})


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda d: d.iter_batches(0), "batch_size must be at least 1, not 0"),
        (lambda d: d.iter_batches("a"), "batch_size must be an integer, not 'a'"),
        (lambda d: d.iter_batches(2.5), "batch_size must be an integer, not 2.5"),
        (lambda d: d.iter_batches(2, seed="a"), "seed must be an integer, not 'a'"),
        (lambda d: d.iter_batches(2, seed=-1), "seed must be at least 0, not -1"),
        (lambda d: d.iter_batches(2, epoch=None), "epoch must be an integer, not None"),
        (lambda d: d.iter_batches(2, skip=-1), "skip must be at least 0, not -1"),
        (lambda d: d.shard("a", 2), "shard: index must be an integer, not 'a'"),
        (lambda d: d.shard(0, 0), "shard: number must be at least 1, not 0"),
        (lambda d: d.shard(0, 2.5), "shard: number must be an integer, not 2.5"),
        (lambda d: d.rows(0, "a"), "rows: start and stop must be an integer, not 'a'"),
        (lambda d: d.map_batches(5), "map_batches takes a function of a dict of arrays, not 5"),
        (lambda d: d.map_batches(lambda rows: 5).columns, "map_batches: a dict of arrays by column is needed, not 5"),
        (lambda d: d.select(5), "select takes the name of a column or a list of names, not 5"),
        (lambda d: d.select([]), r"select takes the name of a column or a list of names, not \[\]"),
        (lambda d: d.select("grd"), "no column 'grd'. Did you mean 'grid'"),
        (lambda d: d.with_columns(5), "with_columns: a dict of arrays by column is needed, not 5"),
        (lambda d: d.write_parquet(5), "write_parquet: folder must be a path, not 5"),
        (lambda d: d.write_parquet("x", 0), "write_parquet: rows_per_file must be at least 1, not 0"),
        (lambda d: d.write_parquet(__file__), "test_dataset.py is a file; name a folder"),
        (lambda d: data.read_parquet(5), "read_parquet: each of paths must be a path, not 5"),
        (lambda d: data.read_parquet([None]), "read_parquet: each of paths must be a path, not None"),
        (lambda d: data.read_csv(5), "read_csv: path must be a path, not 5"),
        (lambda d: data.from_items(5), "from_items takes a list of dicts, one per row, not 5"),
        (lambda d: data.from_items("ab"), "from_items takes a list of dicts, one per row, not 'ab'"),
        (lambda d: data.from_items([{"x": 1}, 5]), "from_items: row 1 must be a dict of values by column, not 5"),
        (lambda d: data.from_pandas({"x": [1]}), "from_pandas takes a pandas DataFrame, not a dict"),
        (lambda d: data.from_arrays([1]), "from_arrays: a dict of arrays by column is needed, not a list"),
    ],
)
def test_wrong_arguments_get_one_sentence(call: Callable[[Dataset], object], problem: str) -> None:
    """At the call: not when the first batch is asked for."""
    with pytest.raises(DataError, match=problem) as caught:
        call(numbered(10))
    assert "\n" not in str(caught.value)


def test_one_name_selects_one_column() -> None:
    assert set(numbered(10).select("x").columns) == {"x"}
    assert set(numbered(10).map_batches(dict).select("grid").columns) == {"grid"}
    assert len(data.from_items(iter([{"x": 1}, {"x": 2}]))) == 2


_LARGER_THAN_MEMORY = """
import sys
from outplay import data

def peak():  # in kB; ru_maxrss begins with the peak of the process that started this one
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

dataset, shuffle = data.read_parquet(sys.argv[1]), sys.argv[2] == "shuffle"
next(dataset.iter_batches(256, shuffle, seed=9))
before = peak()
rows = sum(len(batch["x"]) for batch in dataset.iter_batches(256, shuffle))
print(rows, peak() - before)
"""


def streamed(folder: Path, order: str) -> tuple[int, int]:
    """(rows, kB by which the process has grown) of a pass in a process of its own."""
    command = [sys.executable, "-c", _LARGER_THAN_MEMORY, str(folder), order]
    rows, kilobytes = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return int(rows), int(kilobytes)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_a_large_data_set_streams_from_disk(tmp_path: Path) -> None:
    """1.2 GB pass through a process that grows by less than 400 MB."""
    x = np.random.default_rng(0).integers(0, 4, (20_000, 10_000), np.uint8)
    for number in range(6):
        data.from_arrays({"x": x}).write_parquet(tmp_path / str(number))
    rows, kilobytes = streamed(tmp_path, "shuffle")
    assert rows == 120_000
    assert kilobytes < 400_000


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_a_large_row_group_streams_from_disk(tmp_path: Path) -> None:
    """200 MB in one row group, read in order by a process that grows by less than 100 MB."""
    x = np.random.default_rng(0).integers(0, 4, (20_000, 10_000), np.uint8)
    data.from_arrays({"x": x}).write_parquet(tmp_path / "small")
    table = parquet_files.pq.read_table(tmp_path / "small")
    parquet_files.pq.write_table(table, tmp_path / "large.parquet", row_group_size=10**6)
    rows, kilobytes = streamed(tmp_path / "large.parquet", "in order")
    assert rows == 20_000
    assert kilobytes < 100_000
