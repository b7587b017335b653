"""Statistics of parts merge to those of the whole."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import outplay
from outplay import data, preprocessors
from outplay.errors import DataError
from outplay.preprocessors import parallel, statistics

VALUES = st.floats(-1e6, 1e6) | st.just(float("nan"))


@st.composite
def cut_columns(draw: Any, elements: Any = VALUES) -> tuple[np.ndarray, list[np.ndarray]]:
    """Rows, and the same rows in consecutive parts."""
    rows = draw(st.integers(1, 30))
    column = draw(arrays.arrays(np.float64, (rows, 2), elements=elements))
    cuts = sorted(draw(st.lists(st.integers(0, rows), max_size=5)))
    return column, [part for part in np.split(column, cuts) if len(part)]


def merged(of: Any, merge: Any, parts: list[np.ndarray]) -> dict[str, np.ndarray]:
    found = of(parts[0])
    for part in parts[1:]:
        found = merge(found, of(part))
    return found


@settings(max_examples=60, deadline=None)
@given(cut_columns())
def test_moments(cut: tuple[np.ndarray, list[np.ndarray]]) -> None:
    column, parts = cut
    found, whole = merged(statistics.moments, statistics.merged_moments, parts), statistics.moments(column)
    assert (found["count"] == (~np.isnan(column)).sum(0)).all()
    for name in ("mean", "squares"):
        np.testing.assert_allclose(found[name], whole[name], rtol=1e-9, atol=1e-3 if name == "squares" else 1e-7)


@settings(max_examples=60, deadline=None)
@given(cut_columns())
def test_extremes_and_counts_are_exact(cut: tuple[np.ndarray, list[np.ndarray]]) -> None:
    column, parts = cut
    for of, merge in (
        (statistics.extremes, statistics.merged_extremes),
        (statistics.counts, statistics.merged_counts),
    ):
        found, whole = merged(of, merge, parts), of(column)
        for name, array in whole.items():
            np.testing.assert_array_equal(found[name], array)


def test_moments_by_hand() -> None:
    found = statistics.merged_moments(
        statistics.moments(np.array([[1.0], [3.0]])), statistics.moments(np.array([[np.nan], [8.0]]))
    )
    assert (found["count"].item(), found["mean"].item()) == (3, 4.0)
    assert found["squares"].item() == pytest.approx(9 + 1 + 16)


def test_the_result_does_not_depend_on_the_number_of_tasks(
    process_engine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "_CHUNK_ROWS", 7)
    rng = np.random.default_rng(0)
    columns = {"x": rng.normal(1e3, 1.0, (100, 3)), "kind": rng.integers(0, 4, 100)}
    dataset = data.from_arrays(columns)
    chain = preprocessors.Chain
    fitted = [
        chain(preprocessors.StandardScaler(["x"]), preprocessors.OneHotEncoder(["kind"])).fit(dataset, num_tasks=n)
        for n in (1, 2, 5)
    ]
    assert fitted[0].to_dict() == fitted[1].to_dict() == fitted[2].to_dict()  # bit for bit
    scaler = fitted[0].preprocessors[0]
    np.testing.assert_allclose(scaler.learned_of("x")["shift"], columns["x"].mean(0), rtol=1e-12)
    np.testing.assert_allclose(1 / scaler.learned_of("x")["factor"], columns["x"].std(0), rtol=1e-9)
    assert outplay.is_initialized()


def test_what_tasks_return_does_not_grow_with_the_data(process_engine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 chunks are 8 groups of at most 13, whose statistics are merged in order."""
    monkeypatch.setattr(parallel, "_CHUNK_ROWS", 1)
    monkeypatch.setattr(parallel, "_MOST_GROUPS", 8)
    x = np.random.default_rng(0).normal(1e3, 1.0, 100)
    dataset = data.from_arrays({"x": x, "other": x})
    fitted = [preprocessors.StandardScaler(["x"]).fit(dataset, num_tasks=n, task_cpus=0.5) for n in (1, 2, 3, 8, 50)]
    assert all(each.to_dict() == fitted[0].to_dict() for each in fitted)
    scaler = preprocessors.StandardScaler(["x"])
    groups = list(parallel._by_group(scaler, dataset, ["x"], 1, 13))
    assert [each["x"]["count"].item() for each in groups] == [13] * 7 + [9]
    assert fitted[0].learned_of("x")["shift"] == pytest.approx(x.mean(), rel=1e-12)


