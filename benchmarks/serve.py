"""Serving: requests per second and latency of `outplay serve`, beside a server of FastAPI and torch without batching.

    python benchmarks/serve.py [--seconds 4] [--clients 1 8 32]

Closed-loop clients on loopback: each sends its next request when it has the answer to the last one. Two policies: an
MLP of 64 and 64 (CartPole-v1, observations as JSON lists) and the convolutions of the Nature paper (84 × 84 × 4 bytes,
base64 in JSON). The other server has networks of the same shapes, and answers in the event loop, one request at a time,
which is its fastest form for small networks. Each server is a process of its own; the clients share one process.
Without batching, more clients do not help. All sides run in turn; the ratio is that of requests per second.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from websockets.asyncio.client import connect

from outplay.testing.probes import Walk

SHAPE = (84, 84, 4)


class Images(Walk):
    """Random images of the size of preprocessed Atari frames."""

    observation_space = gymnasium.spaces.Box(0, 255, SHAPE, np.uint8)
    action_space = gymnasium.spaces.Discrete(6)

    def _observe(self) -> np.ndarray:
        return np.random.default_rng(self.steps).integers(0, 256, SHAPE, np.uint8)


ENVS: dict[str, Any] = {"mlp": "CartPole-v1", "images": Images}


def serve_outplay(model: str) -> None:
    from outplay import PPO
    from outplay.serve import PolicyServer, PolicySource, ServeSettings

    with tempfile.TemporaryDirectory() as folder:
        hiddens = {"model": {"fcnet_hiddens": [64, 64]}} if model == "mlp" else {}
        saved = PPO(ENVS[model], {"num_workers": 0, "num_envs": 1, **hiddens}).save(folder)
        server = PolicyServer(PolicySource.find(saved, env=ENVS[model]), ServeSettings(port=0))
        server.run(lambda: print(f"at {server.url}", flush=True))


def serve_naive(model: str) -> None:
    import torch
    import uvicorn
    from fastapi import FastAPI, Request
    from torch import nn

    if model == "mlp":
        network = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    else:
        convolutions = (nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3))
        network = nn.Sequential(
            *convolutions, nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 6)
        )
    torch.set_num_threads(1)  # its fastest form: on busy cores, threads of one small network wait for each other
    app = FastAPI()

    async def act(request: Any) -> dict[str, int]:
        given = (await request.json())["observation"]
        if model == "mlp":
            x = torch.tensor([given], dtype=torch.float32)
        else:
            array = np.frombuffer(base64.b64decode(given["data"]), np.uint8).reshape(1, *given["shape"])
            x = torch.from_numpy(array.transpose(0, 3, 1, 2) / np.float32(255))
        with torch.inference_mode():
            return {"action": int(network(x).argmax())}

    act.__annotations__["request"] = Request  # FastAPI reads it; this module's annotations are strings
    app.post("/act")(act)
    config = uvicorn.Config(app, log_level="warning", http="h11")
    # With the protocol given, asyncio sets TCP_NODELAY. Otherwise each response would wait 40 ms for Nagle's algorithm.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.bind(("127.0.0.1", 0))
    print(f"at http://127.0.0.1:{bound.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run(sockets=[bound])


def body(model: str) -> bytes:
    if model == "mlp":
        return json.dumps({"observation": [0.1, 0.0, 0.02, 0.0]}).encode()
    image = np.random.default_rng(0).integers(0, 256, SHAPE, np.uint8)
    data = base64.b64encode(image.tobytes()).decode()
    return json.dumps({"observation": {"data": data, "dtype": "uint8", "shape": SHAPE}}).encode()


async def http_client(port: int, data: bytes, end: float, taken: list[float]) -> None:
    """A client without a library, whose own time would be measured."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /act HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    while (started := time.perf_counter()) < end:
        writer.write(head + data)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", answer, re.IGNORECASE)
        assert length is not None
        content = await reader.readexactly(int(length[1]))
        assert b"action" in content, content
        taken.append(time.perf_counter() - started)
    writer.close()


async def websocket_client(port: int, data: bytes, end: float, taken: list[float]) -> None:
    async with connect(f"ws://127.0.0.1:{port}/ws", compression=None) as connection:
        text = data.decode()
        while (started := time.perf_counter()) < end:
            await connection.send(text)
            assert "action" in await connection.recv()
            taken.append(time.perf_counter() - started)


async def load(client: Any, port: int, data: bytes, clients: int, seconds: float) -> list[float]:
    warm: list[float] = []
    await asyncio.gather(*(client(port, data, time.perf_counter() + 0.3, warm) for _ in range(clients)))
    taken: list[float] = []
    end = time.perf_counter() + seconds
    await asyncio.gather(*(client(port, data, end, taken) for _ in range(clients)))
    return taken


def measured(side: str, model: str, client: Any, clients: int, seconds: float) -> tuple[float, float, float]:
    """(requests per second, median and 99th percentile of the latency in ms)."""
    command = [sys.executable, __file__, "--serve", side, model]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stdout is not None
        found = re.search(r":(\d+)$", server.stdout.readline())
        assert found is not None
        deadline = time.monotonic() + 30
        while True:
            try:
                taken = asyncio.run(load(client, int(found[1]), body(model), clients, seconds))
                break
            except ConnectionRefusedError:  # the naive server prints its port before it listens
                assert time.monotonic() < deadline
                time.sleep(0.05)
    finally:
        server.terminate()
        server.wait()
    p50, p99 = np.percentile(taken, (50, 99)) * 1000
    return len(taken) / seconds, float(p50), float(p99)


SIDES = {
    "FastAPI and torch, HTTP": ("naive", http_client),
    "outplay serve, HTTP": ("outplay", http_client),
    "outplay serve, WebSocket": ("outplay", websocket_client),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--serve", nargs=2, metavar=("SIDE", "MODEL"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        {"outplay": serve_outplay, "naive": serve_naive}[chosen.serve[0]](chosen.serve[1])
        return
    start = os.getloadavg()[0]
    print(f"{'':>34}{'clients':>9}{'requests/s':>12}{'p50 ms':>9}{'p99 ms':>9}{'ratio':>8}")
    for model in ENVS:
        for clients in chosen.clients:
            base = None
            for name, (side, client) in SIDES.items():
                rate, p50, p99 = measured(side, model, client, clients, chosen.seconds)
                base = base or rate
                print(
                    f"{model + ', ' + name:>34}{clients:>9}{rate:>12.0f}{p50:>9.2f}{p99:>9.2f}{rate / base:>8.2f}",
                    flush=True,
                )
    print(f"{os.cpu_count()} cores, load {start:.2f} at the start")


if __name__ == "__main__":
    main()
