"""Who may use the dashboard, and what paths from the network can reach: nothing but listed runs and files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from outplay.dashboard import DashboardServer, DashboardSettings
from outplay.errors import ConfigError
from tests.dashboard.common import get, post, refusal, run_id, serving, trained

TOKEN = "a;b,c=\"d'é".replace("é", "%")  # characters that cookies and addresses must not have
PATHS = ("/api/overview", "/api/events", "/api/run", "/api/series", "/api/groups", "/api/metrics", "/api/diff",
         "/api/study", "/api/recipes", "/api/starts", "/api/video")  # fmt: skip
STOP = {"run": "it/x", "action": "stop"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("results")
    trained(results, iterations=1)
    return results


@pytest.fixture(scope="module")
def client(results: Path) -> Iterator[httpx.Client]:
    with serving(results) as found:
        yield found


@pytest.fixture(scope="module")
def with_token(results: Path) -> Iterator[httpx.Client]:
    with serving(results, token=TOKEN) as found:
        yield found


def play_url(client: httpx.Client) -> str:
    return str(client.base_url.join("/api/play?run=x")).replace("http", "ws", 1)


def only_run(client: httpx.Client, **headers: str) -> str:
    answer = client.get("/api/overview", headers=headers)
    (run,) = answer.json()["runs"]
    return str(run["id"])


# Without a token: loopback only.


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost@evil.example"]
)
def test_another_host_is_refused(client: httpx.Client, host: str) -> None:
    """DNS rebinding: the page of another host reaches loopback under its own name."""
    for path in ("/", *PATHS):
        assert "Host" in refusal(client.get(path, headers={"host": host}), 403)
    assert "Host" in refusal(post(client, "/api/control", STOP, host=host), 403)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1", "[::1]:80", "127.8.9.1:5"])
def test_loopback_has_several_names(client: httpx.Client, host: str) -> None:
    """A tunnel may end at another port."""
    assert client.get("/api/overview", headers={"host": host}).status_code == 200
    answer = post(client, "/api/control", STOP, host=host, origin=f"http://{host}")
    assert "no run" in refusal(answer, 404)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:1", "http://127.0.0.1", "https://[::1", "file://", "x"]
)
def test_pages_of_others_are_refused(client: httpx.Client, origin: str, caplog: pytest.LogCaptureFixture) -> None:
    """The Origin must be exactly the page's own: other ports of this machine are other servers."""
    assert "Origin" in refusal(post(client, "/api/control", STOP, origin=origin), 403)
    assert "Origin" in refusal(post(client, "/api/start", {"recipe": "cartpole"}, origin=origin), 403)
    assert "Origin" in refusal(client.get("/api/overview", headers={"origin": origin}), 403)
    with pytest.raises(InvalidStatus) as caught:
        connect(play_url(client), origin=origin)  # type: ignore[arg-type]
    assert caught.value.response.status_code == 403
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]  # a refusal is no error


def test_a_browser_that_says_cross_site_is_refused(client: httpx.Client) -> None:
    for site in ("cross-site", "same-site"):
        assert "Origin" in refusal(client.get("/api/overview", headers={"sec-fetch-site": site}), 403)
        assert "Origin" in refusal(post(client, "/api/control", STOP, **{"sec-fetch-site": site}), 403)
        assert client.get("/", headers={"sec-fetch-site": site}).status_code == 200  # a link to the page
    for site in ("same-origin", "none"):
        assert client.get("/api/overview", headers={"sec-fetch-site": site}).status_code == 200