def test_other_columns_are_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    pytest.importorskip("pyarrow")
    from outplay.data.parquet import ParquetBlock

    data.write_parquet(data.from_arrays({"x": np.arange(9.0), "y": np.arange(9.0)}), tmp_path / "rows")
    read: list[tuple[str, ...]] = []
    original = ParquetBlock.read
    monkeypatch.setattr(ParquetBlock, "read", lambda self: read.append(self.columns) or original(self))
    preprocessors.MinMaxScaler(["y"]).fit(data.read_parquet(tmp_path / "rows"), num_tasks=1)
    assert read == [("y",)]


@pytest.mark.parametrize(
    "preprocessor", [preprocessors.OneHotEncoder(["x"], 3), preprocessors.SimpleImputer(["x"], "most_frequent")]
)
def test_a_column_with_too_many_values_is_refused_early(preprocessor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their counts would be as large as the data."""
    monkeypatch.setattr(parallel, "_CHUNK_ROWS", 10)
    monkeypatch.setattr(parallel, "_MOST_VALUES", 25)
    seen = []

    def function(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        seen.append(len(rows["x"]))
        return rows

    monkeypatch.setattr("outplay.data.dataset._BLOCK_ROWS", 10)
    with pytest.raises(DataError, match=r"column 'x' has more than 25 different values"):
        preprocessor.fit(data.from_arrays({"x": np.arange(1000)}).map_batches(function), num_tasks=1)
    assert sum(seen) < 50
    assert preprocessor.fit(data.from_arrays({"x": np.arange(1000) % 25}), num_tasks=1).is_fitted


def test_files_are_read_in_parts(tmp_path: Any, process_engine: None) -> None:
    pytest.importorskip("pyarrow")
    columns = {"x": np.random.default_rng(1).normal(size=50_000).astype(np.float32)}
    data.write_parquet(data.from_arrays(columns), tmp_path / "rows", rows_per_file=9_000)
    dataset = data.read_parquet(tmp_path / "rows")
    one, two = (preprocessors.StandardScaler().fit(dataset, num_tasks=n) for n in (1, 2))
    assert one.to_dict() == two.to_dict()
    assert one.learned_of("x")["shift"] == pytest.approx(columns["x"].mean(dtype=np.float64), rel=1e-9)
    transformed = two.transform(dataset)
    assert transformed.columns["x"].dtype == np.float32
    assert abs(transformed.to_arrays()["x"].mean()) < 1e-5


LARGE = """
import shutil, sys
from pathlib import Path
import numpy as np
from outplay import data, preprocessors

def peak():  # in MB; ru_maxrss begins with the peak of the process that started this one
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) // 1024

folder = Path(sys.argv[1])
rows = np.random.default_rng(0).normal(size=(1000, 64, 64)).astype(np.float32)  # 16 MB
data.write_parquet(data.from_arrays({"x": rows}), folder)
(first,) = folder.glob("*.parquet")
for i in range(31):
    shutil.copy(first, folder / f"copy{i:02d}.parquet")
dataset = data.read_parquet(folder)
preprocessors.StandardScaler().fit(dataset.rows(0, 1000), num_tasks=1)
before = peak()
scaler = preprocessors.StandardScaler().fit(dataset, num_tasks=1)
print(peak() - before)
assert len(dataset) == 32000
np.testing.assert_allclose(scaler.learned_of("x")["shift"], rows.astype(np.float64).mean(0), atol=1e-9)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_data_larger_than_memory_is_never_all_in_memory(tmp_path: Any, run_script: Any) -> None:
    """512 MB are read. More memory than for the first 16 MB is hardly needed."""
    done = run_script(LARGE, str(tmp_path / "rows"))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 128


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_infinite_values_are_refused() -> None:
    with pytest.raises(outplay.DataError, match="StandardScaler: column 'x' has infinite values"):
        preprocessors.StandardScaler().fit({"x": np.array([1.0, np.inf])})
