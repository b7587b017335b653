"""A storage that drivers share: SQLite, and a real PostgreSQL server if there is one."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

from outplay.errors import ConfigError
from outplay.tune import domains
from outplay.tune.objective import Objective
from outplay.tune.search import OptunaSearch
from outplay.tune.search.storage import open_storage
from outplay.tune.spaces import Space

SPACE = Space({"x": domains.uniform(-5, 5), "n": domains.choice(["a", "b"])})
LOSS = Objective.of("loss", "min")


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/study.db"


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The URL of a server that listens on a socket in a folder of its own. PostgreSQL refuses to run as root."""
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("psycopg is not installed")
    if not (shutil.which("postgres") and shutil.which("initdb")):
        pytest.skip("PostgreSQL is not installed")
    user = "postgres" if os.getuid() == 0 else None
    if user is not None and user not in {entry.pw_name for entry in pwd.getpwall()}:
        pytest.skip("there is no user postgres, and PostgreSQL refuses to run as root")
    folder = Path(tempfile.mkdtemp(prefix="pg"))  # short: the path of a socket has a limit
    try:
        if user:
            shutil.chown(folder, "postgres")
        data = str(folder / "data")
        subprocess.run(
            ["initdb", "-D", data, "-A", "trust", "-U", "tester", "-N"],
            check=True, capture_output=True, cwd=folder, user=user,
        )  # fmt: skip
        server = subprocess.Popen(
            ["postgres", "-D", data, "-k", str(folder), "-c", "listen_addresses=", "-c", "fsync=off"],
            cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, user=user,
        )  # fmt: skip
        try:
            assert server.stderr is not None
            lines = []
            while "ready to accept connections" not in (line := server.stderr.readline()):
                lines.append(line)
                assert line, f"the server has ended: {lines}"
            yield f"postgresql+psycopg://tester@/postgres?host={folder}"
        finally:
            pid = int((folder / "data" / "postmaster.pid").read_text().splitlines()[0])
            os.kill(pid, 2)  # fast shutdown
            server.communicate()
    finally:
        shutil.rmtree(folder)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: Any) -> str:
    return str(request.getfixturevalue(request.param))


def driver(url: Any, name: str = "shared", space: Space = SPACE, **settings: Any) -> OptunaSearch:
    searcher = OptunaSearch(storage=url, study_name=name, **settings)
    searcher.setup(space, LOSS, 3)
    return searcher


def test_two_drivers_share_their_results(url: str) -> None:
    one, two = driver(url), driver(url)
    suggested = [searcher.suggest(f"{i:05}") for i in range(3) for searcher in (one, two)]
    assert len({repr(values) for values in suggested}) == 6, "drivers with the same seed try the same values"
    one.on_complete("00000", {"loss": 1.0})
    two.on_complete("00000", {"loss": 2.0})
    two.on_complete("00001", None, error=True)
    found = [
        (trial.state.name, trial.value)
        for trial in optuna.load_study(study_name="shared", storage=open_storage(url)).trials
    ]
    assert found == [
        ("COMPLETE", 1.0), ("COMPLETE", 2.0), ("RUNNING", None), ("FAIL", None), ("RUNNING", None), ("RUNNING", None),
    ]  # fmt: skip
    assert [t.value for t in one.study.get_trials(states=[optuna.trial.TrialState.COMPLETE])] == [1.0, 2.0]


def test_a_driver_that_was_killed_goes_on_with_its_trials(url: str) -> None:
    first = driver(url, "killed", points_to_evaluate=[{"x": 1.0, "n": "a"}, {"x": 2.0, "n": "a"}])
    state = first.save()
    values = [first.suggest(f"{i:05}") for i in range(3)]  # the last one did not reach the journal
    first.on_complete("00000", {"loss": 1.0})

    again = driver(url, "killed", points_to_evaluate=[{"x": 1.0, "n": "a"}, {"x": 2.0, "n": "a"}])
    assert state is not None
    again.restore(state)
    again.repeat("00000", values[0] or {})
    again.on_complete("00000", {"loss": 1.0})
    again.repeat("00001", values[1] or {})
    assert again.suggest("00002") == values[2]
    again.on_complete("00001", {"loss": 3.0})
    again.on_complete("00002", {"loss": 4.0})
    assert [trial.value for trial in again.study.get_trials()] == [1.0, 3.0, 4.0]
    fourth = again.suggest("00003")
    assert fourth is not None
    assert fourth["x"] not in (1.0, 2.0)


