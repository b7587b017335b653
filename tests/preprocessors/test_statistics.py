"""Statistics of parts merge to those of the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import outplay
from outplay import data, preprocessors
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
import resource, shutil, sys
from pathlib import Path
import numpy as np
from outplay import data, preprocessors

folder = Path(sys.argv[1])
rows = np.random.default_rng(0).normal(size=(1000, 64, 64)).astype(np.float32)  # 16 MB
data.write_parquet(data.from_arrays({"x": rows}), folder)
(first,) = folder.glob("*.parquet")
for i in range(31):
    shutil.copy(first, folder / f"copy{i:02d}.parquet")
dataset = data.read_parquet(folder)
preprocessors.StandardScaler().fit(dataset.rows(0, 1000), num_tasks=1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
scaler = preprocessors.StandardScaler().fit(dataset, num_tasks=1)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
assert len(dataset) == 32000
np.testing.assert_allclose(scaler.learned_of("x")["shift"], rows.astype(np.float64).mean(0), atol=1e-9)
"""


@pytest.mark.slow
def test_data_larger_than_memory_is_never_all_in_memory(tmp_path: Any, run_script: Any) -> None:
    """512 MB are read. More memory than for the first 16 MB is hardly needed."""
    done = run_script(LARGE, str(tmp_path / "rows"))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 128


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_infinite_values_are_refused() -> None:
    with pytest.raises(outplay.DataError, match="StandardScaler: column 'x' has infinite values"):
        preprocessors.StandardScaler().fit({"x": np.array([1.0, np.inf])})
