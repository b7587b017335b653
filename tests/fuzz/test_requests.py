"""Requests to a server, and bundles, that somebody made up: an error of the client's, or success; never a crash."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from outplay import PPO
from outplay.errors import CheckpointError, OutplayError
from outplay.runs.bundles import unpack, write_bundle
from outplay.serve import ServeSettings, load_policy
from outplay.serve.answering import Acting
from outplay.serve.metrics import ServerMetrics
from outplay.testing.probes import Forbidding, Nested
from tests.fuzz.mutations import FUZZ
from tests.runs.common import make

numbers = st.integers() | st.floats() | st.booleans() | st.sampled_from([0, 1, 2, -1, 2**63, 2**64, 10**400])
encoded = st.fixed_dictionaries(
    {
        "data": st.binary(max_size=20).map(lambda data: base64.b64encode(data).decode()) | st.text(max_size=5),
        "dtype": st.sampled_from(["uint8", "float32", "int64", "bool", "object", "O", "V8", "float16"]) | numbers,
        "shape": st.lists(numbers | st.integers(0, 4), max_size=3) | st.none(),
    }
)
leaves = st.none() | numbers | st.text(max_size=4) | encoded
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["switch", "pair", "observation", "action_mask"]) | st.text(max_size=3), inner
        )
    ),
    max_leaves=8,
)
almost = st.fixed_dictionaries({"switch": trees, "pair": st.tuples(trees, trees).map(list)})
masked = st.fixed_dictionaries({"observation": trees, "action_mask": trees})
requests = st.dictionaries(
    st.sampled_from(["observation", "observations", "mask", "masks", "session", "reset", "reward"]),
    trees | almost | masked | st.lists(almost, max_size=3),
    max_size=4,
)

Ask = Callable[[bytes], Any]


@pytest.fixture(scope="module", params=[Nested, Forbidding])
def ask(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """A function that answers a request as a server does."""
    saved = PPO(env=request.param, config={"num_workers": 0, "num_envs": 1}).save(tmp_path_factory.mktemp("saved"))
    served = load_policy(saved, env=request.param)
    with asyncio.Runner() as runner:

        async def started() -> Acting:
            acting = Acting(served, ServeSettings(max_batch_size=4), ServerMetrics())
            acting.batcher.start()
            return acting

        acting = runner.run(started())
        yield lambda data: runner.run(acting.act_on_json(data))
        runner.run(acting.batcher.stop())


@pytest.mark.slow
@settings(FUZZ, max_examples=300)
@given(request=requests)
def test_a_request_is_refused_or_answered(ask: Ask, request: dict[str, Any]) -> None:
    data = json.dumps(request).encode()
    try:
        answer = ask(data)
    except (OutplayError, HTTPException):
        return
    assert json.dumps(answer, allow_nan=False)


def test_a_right_request_is_answered(ask: Ask) -> None:
    """Otherwise the test above could not fail."""
    for body in (
        {"observation": {"switch": 1, "pair": [[0.5, 0.5], [0, 1]]}},
        {"observation": {"observation": [0.5], "action_mask": [0, 1, 0, 0]}},
    ):
        try:
            assert ask(json.dumps(body).encode())["action"] in ([0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], 1)
            return
        except OutplayError:
            continue
    pytest.fail("neither was answered")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("run")
    run = make(folder, stop={"training_iteration": 1}, config={"model": {"fcnet_hiddens": [2]}})
    run.train()
    return write_bundle(run.folder, folder / "run.zip").path.read_bytes()


@pytest.mark.slow
@settings(FUZZ, max_examples=150)
@given(data=st.data())
def test_a_changed_bundle_is_refused_or_the_same(data: st.DataObject, bundle: bytes, tmp_path_factory: Any) -> None:
    folder: Path = tmp_path_factory.mktemp("changed")
    changed = np.frombuffer(bundle, np.uint8).copy()
    near_end = st.integers(max(0, len(changed) - 2500), len(changed) - 1)  # the directory and the manifest are there
    for index in data.draw(st.lists(st.integers(0, len(changed) - 1) | near_end, min_size=1, max_size=3)):
        changed[index] ^= data.draw(st.integers(1, 255))
    (folder / "run.zip").write_bytes(changed.tobytes()[: data.draw(st.none() | st.integers(0, len(changed)))])
    try:
        unpacked = unpack(folder / "run.zip", folder / "results")
    except CheckpointError:
        assert not [path for path in folder.rglob("*") if path.is_file() and path.name != "run.zip"]
        return
    assert unpacked.path.parent.parent == folder / "results"