def test_a_warm_start_happens_once(sqlite: str) -> None:
    earlier = [({"x": float(i), "n": "a"}, {"loss": i}) for i in range(3)]
    for _ in range(2):
        searcher = driver(sqlite, warm_start=earlier)
    assert [trial.value for trial in searcher.study.get_trials()] == [0, 1, 2]


def test_constraints_are_stored(url: str) -> None:
    searcher = driver(url, "constrained", constraints=lambda result: [result["loss"] - 1])
    searcher.suggest("00000")
    searcher.on_complete("00000", {"loss": 3.0})
    assert searcher.study.get_trials()[0].constraints == {"0": 2.0}


def test_any_storage_of_optuna_can_be_shared(tmp_path: Path) -> None:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    storage = JournalStorage(JournalFileBackend(str(tmp_path / "journal.log")))
    one, two = driver(storage), driver(storage)
    one.suggest("00000")
    one.on_complete("00000", {"loss": 1.0})
    assert [trial.value for trial in two.study.get_trials()] == [1.0]


PROGRAM = """
import sys
from outplay.tune import domains
from outplay.tune.objective import Objective
from outplay.tune.search import OptunaSearch
from outplay.tune.spaces import Space
searcher = OptunaSearch(storage=sys.argv[1], study_name="many", sampler="random")
searcher.setup(Space({"x": domains.uniform(-5, 5)}), Objective.of("loss", "min"), 0)
for i in range(8):
    searcher.on_complete(str(i), {"loss": searcher.suggest(str(i))["x"] ** 2})
"""


@pytest.mark.slow
def test_drivers_that_write_at_the_same_time_lose_nothing(url: str) -> None:
    driver(url, "many", Space({"x": domains.uniform(-5, 5)}))  # creates the tables
    programs = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, url], stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    errors = [program.communicate()[1] for program in programs]
    assert [program.returncode for program in programs] == [0, 0, 0], errors
    trials = optuna.load_study(study_name="many", storage=open_storage(url)).trials
    assert len({trial.params["x"] for trial in trials}) == 24
    assert all(trial.value == trial.params["x"] ** 2 for trial in trials)


# Wrong settings.


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        ("study.db", "storage must be a URL such as postgresql://user@host/database, not 'study.db'"),
        ("mongodb://host/study", "storage 'mongodb://host/study' cannot be opened: .*mongodb"),
        ("sqlite:////no/such/folder/study.db", "cannot be opened: .*unable to open database file"),
        ("oracle+nosuch://user:secret@host/db", r"storage 'oracle\+nosuch://user:\*\*\*@host/db' cannot be opened"),
        ("mysql+mysqldb://user:secret@host/db", r"needs a database driver: No module named 'MySQLdb'"),
    ],
)
def test_a_wrong_url_is_one_sentence(storage: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        open_storage(storage)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.skipif(importlib.util.find_spec("psycopg") is None, reason="psycopg is not installed")
def test_a_server_that_does_not_answer_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"cannot be opened: .*connection") as caught:
        open_storage("postgresql+psycopg://user:secret@127.0.0.1:1/db")
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_study_of_other_modes_or_variables_is_refused(sqlite: str) -> None:
    driver(sqlite).suggest("00000")
    with pytest.raises(ConfigError, match="the study 'shared' in this storage has mode min, not max"):
        OptunaSearch(storage=sqlite, study_name="shared").setup(SPACE, Objective.of("score", "max"), 0)
    other = driver(sqlite, space=Space({"x": domains.randint(0, 3)}))
    with pytest.raises(ConfigError, match="the study 'shared' has other variables in this storage"):
        other.suggest("00000")
