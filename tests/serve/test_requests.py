"""Requests: bad ones get a 4xx with one sentence, limits hold, and who may ask at all."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from outplay.errors import ConfigError
from outplay.serve import ServeSettings
from outplay.testing.probes import Nested
from tests.cli.common import wait_for
from tests.serve.common import SMALL, saved_cartpole, serving

FINE = [0.1, 0.0, 0.02, 0.0]
BINARY = {"content-type": "application/octet-stream"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_cartpole(tmp_path_factory.mktemp("saved"))[1]


@pytest.fixture(scope="module")
def client(checkpoint: Path) -> Iterator[httpx.Client]:
    with serving(checkpoint, max_body_bytes=20_000, max_batch_size=8) as client:
        yield client


def sentence(response: httpx.Response) -> str:
    body = response.json()
    assert list(body) == ["error"]
    assert "\n" not in body["error"]
    assert "Traceback" not in body["error"]
    return str(body["error"])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"observation": [0.1, 0.0]}, "shape (2,)"),
        ({"observation": [[0.1], [0.0, 1]]}, "differ in length"),
        ({"observation": "pole"}, "is a str"),
        ({"observation": None}, "is a NoneType"),
        ({"observation": ["a", "b", "c", "d" * 672]}, "the observation has strings, but its space needs float32"),
        ({"observation": [True, False, True, True]}, "booleans"),
        ({"observation": [0, 0, 0, 10**400]}, "values of type object"),
        ({"observation": [0, 0, 0, 1e300]}, "observation[3] is inf"),
        ({"observation": [9.0, 0, 0, 0]}, "observation[0] is 9.0, outside of its space: from -4.8"),
        ({"observations": [FINE, [9.0, 0, 0, 0]]}, "observations[1]: observation[0] is 9.0"),
        ({"observations": [FINE, [1.0]]}, "observations[1]: the observation has shape (1,)"),
        ({"observations": {}}, "must be a list, not a dict"),
        ({"observations": [FINE], "masks": [[1, 1], [1, 1]]}, "1 observations need 1 masks, not 2"),
        ({"observations": [FINE], "session": "x"}, "one observation at a time"),
        ({"observation": FINE, "mask": [1, 1, 1]}, "the mask has shape (3,)"),
        ({"observation": FINE, "reset": 1}, "reset must be true or false"),
        ({"observation": FINE, "reward": "1"}, "reward must be a finite number"),
        ({"observation": FINE, "reward": 10**400}, "reward must be a finite number"),
        ({"observation": FINE, "reward": 1e39}, "reward must be a finite number"),
        ({"observation": FINE, "reward": 1.0}, "reset and reward are for sessions"),
        ({"observation": FINE, "reset": True}, "reset and reward are for sessions"),
        ({"observation": FINE, "sesion": "x"}, "Did you mean 'session'?"),
        ({"observation": FINE, "observations": [FINE]}, "has both observation and observations; send one of them"),
        ({}, "no observation"),
        ([1], "must be a JSON object, not a list"),
    ],
)
def test_a_wrong_request_is_one_sentence(client: httpx.Client, body: Any, words: str) -> None:
    response = client.post("/act", content=json.dumps(body))
    assert response.status_code == 400
    assert words in sentence(response)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"observation": [NaN, 0, 0, 0]}', "NaN is not a number"),
        (b'{"observation": [Infinity, 0, 0, 0]}', "Infinity is not a number"),
        (b'{"observation": ', "not valid JSON"),
        (b"\xff\xfe{", "not valid JSON"),
        (b"", "not valid JSON"),
        (b"[" * 15_000, "nested too deep"),
        (b'{"observation": ' + b"[" * 200 + b"]" * 200 + b"}", "the observation"),
        (b"9" * 5_000, "not valid JSON: an integer has more than 4,300 digits"),
    ],
)
def test_wrong_json_is_one_sentence(client: httpx.Client, content: bytes, words: str) -> None:
    response = client.post("/act", content=content)
    assert response.status_code == 400
    assert words in sentence(response)


def test_wrong_paths_methods_sessions_and_sizes(client: httpx.Client) -> None:
    unknown = client.get("/acts")
    assert unknown.status_code == 404
    assert "/act, /sessions" in sentence(unknown)
    method = client.get("/act")
    assert method.status_code == 405
    assert method.headers["allow"] == "POST"
    assert "it takes POST" in sentence(method)
    for session in ("gone", 5, ["x"], {}):
        response = client.post("/act", json={"observation": FINE, "session": session})
        assert response.status_code == 404
        assert "there is no session" in sentence(response)
    assert client.post("/sessions/gone/reset").status_code == 404
    assert client.delete("/sessions/gone").status_code == 404
    large = client.post("/act", json={"observation": [0.0] * 20_000})
    assert large.status_code == 413
    assert "20,000 bytes" in sentence(large)
    chunked = client.post("/act", content=iter([b"1" * 15_000, b"1" * 15_000]))
    assert chunked.status_code == 413
    many = client.post("/act", json={"observations": [FINE] * 9})
    assert many.status_code == 413
    assert "at most 8" in sentence(many)
    assert client.post("/act", json={"observations": []}).json()["actions"] == []
    assert client.post("/act", json={"observation": FINE}).status_code == 200  # it still serves


def test_bytes(client: httpx.Client) -> None:
    for content, words in ((b"", "0 bytes"), (b"1" * 15, "observations of 16 bytes"), (b"\xff" * 16, "is nan")):
        response = client.post("/act", content=content, headers=BINARY)
        assert response.status_code == 400
        assert words in sentence(response)
    session = client.post("/sessions").json()["session"]
    fine = client.post("/act", params={"session": session}, content=bytes(16), headers=BINARY)
    assert (fine.status_code, len(fine.content)) == (200, 8)
    for query in ({"session": session, "reset": "1"}, {"reward": "x"}, {"rewards": "1"}):
        assert client.post("/act", params=query, content=bytes(16), headers=BINARY).status_code == 400
    assert client.post("/act", params={"session": session}, content=bytes(32), headers=BINARY).status_code == 400


@pytest.mark.parametrize("query", [{"session": "x"}, {"reset": "true"}, {"reward": "1"}])
def test_a_query_beside_json_is_refused(client: httpx.Client, query: dict[str, str]) -> None:
    response = client.post("/act", params=query, json={"observation": FINE})
    assert response.status_code == 400
    assert f"the query has '{next(iter(query))}', which is for observations in bytes; in JSON" in sentence(response)


def test_a_malformed_request_line_gets_plain_text(client: httpx.Client) -> None:
    """By uvicorn, before the application sees it: as the document says."""
    with socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=10) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        answer = b""
        while part := connection.recv(4096):
            answer += part
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"text/plain" in answer
    assert answer.endswith(b"Invalid HTTP request received.")


def test_a_websocket_survives_bad_messages(client: httpx.Client) -> None:
    with connect(f"{client.base_url}/ws".replace("http", "ws", 1)) as socket:
        for message, words in (
            ("{", "not valid JSON"),
            ('{"observation": [1]}', "shape (1,)"),
            ('{"session": "x"}', "unknown key"),
            (b"123", "3 bytes"),
        ):
            socket.send(message)
            assert words in json.loads(socket.recv())["error"]
        socket.send(json.dumps({"observation": FINE}))
        assert json.loads(socket.recv())["action"] in (0, 1)
        socket.send(bytes(16))
        assert len(socket.recv()) == 8
        socket.send("x" * 30_000)
        with pytest.raises(ConnectionClosed):
            socket.recv()


@pytest.mark.parametrize(
    ("observation", "words"),
    [
        ({"switch": 1}, "without observation['pair']"),
        ({"switch": 2, "pair": [[0, 0], [0, 1]]}, "observation['switch'] is 2, which is not in its space"),
        ({"switch": 0.5, "pair": [[0, 0], [0, 1]]}, "observation['switch'] has numbers with a fraction"),
        ({"switch": 1, "pair": [[0, 0], [0, 3]]}, "values other than 0 and 1"),
        ({"switch": 1, "pair": [[0, 7], [0, 1]]}, "observation['pair'][0][1] is 7.0, outside"),
        ([1, 2], "without observation['pair']"),
    ],
)
def test_parts_of_an_observation_are_named(observation: Any, words: str, tmp_path: Path, nested: httpx.Client) -> None:
    response = nested.post("/act", json={"observation": observation})
    assert response.status_code == 400
    assert words.replace("without", "has no") in sentence(response)


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    from outplay import PPO

    saved = Path(PPO(env=Nested, config=SMALL).save(tmp_path_factory.mktemp("nested")))
    with serving(saved, Nested) as client:
        yield client


def test_without_a_token_other_hosts_and_pages_are_refused(client: httpx.Client) -> None:
    for headers in ({"host": "evil.example"}, {"host": ""}, {"host": "127.0.0.1.evil.example:80"}):
        response = client.get("/info", headers=headers)
        assert response.status_code == 403, headers
        assert "Host is not allowed" in sentence(response)
    page = client.post("/act", headers={"origin": "https://evil.example"}, json={"observation": FINE})
    assert page.status_code == 403
    assert client.get("/info", headers={"origin": "null"}).status_code == 403
    assert client.get("/info", headers={"origin": "http://localhost:3000"}).status_code == 200
    assert client.get("/info", headers={"host": "localhost:1"}).status_code == 200
    address = f"{client.base_url}/ws".replace("http", "ws", 1)
    with pytest.raises(InvalidStatus) as refused, connect(address, origin="https://evil.example"):  # type: ignore[arg-type]
        pass
    assert refused.value.response.status_code == 403


def test_with_a_token_everything_but_health_needs_it(checkpoint: Path) -> None:
    right = {"authorization": "Bearer s3cret-t0ken"}
    with serving(checkpoint, token="s3cret-t0ken") as client:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "s3cret-t0ken"}):
            for path in ("/info", "/metrics", "/nothing"):
                response = client.get(path, headers=headers)
                assert response.status_code == 401
                assert response.headers["www-authenticate"] == "Bearer"
                assert "s3cret" not in sentence(response)
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/info", headers={**right, "host": "policy.example"}).status_code == 200
        address = f"{client.base_url}/ws".replace("http", "ws", 1)
        with pytest.raises(InvalidStatus) as refused, connect(address):
            pass
        assert refused.value.response.status_code == 401
        with connect(address, additional_headers=right) as socket:
            socket.send(json.dumps({"observation": FINE}))
            assert "action" in json.loads(socket.recv())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"host": "0.0.0.0"}, "set a token with OUTPLAY_TOKEN or --token"),
        ({"host": "::"}, "can be reached from other machines"),
        ({"host": "policy.example"}, "can be reached from other machines"),
        ({"token": ""}, "the token must be"),
        ({"token": "two words"}, "the token must be"),
        ({"port": 70_000}, "port must be"),
        ({"max_batch_size": 0}, "max_batch_size must be at least 1"),
        ({"max_wait_ms": float("nan")}, "max_wait_ms must be a finite number"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words.split(" or ")[0]):
        ServeSettings(**settings)


def test_the_settings_do_not_print_the_token() -> None:
    assert "s3cret" not in repr(ServeSettings(host="0.0.0.0", token="s3cret"))


def test_sessions_are_bounded(checkpoint: Path) -> None:
    with serving(checkpoint, max_sessions=2) as client:
        sessions = [client.post("/sessions") for _ in range(2)]
        assert [session.status_code for session in sessions] == [201, 201]
        third = client.post("/sessions")
        assert third.status_code == 503
        assert third.headers["retry-after"] == "1"
        assert "too many sessions" in sentence(third)
        address = f"{client.base_url}/ws".replace("http", "ws", 1)
        with pytest.raises(InvalidStatus) as refused, connect(address):
            pass
        assert refused.value.response.status_code == 503
        assert client.delete(f"/sessions/{sessions[0].json()['session']}").status_code == 204
        with connect(address) as socket:
            socket.send(json.dumps({"observation": FINE}))
            assert "action" in json.loads(socket.recv())
            assert client.post("/sessions").status_code == 503  # a connection is a session
        wait_for(lambda: client.post("/sessions").status_code == 201)


def test_unused_sessions_expire(checkpoint: Path) -> None:
    with serving(checkpoint, session_timeout_s=0.1) as client:
        session = client.post("/sessions").json()["session"]
        wait_for(lambda: "outplay_sessions 0\n" in client.get("/metrics").text)
        gone = client.post("/act", json={"observation": FINE, "session": session})
        assert gone.status_code == 404
        assert "expired after 0.1 s" in sentence(gone)


LINE = re.compile(r'^[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? (\+Inf|[0-9.e+-]+)$')


def test_metrics_have_the_format_of_prometheus(client: httpx.Client) -> None:
    client.post("/act", json={"observations": [FINE] * 3})
    client.get('/a/path/with"quotes')
    response = client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert response.text.endswith("\n")
    types: dict[str, str] = {}
    values: dict[str, float] = {}
    for line in response.text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in types
            types[name] = kind
        elif not line.startswith("# HELP "):
            assert LINE.match(line), line
            name, value = line.rsplit(" ", 1)
            assert name not in values
            values[name] = float(value)
            family = re.sub(r"(_bucket|_sum|_count)?(\{.*)?$", "", name)
            assert family in types or name.split("{")[0] in types, line
    assert values['outplay_requests_total{path="/act",status="200"}'] >= 1
    assert values['outplay_requests_total{path="other",status="404"}'] >= 1
    buckets = [value for name, value in values.items() if name.startswith("outplay_batch_observations_bucket")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == values["outplay_batch_observations_count"]
    assert values["outplay_batch_observations_sum"] >= 3
    assert set(types.values()) == {"counter", "gauge", "histogram"}


def test_info(client: httpx.Client) -> None:
    info = client.get("/info").json()
    assert info["algorithm"] == "PPO"
    assert info["env"] == "CartPole-v1"
    assert info["iteration"] == 0
    assert info["observation"][0]["shape"] == [4]
    assert info["action_space"] == "Discrete(2)"
    assert info["recurrent"] is False
