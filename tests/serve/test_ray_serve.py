"""The deployment on Ray Serve of docs/serving.md. It runs where ray[serve] is installed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from outplay.serve import load_policy
from tests.serve.common import saved_cartpole
from tests.test_documents import blocks, file_of

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"

PROGRAM = """
import asyncio, json, os, sys

import httpx, ray
from ray import serve

url = f"http://127.0.0.1:{sys.argv[1]}/"
observations = json.loads(sys.argv[2])
while not ray.is_initialized():  # Ray gives up after 30 s, which a busy machine may need
    try:
        ray.init(address="local", num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1")
    except Exception as error:
        print(error, file=sys.stderr)
        ray.shutdown()
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})

from agent_app import app

serve.run(app)


async def all_answers():
    async with httpx.AsyncClient(timeout=None, trust_env=False) as client:
        each = await asyncio.gather(*(client.post(url, json={"observation": o}) for o in observations))
        bad = [await client.post(url, content=body) for body in ('{"observation": [1.0]}', "{}", "[]", "no JSON")]
    return {"actions": [answer.json()["action"] for answer in each], "bad": [(b.status_code, b.json()) for b in bad]}


found = asyncio.run(all_answers())
serve.shutdown()
ray.shutdown()
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_replicas_act_as_the_policy_itself(tmp_path: Path) -> None:
    pytest.importorskip("ray.serve", reason="it needs pip install 'ray[serve]'", exc_type=ImportError)
    for _, text in blocks(PAGE):
        if (name := file_of(text, r"\.py")) is not None:
            (tmp_path / name).write_text(text)
    trainer, path = saved_cartpole(tmp_path / "saved")
    trainer.stop()
    observations = np.random.default_rng(0).uniform(-0.3, 0.3, (100, 4)).astype(np.float32).tolist()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {
        "AGENT": str(path),
        "PYTHONPATH": f"{PAGE.parents[1]}{os.pathsep}{tmp_path}",
        "RAY_USAGE_STATS_ENABLED": "0",
        # On a busy machine, Ray Serve would take its HTTP proxy for dead.
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "300",
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "300",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(port), json.dumps(observations)],
        cwd=tmp_path,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    expected = load_policy(path).act(observations)
    assert found["actions"] == expected
    assert set(expected) == {0, 1}
    assert [status for status, _ in found["bad"]] == [400] * 4
    assert "shape (1,)" in found["bad"][0][1]["error"]
    assert all("the body must be" in answer["error"] for _, answer in found["bad"][1:])
