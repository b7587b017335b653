"""Preprocessors: numbers by hand, scikit-learn's, inverses, files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outplay import data
from outplay.errors import CheckpointError, ConfigError, DataError, OutplayError, RunError
from outplay.preprocessors import (
    ByKey,
    Chain,
    Crop,
    Grayscale,
    LabelEncoder,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    Preprocessor,
    Rescale,
    Resize,
    SimpleImputer,
    StandardScaler,
    load,
)

X = np.random.default_rng(0).normal(3.0, 2.0, (50, 4))
X[:, 3] = 5.0  # a constant


def sklearn_preprocessing() -> Any:
    return pytest.importorskip("sklearn.preprocessing")


def test_numbers_by_hand() -> None:
    x = np.array([1.0, 3.0])
    np.testing.assert_array_equal(StandardScaler().fit_transform(x), [-1.0, 1.0])
    np.testing.assert_array_equal(MinMaxScaler().fit_transform(x), [0.0, 1.0])
    np.testing.assert_array_equal(MinMaxScaler(feature_range=(-2, 2)).fit(x).transform(np.array([2.0, 4.0])), [0, 4])
    clipping = MinMaxScaler(clip=True).fit(x)
    np.testing.assert_array_equal(clipping.transform(np.array([-9.0, 9.0])), [0.0, 1.0])
    np.testing.assert_array_equal(
        OneHotEncoder().fit(np.array([2, 7, 2])).transform(np.array([7, 5])), [[0, 1], [0, 0]]
    )
    np.testing.assert_array_equal(OrdinalEncoder().fit_transform(np.array(["b", "a", "b"])), [1, 0, 1])
    np.testing.assert_array_equal(LabelEncoder().fit_transform(np.array(["no", "yes", "no"])), [0, 1, 0])
    np.testing.assert_array_equal(SimpleImputer().fit_transform(np.array([1.0, np.nan, 3.0])), [1.0, 2.0, 3.0])
    frequent = SimpleImputer(strategy="most_frequent")
    np.testing.assert_array_equal(frequent.fit_transform(np.array(["a", "", "b", "b"])), ["a", "b", "b", "b"])
    constant = SimpleImputer(strategy="constant", fill_value=7, missing_values=-1)
    np.testing.assert_array_equal(constant.transform(np.array([-1.0, 2.0])), [7.0, 2.0])


@pytest.mark.parametrize("name", ["StandardScaler", "MinMaxScaler"])
def test_scalers_are_those_of_scikit_learn(name: str) -> None:
    x = X.copy()
    x[3, 1] = np.nan
    theirs = getattr(sklearn_preprocessing(), name)().fit(x)
    ours = {"StandardScaler": StandardScaler, "MinMaxScaler": MinMaxScaler}[name]().fit(x)
    np.testing.assert_allclose(ours.transform(x), theirs.transform(x), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(ours.inverse_transform(ours.transform(x)), x, rtol=1e-12)


def test_encoders_are_those_of_scikit_learn() -> None:
    kinds = np.array([["red"], ["blue"], ["red"], ["green"]])
    one_hot = sklearn_preprocessing().OneHotEncoder(sparse_output=False).fit_transform(kinds)
    np.testing.assert_array_equal(OneHotEncoder().fit_transform(kinds[:, 0]), one_hot)
    ordinal = sklearn_preprocessing().OrdinalEncoder().fit_transform(kinds)
    np.testing.assert_array_equal(OrdinalEncoder().fit_transform(kinds), ordinal)
    impute = pytest.importorskip("sklearn.impute").SimpleImputer()
    x = np.array([[1.0, np.nan], [np.nan, 4.0], [5.0, 6.0]])
    np.testing.assert_allclose(SimpleImputer().fit_transform(x), impute.fit_transform(x))


def test_inverses() -> None:
    for encoder in (OneHotEncoder(), OrdinalEncoder(), LabelEncoder()):
        kinds = np.array(["b", "a", "c", "a"])
        np.testing.assert_array_equal(encoder.inverse_transform(encoder.fit_transform(kinds)), kinds)
    np.testing.assert_allclose(Rescale().inverse_transform(Rescale().transform(np.array([0, 51]))), [0, 51])
    chain = Chain(MinMaxScaler(), StandardScaler()).fit(X)
    np.testing.assert_allclose(chain.inverse_transform(chain.transform(X)), X, rtol=1e-12)
    with pytest.raises(ConfigError, match="SimpleImputer has no inverse"):
        SimpleImputer().fit(X).inverse_transform(X)


def test_columns_of_a_data_set() -> None:
    dataset = data.from_arrays({"x": X, "kind": np.array(["a", "b"] * 25), "label": np.arange(50) % 3})
    chain = Chain(StandardScaler(["x"]), OneHotEncoder(["kind"]))
    found = chain.fit_transform(dataset)
    assert {name: (str(c.dtype), c.shape) for name, c in found.columns.items()} == {
        "x": ("float64", (4,)), "kind": ("float32", (2,)), "label": ("int64", ()),
    }  # fmt: skip
    np.testing.assert_allclose(found.to_arrays()["x"].mean(0), 0, atol=1e-12)
    rows = chain.transform({"x": X[:2], "kind": np.array(["b", "?"]), "label": np.zeros(2)})
    np.testing.assert_array_equal(rows["kind"], [[0, 1], [0, 0]])
    with pytest.raises(DataError, match=r"no column 'kinds'. Did you mean 'kind'"):
        OneHotEncoder(["kinds"]).fit(dataset)
    with pytest.raises(DataError, match="cannot convert column 'kind'"):
        StandardScaler(["kind"]).fit(dataset)


def test_the_most_frequent_categories() -> None:
    encoder = OneHotEncoder(max_categories=2).fit(np.array([5, 1, 1, 9, 9, 9, 5, 9]))
    np.testing.assert_array_equal(encoder.learned_of("")["categories"], [1, 9])


def test_by_key() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (6, 20, 30, 3), np.uint8)
    rows = {"camera": frames, "speed": np.arange(6.0), "other": np.arange(6)}
    preprocessor = ByKey({"camera": Chain(Grayscale(), Resize(10, 15)), "speed": StandardScaler()})
    for given in (rows, data.from_arrays(rows)):
        found = preprocessor.fit_transform(given)
        found = found if isinstance(found, dict) else found.to_arrays()
        assert found["camera"].shape == (6, 10, 15)
        assert found["speed"].mean() == pytest.approx(0)
        np.testing.assert_array_equal(found["other"], rows["other"])


def test_frames() -> None:
    image = np.zeros((1, 4, 6, 3), np.uint8)
    image[0, 1, 2] = (100, 200, 50)
    assert Grayscale().transform(image)[0, 1, 2] == round(0.299 * 100 + 0.587 * 200 + 0.114 * 50)
    assert Grayscale().transform(np.moveaxis(image, -1, 1)).shape == (1, 4, 6)
    np.testing.assert_array_equal(Crop(1, 2, 2, 3).transform(image), image[:, 1:3, 2:5])
    np.testing.assert_array_equal(Resize(2, 3).transform(np.full((1, 4, 6), 9, np.uint8)), np.full((1, 2, 3), 9))
    np.testing.assert_array_equal(Resize(4, 6).transform(image), image)
    np.testing.assert_allclose(Rescale().transform(image).max(), 200 / 255)
    stacked = np.zeros((2, 4, 84, 80), np.uint8)  # four frames
    assert Resize(42, 40).transform(stacked).shape == (2, 4, 42, 40)
    with pytest.raises(DataError, match="not all inside"):
        Crop(3, 0, 2, 2).transform(image)
    with pytest.raises(DataError, match="three channels"):
        Grayscale().transform(stacked)


@pytest.mark.parametrize("size", [(21, 40), (168, 100)])
def test_resize_is_that_of_torch(size: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    images = np.random.default_rng(0).integers(0, 256, (2, 84, 80), np.uint8)
    floats = torch.from_numpy(images).float()[:, None]
    theirs = torch.nn.functional.interpolate(floats, size, mode="bilinear", antialias=True)[:, 0].numpy()
    assert np.abs(Resize(*size).transform(images).astype(float) - theirs).max() <= 0.51


ALL: list[tuple[Preprocessor, Any]] = [
    (StandardScaler(), X),
    (MinMaxScaler(feature_range=(-1, 1), clip=True), X.astype(np.float32)),
    (OneHotEncoder(max_categories=3), np.array([3, 1, 4, 1, 5])),
    (OrdinalEncoder(unknown_value=-1), np.array(["é", "a", ""])),
    (LabelEncoder(), np.array(["x", "y"])),
    (SimpleImputer(strategy="most_frequent"), np.array([1.0, np.nan, 1.0])),
    (SimpleImputer(strategy="constant", fill_value=0.5), np.array([1.0, np.nan])),
    (Chain(Grayscale(), Crop(0, 0, 8, 8), Resize(4, 4), Rescale()), np.zeros((2, 9, 9, 3), np.uint8)),
    (ByKey({"a": StandardScaler(), "b": OneHotEncoder()}), {"a": X[:5], "b": np.array([1, 2, 1, 2, 3])}),
]


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
@pytest.mark.parametrize(("preprocessor", "given"), ALL, ids=lambda value: type(value).__name__)
def test_files(preprocessor: Preprocessor, given: Any, suffix: str, tmp_path: Path) -> None:
    expected = preprocessor.fit_transform(given)
    preprocessor.save(tmp_path / f"p.{suffix}")
    read = load(tmp_path / f"p.{suffix}")
    assert repr(read) == repr(preprocessor)
    found = read.transform(given)
    for name in expected if isinstance(expected, dict) else [...]:
        np.testing.assert_array_equal(found[name], expected[name])
        assert found[name].dtype == expected[name].dtype


def test_damaged_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(path)
    StandardScaler().fit(X).save(path)
    good = json.loads(path.read_text())
    for bad, message in (
        ({**good, "type": "StandardScalar"}, "Did you mean 'StandardScaler'"),
        ({**good, "arguments": {"colums": 1}}, "is damaged"),
        ({**good, "fitted": {"": {"shift": {"dtype": "O", "shape": [1], "values": [1]}}}}, "is damaged"),
        ([1], "p.json is no saved preprocessor: it has a list, not an object"),
        ({"a": 1}, "p.json is no saved preprocessor: it has no key 'type'"),
        ({"type": "StandardScaler", "arguments": {}}, "it has no key 'fitted'"),
        ({"type": "Chain", "arguments": {"preprocessors": [{}]}, "fitted": None}, "it has no key 'type'"),
        ({"type": "Chain", "arguments": {"preprocessors": []}, "fitted": None}, "needs at least one preprocessor"),
    ):
        path.write_text(json.dumps(bad))
        with pytest.raises(CheckpointError, match=message):
            load(path)
    (tmp_path / "p.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="no saved preprocessor"):
        load(tmp_path / "p.safetensors")


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: StandardScaler(5), "StandardScaler: columns must be a list of names, not 5"),
        (lambda: StandardScaler({"x": 1}), "StandardScaler: columns must be a list of names"),
        (lambda: MinMaxScaler(feature_range=5), r"feature_range must be \(low, high\), not 5"),
        (lambda: MinMaxScaler(feature_range=("a", "b")), "a bound of feature_range must be a finite number, not 'a'"),
        (lambda: MinMaxScaler(clip="yes"), "clip must be True or False, not 'yes'"),
        (lambda: OrdinalEncoder(unknown_value="x"), "unknown_value must be an integer, not 'x'"),
        (lambda: LabelEncoder(5), "label_column must be the name of a column, not 5"),
        (lambda: OneHotEncoder(max_categories=1.5), "max_categories must be an integer, not 1.5"),
        (lambda: OneHotEncoder(max_categories=0), "max_categories must be at least 1, not 0"),
        (lambda: SimpleImputer(strategy="constant", fill_value=[1]), "fill_value must be a finite number, not a list"),
        (lambda: SimpleImputer(missing_values="?"), r"missing_values must be a finite number, not '\?'"),
        (lambda: Resize("84", 84), "Resize: height must be an integer, not '84'"),
        (lambda: Crop(0, -1, 2, 2), "Crop: left must be at least 0, not -1"),
        (lambda: Rescale(float("nan")), "Rescale: scale must be a finite number, not nan"),
        (lambda: Chain(), "Chain needs at least one preprocessor"),
        (lambda: ByKey({}), "ByKey needs at least one preprocessor"),
    ],
)
def test_constructor_arguments_are_checked(make: Callable[[], Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make()


def test_nan_is_the_default_of_missing_values() -> None:
    assert SimpleImputer(missing_values=np.nan).fit_transform(np.array([1.0, np.nan, 3.0])).tolist() == [1, 2, 3]


def letters() -> LabelEncoder:
    return LabelEncoder().fit(np.array(["a", "b"]))


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: letters().inverse_transform(np.array(["a"])), "LabelEncoder: inverse_transform takes integer codes"),
        (lambda: letters().inverse_transform(np.array([0.5])), "LabelEncoder: inverse_transform takes integer codes"),
        (lambda: letters().inverse_transform(np.array([np.nan])), "inverse_transform takes integer codes, which the a"),
        (lambda: letters().inverse_transform(np.array([None])), "LabelEncoder: inverse_transform takes integer codes"),
        (lambda: letters().inverse_transform(np.array([2])), "LabelEncoder: the array has a code that is not 0 … 1"),
        (
            lambda: OneHotEncoder().fit(np.arange(3)).inverse_transform(np.eye(2)),
            "OneHotEncoder: inverse_transform takes rows of 3 numbers, which the array does not have",
        ),
        (lambda: StandardScaler().fit(X, num_tasks=0), "fit: num_tasks must be at least 1, not 0"),
        (lambda: StandardScaler().fit(X, num_tasks="a"), "fit: num_tasks must be an integer, not 'a'"),
        (lambda: StandardScaler().fit(X, task_cpus=-1), "fit: task_cpus must be at least 0, not -1"),
        (lambda: Chain(StandardScaler()).fit(X, num_tasks=0), "fit: num_tasks must be at least 1, not 0"),
        (lambda: ByKey({"x": StandardScaler()}).fit({"x": X}, num_tasks=0), "fit: num_tasks must be at least 1"),
        (lambda: StandardScaler().fit(5), "StandardScaler takes rows, not one value"),
        (lambda: StandardScaler().fit([[1], [2, 3]]), "the array has rows of different shapes"),
        (lambda: StandardScaler().fit({"x": [[1], [2, 3]]}), "column 'x' has rows of different shapes"),
        (lambda: StandardScaler().fit(np.array(["a"])), "cannot convert the array of type <U1; it takes arrays of num"),
        (lambda: StandardScaler().fit(X).transform(np.array(["a"])), "cannot convert the array of type <U1"),
        (lambda: StandardScaler(["x"]).fit({"x": np.array([None])}), "cannot convert column 'x' of type object"),
        (lambda: StandardScaler().fit(X).save(5), "path must be a path, not 5"),
        (
            lambda: StandardScaler().fit({"x": X, "y": X}).transform(X),
            "StandardScaler takes a dict of arrays with the columns x, y, not one array",
        ),
        (lambda: ByKey({"x": StandardScaler()}).fit(X), "ByKey takes a dict of arrays with the columns x, not one ar"),
        (lambda: ByKey({"x": StandardScaler()}).fit({"y": X}), "ByKey: there is no column 'x'; valid: y"),
        (
            lambda: ByKey({"x": StandardScaler()}).fit({"x": np.array(["a"])}),
            "column 'x': StandardScaler cannot convert the array of type <U1; it takes arrays of numbers",
        ),
        (
            lambda: ByKey({"x": LabelEncoder()}).fit({"x": np.array(["a"])}).transform({"x": np.array(["b"])}),
            "column 'x': LabelEncoder: 'b' in the array was not in the data it was fitted to",
        ),
        (lambda: load(None), "path must be a path, not None"),
    ],
)
def test_wrong_arguments_get_one_sentence(call: Callable[[], Any], problem: str) -> None:
    with pytest.raises(OutplayError, match=problem) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert "''" not in str(caught.value), "a plain array has no name"


@pytest.mark.parametrize("kind", [StandardScaler, MinMaxScaler, SimpleImputer])
@pytest.mark.parametrize("values", [[1.0, np.inf], [-np.inf, np.inf], [1e308, 1.7e308, -9e307]])
@pytest.mark.filterwarnings("error")
def test_infinite_values_are_refused_without_a_warning(kind: Callable[[], Preprocessor], values: list[float]) -> None:
    with pytest.raises(DataError, match="the array has infinite values, or too large ones; remove or repair"):
        kind().fit(np.array(values))
    halves = data.from_arrays({"x": np.repeat(values, 20_000)})  # several blocks, which are merged
    with pytest.raises(DataError, match="column 'x' has infinite values"):
        kind().fit(halves)


@pytest.mark.parametrize("name", ["no/p.json", "no/p.safetensors"])
def test_a_file_in_a_folder_that_does_not_exist_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=rf"{name} cannot be written: No such file or directory"):
        StandardScaler().fit(X).save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def changed(state: dict[str, Any], name: str, **values: Any) -> dict[str, Any]:
    learned = state["fitted"][""]
    return {**state, "fitted": {"": {**learned, name: {**learned[name], **values}}}}


@pytest.mark.parametrize(
    ("make", "change", "problem"),
    [
        (StandardScaler, lambda d: {**d, "fitted": {}}, "it was fitted to no column"),
        (StandardScaler, lambda d: {**d, "fitted": {"": {}}}, r"the array has \[\], not \['factor', 'shift'\]"),
        (StandardScaler, lambda d: changed(d, "shift", shape=[2], values=[1, 2]), "shift has the shape"),
        (StandardScaler, lambda d: changed(d, "shift", values=[float("nan")]), "shift has NaN or infinite values"),
        (MinMaxScaler, lambda d: changed(d, "factor", dtype="<U1", values=["a"]), "factor has the type <U1"),
        (LabelEncoder, lambda d: changed(d, "categories", shape=[2], values=[2, 1]), "must be a sorted list"),
        (OneHotEncoder, lambda d: changed(d, "categories", shape=[0], values=[]), "must be a sorted list"),
        (SimpleImputer, lambda d: changed(d, "fill", values=[float("inf")]), "fill has NaN or infinite values"),
    ],
)
def test_a_damaged_state_is_refused(
    make: Callable[[], Preprocessor], change: Callable[[dict[str, Any]], Any], problem: str, tmp_path: Path
) -> None:
    """When the file is read: not when data is transformed."""
    path = tmp_path / "p.json"
    path.write_text(json.dumps(change(make().fit(np.array([1.0, 2.0])).to_dict())))
    with pytest.raises(CheckpointError, match=f"p.json is damaged: .*{problem}"):
        load(path)


@pytest.mark.parametrize("missing", [None, np.nan, ""])
def test_an_imputer_takes_objects(missing: Any) -> None:
    words = np.array(["a", missing, "b", "b"], object)
    assert SimpleImputer(strategy="most_frequent").fit_transform(words).tolist() == ["a", "b", "b", "b"]
    constant = SimpleImputer(["c"], strategy="constant", fill_value="none")
    assert constant.transform({"c": words})["c"].tolist() == ["a", "none", "b", "b"]
    numbers = np.array([1, None, 2.5, 1], object)
    assert SimpleImputer(strategy="most_frequent").fit_transform(numbers).tolist() == [1, 1, 2.5, 1]
    assert SimpleImputer(strategy="constant", fill_value=7).transform(numbers).tolist() == [1, 7, 2.5, 1]


@pytest.mark.parametrize(
    ("settings", "values", "problem"),
    [
        ({"strategy": "most_frequent"}, ["a", 1.0], "must have strings only or numbers only, beside None"),
        ({"strategy": "most_frequent"}, [None, None], "all values of the array are missing"),
        ({"strategy": "constant", "fill_value": 1}, ["a", None], r"1.0 does not fit the array of type <U1; strings"),
        ({}, ["a", None], "cannot convert the array of type object; it takes arrays of numbers"),
    ],
)
def test_objects_that_an_imputer_does_not_take(settings: dict[str, Any], values: list[Any], problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        SimpleImputer(**settings).fit_transform(np.array(values, object))


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="not fitted"):
        StandardScaler().transform(X)
    with pytest.raises(ConfigError, match="columns must be a list"):
        StandardScaler("x")
    with pytest.raises(ConfigError, match="no strategy 'median'"):
        SimpleImputer(strategy="median")
    with pytest.raises(DataError, match="rows of shape"):
        StandardScaler().fit(X).transform(X[:, :2])
    with pytest.raises(DataError, match="'z' in column 'k' was not in the data"):
        OrdinalEncoder(["k"]).fit({"k": np.array(["a"])}).transform({"k": np.array(["z"])})
    with pytest.raises(DataError, match="SimpleImputer before it"):
        OneHotEncoder().fit(np.array([1.0, np.nan]))
    with pytest.raises(DataError, match="no rows"):
        StandardScaler().fit(np.zeros((0, 2)))