def test_only_json_changes_something(client: httpx.Client) -> None:
    """Forms of other pages can be sent without a question by the browser; JSON cannot."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        answer = client.post("/api/control", content=json.dumps(STOP), headers={"content-type": kind})
        assert "application/json" in refusal(answer, 415)
    headers = {"content-type": "application/json; charset=utf-8"}
    assert refusal(client.post("/api/control", content=json.dumps(STOP), headers=headers), 404)


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"", "not valid JSON"),
        (b"[1]", "JSON object"),
        (b"{", "not valid JSON"),
        (b'{"run": 1, "action": "stop"}', "must be a string"),
        (b'{"run": "x", "action": "stop", "more": "x"}', "unknown key"),
        (b'{"run": "x"}', "needs the keys"),
        (b"[" * 100_000, "not valid JSON"),
        (b"\xff", "not valid JSON"),
    ],
)
def test_a_wrong_body_gets_one_sentence(client: httpx.Client, body: bytes, part: str) -> None:
    answer = client.post("/api/control", content=body, headers={"content-type": "application/json"})
    assert part in refusal(answer, 422)


def test_a_body_that_is_too_large(client: httpx.Client) -> None:
    headers = {"content-type": "application/json"}
    assert "larger than" in refusal(client.post("/api/start", content=b"x" * 3_000_000, headers=headers), 413)


def test_an_unknown_action(client: httpx.Client) -> None:
    body = {"run": only_run(client), "action": "stpo"}
    assert "'stop'" in refusal(post(client, "/api/control", body), 422)


# With a token.


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer x", "Basic " + TOKEN, TOKEN, "Bearer " + TOKEN + "x"])
def test_the_api_needs_the_token(with_token: httpx.Client, given: str) -> None:
    headers = {"authorization": given} if given else {}
    for path in PATHS:
        answer = with_token.get(path, headers=headers)
        assert "token" in refusal(answer, 401)
        assert answer.headers["www-authenticate"] == "Bearer"
    assert "token" in refusal(post(with_token, "/api/control", STOP, **headers), 401)
    assert with_token.get("/").status_code == 200  # the page itself tells nothing
    with pytest.raises(InvalidStatus) as caught:
        connect(play_url(with_token), additional_headers=headers)
    assert caught.value.response.status_code == 401


def test_the_token_as_a_header(with_token: httpx.Client) -> None:
    headers = {"authorization": f"bearer {TOKEN}"}
    assert only_run(with_token, **headers)
    assert with_token.get("/api/overview", headers={**headers, "host": "some.name.example"}).status_code == 200
    answer = post(with_token, "/api/control", STOP, **headers, host="some.name.example")
    assert "Host" in refusal(answer, 403)  # what changes something checks the Host in any case
    for host in (os.uname().nodename, f"{os.uname().nodename}.example:80", "192.0.2.7:8265", "localhost"):
        assert refusal(post(with_token, "/api/control", STOP, **headers, host=host, origin=f"http://{host}"), 404)
        answer = post(with_token, "/api/control", STOP, **headers, host=host, origin="http://evil.example")
        assert "Origin" in refusal(answer, 403)


def test_the_link_sets_a_cookie(with_token: httpx.Client) -> None:
    port = with_token.base_url.port
    with httpx.Client(base_url=with_token.base_url, trust_env=False) as browser:
        assert "token" in refusal(browser.get("/?token=wrong"), 401)
        assert not browser.cookies
        answer = browser.get(f"/?token={quote(TOKEN, safe='')}&view=1")
        assert answer.status_code == 303
        assert answer.headers["location"] == "/?view=1"
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith(f"outplay_token_{port}=")
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert TOKEN not in cookie
        assert browser.get("/api/overview").status_code == 200
        assert "no run" in refusal(post(browser, "/api/control", STOP), 404)
        browser.cookies.set(f"outplay_token_{port}", "wrong", domain="127.0.0.1")
    for cookie in (f"outplay_token_{port}=x", f"outplay_token_{port}={TOKEN}", "outplay_token_1=x", ";;=", "a=\x01"):
        assert "token" in refusal(with_token.get("/api/overview", headers={"cookie": cookie}), 401)


def test_a_token_is_made_beyond_loopback(tmp_path: Path) -> None:
    settings = DashboardSettings(results=tmp_path, host="0.0.0.0", port=0)
    assert settings.token is not None
    assert len(settings.token) >= 24
    assert settings.token not in repr(settings)
    with DashboardServer(settings) as server:
        assert server.link.startswith("http://127.0.0.1:")
        answer = httpx.get(server.link, trust_env=False)
        assert answer.status_code == 303
        assert (
            httpx.get(server.url.replace("0.0.0.0", "127.0.0.1") + "/api/overview", trust_env=False).status_code == 401
        )
    for wrong in ("", "a b", "ü", "a\n"):
        with pytest.raises(ConfigError, match="token"):
            DashboardSettings(token=wrong)
    with pytest.raises(ConfigError, match="port"):
        DashboardSettings(port=70_000)


# Paths.


WRONG = ("../../etc", "..", ".", "", "/", "/etc", "/etc/passwd", "it", "it/", "it/..", "it/../it", "%2e%2e%2fetc",
         "..%2f..%2fetc", "it\\..\\..", "it/\0", "x" * 10_000, "file:///etc/passwd", "~/x", ".dashboard")  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_ids_are_only_looked_up(client: httpx.Client, name: str) -> None:
    other = [("metric", "a")]
    for path, key, more in (
        ("/api/run", "run", []),
        ("/api/series", "run", other),
        ("/api/metrics", "run", []),
        ("/api/study", "study", []),
        ("/api/groups", "run", [*other, ("group", "custom")]),
        ("/api/video", "run", [("name", "x.mp4")]),
    ):
        sentence = refusal(client.get(path, params=[(key, name), *more]), 404)
        assert len(sentence) < 250
    assert refusal(post(client, "/api/control", {"run": name, "action": "stop"}), 422 if "\0" in name else 404)
    raw = f"/api/run?run={name}" if "\0" not in name else "/api/run?run=%00"
    assert refusal(client.get(raw), 404 if "&" not in raw else 422)


def test_what_leads_outside_is_not_listed(results: Path, client: httpx.Client, tmp_path: Path) -> None:
    run = only_run(client)
    outside = tmp_path / "outside" / "secret"
    shutil.copytree(results / run, outside)
    (results / "linked").symlink_to(outside.parent)
    (results / "it" / "linked").symlink_to(outside)
    (results / "itself").symlink_to(results)
    (results / "again").symlink_to(results / "it")  # inside: fine
    try:
        with serving(results) as fresh:
            found = {each["id"] for each in get(fresh, "/api/overview")["runs"]}
            assert found == {run, run.replace("it/", "again/", 1)}
            for name in ("linked/secret", "it/linked"):
                assert refusal(fresh.get("/api/run", params={"run": name}), 404)
    finally:
        for path in ("linked", "it/linked", "itself", "again"):
            (results / path).unlink()


def test_only_videos_of_the_run_are_sent(results: Path, client: httpx.Client, tmp_path: Path) -> None:
    run = only_run(client)
    videos = results / run / "videos"
    videos.mkdir()
    (videos / "game.mp4").write_bytes(bytes(range(100)))
    (videos / "notes.txt").write_text("private")
    (tmp_path / "outside.mp4").write_bytes(b"outside")
    (videos / "linked.mp4").symlink_to(tmp_path / "outside.mp4")
    os.mkfifo(videos / "pipe.mp4")
    try:
        assert [video["name"] for video in get(client, "/api/run", ("run", run))["videos"]] == ["game.mp4"]
        answer = client.get("/api/video", params={"run": run, "name": "game.mp4"})
        assert (answer.status_code, answer.content) == (200, bytes(range(100)))
        assert answer.headers["content-type"] == "video/mp4"
        part = client.get("/api/video", params={"run": run, "name": "game.mp4"}, headers={"range": "bytes=10-19"})
        assert (part.status_code, part.content) == (206, bytes(range(10, 20)))
        for name in ("notes.txt", "linked.mp4", "pipe.mp4", "../config.yaml", "/etc/passwd", "..%2fconfig.yaml", ""):
            assert "no such video" in refusal(client.get("/api/video", params={"run": run, "name": name}), 404)
    finally:
        shutil.rmtree(videos)


def test_folders_with_anything_in_them(results: Path, tmp_path: Path) -> None:
    """Damaged files, pipes and huge files of a run are never a traceback, and block nothing."""
    strange = tmp_path / "strange"
    contents: dict[str, dict[str, Any]] = {
        "empty": {"config.yaml": ""},
        "damaged": {"config.yaml": "a: [", "status.json": "{", "metrics.jsonl": "{\n\n\0"},
        "types": {
            "config.yaml": "a:\n  config: {seed: [1]}\n  run: [1]\n",
            "status.json": "[]",
            "metrics.jsonl": "1\n",
        },
        "status": {"config.yaml": "a: {config: {}}", "status.json": json.dumps({"state": 1})},
        "values": {
            "config.yaml": "a: {run: PPO, env: e, config: {curriculum: 3, seed: x}}",
            "status.json": json.dumps(
                {
                    "state": "running",
                    "pid": 1,
                    "host": "h",
                    "updated": "never",
                    "training_iteration": 1,
                    "timesteps_total": 1,
                    "progress": "x",
                    "workers": 7,
                    "error": ["x"],
                }
            ),
            "metrics.jsonl": json.dumps(
                {"training_iteration": 1, "episode_return_mean": {"a": 1}, "stages_s": 3, "curriculum_level": "x"}
            )
            + "\n",
        },
    }
    for name, files in contents.items():
        folder = strange / "x" / name
        folder.mkdir(parents=True)
        for file, text in files.items():
            (folder / file).write_text(text)
    unreadable = os.fsencode(strange / "x") + b"/\xff\xfe"  # not UTF-8: JSON cannot have it
    os.mkdir(unreadable)
    (Path(os.fsdecode(unreadable)) / "config.yaml").write_text("a: {config: {}}")
    pipes = strange / "x" / "pipes"
    pipes.mkdir()
    for name in ("config.yaml", "status.json", "metrics.jsonl", "videos", "checkpoints"):
        os.mkfifo(pipes / name)
    study = strange / "y"
    study.mkdir()
    (study / "study.json").write_text("{}")
    (strange / "z").mkdir()
    os.mkfifo(strange / "z" / "study.json")
    with serving(strange) as client:
        overview = get(client, "/api/overview")
        assert {run["id"] for run in overview["runs"]} == {f"x/{name}" for name in (*contents, "pipes")}
        assert [each["id"] for each in overview["studies"]] == ["y"]
        assert overview["studies"][0]["state"] == "unknown"
        assert overview["studies"][0]["error"]
        assert get(client, "/api/study", ("study", "y"))["trials"] == []
        for run in overview["runs"]:
            assert run["state"] == "unknown"
            get(client, "/api/run", ("run", run["id"]))
            get(client, "/api/series", ("run", run["id"]), ("metric", "episode_return_mean"))
            get(client, "/api/diff", ("run", run["id"]), ("run", "x/empty"))
        shutil.rmtree(os.fsencode(strange))
        for path in ("/api/run", "/api/metrics"):
            assert client.get(path, params={"run": "x/values"}).status_code in (200, 404)


def test_a_folder_that_does_not_exist_is_an_empty_list(tmp_path: Path) -> None:
    with serving(tmp_path / "nothing") as client:
        assert get(client, "/api/overview")["runs"] == []
        run = trained(tmp_path / "nothing", iterations=1)
        found = get(client, "/api/run", ("run", run_id(run)))
        assert found["run"]["state"] == "finished"
