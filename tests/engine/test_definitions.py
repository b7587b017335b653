"""Reusable variables, typed functions and serialisers, on every engine."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import outplay

pytestmark = pytest.mark.usefixtures("engine")


class Game:
    """Stands for an environment: expensive to make, and full of state."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.moves = 0

    def move(self) -> int:
        self.moves += 1
        return self.moves


@outplay.remote
def play() -> tuple[int, int]:
    game = outplay.reusables.game
    return outplay.reusables.game.move(), id(game)


@outplay.remote
def play_and_fail() -> None:
    outplay.reusables.game.move()
    raise RuntimeError("in the middle of a game")


def test_a_reusable_variable_never_shows_what_another_task_did() -> None:
    outplay.reusables.game = outplay.Reusable(Game)
    for _ in range(3):
        results = outplay.get([play.remote() for _ in range(4)])
        assert [moves for moves, _ in results] == [1] * 4


def test_it_is_clean_after_a_task_that_raised() -> None:
    outplay.reusables.game = outplay.Reusable(Game)
    for _ in range(4):
        with pytest.raises(outplay.TaskError):
            outplay.get(play_and_fail.remote())
    assert outplay.get(play.remote())[0] == 1


def test_the_reinitializer_gets_the_value_and_returns_the_next() -> None:
    def again(game: Game) -> Game:
        game.moves = 100
        return game

    outplay.reusables.reused = outplay.Reusable(Game, again)

    @outplay.remote
    class Player:
        def play(self) -> tuple[int, int, int]:
            game = outplay.reusables.reused
            return game.move(), game.move(), id(game)

    player = Player.remote()
    first, second = outplay.get([player.play.remote(), player.play.remote()])
    assert first[:2] == (1, 2)
    assert second[:2] == (101, 102)
    assert first[2] == second[2]


def test_a_reinitializer_may_work_in_place() -> None:
    outplay.reusables.cleared = outplay.Reusable(list, lambda items: items.clear())

    @outplay.remote
    class Appender:
        def append(self) -> int:
            outplay.reusables.cleared.append(1)
            return len(outplay.reusables.cleared)

    appender = Appender.remote()
    assert outplay.get([appender.append.remote() for _ in range(3)]) == [1, 1, 1]


def test_without_one_it_is_made_anew_each_time() -> None:
    outplay.reusables.fresh = outplay.Reusable(Game)

    @outplay.remote
    class Player:
        def play(self) -> int:
            return int(outplay.reusables.fresh.move())

        def idle(self) -> None: ...

        def made(self) -> int:
            return Game.made

    player = Player.remote()
    before = outplay.get(player.made.remote())
    assert outplay.get([player.play.remote(), player.play.remote()]) == [1, 1]
    outplay.get([player.idle.remote(), player.idle.remote()])
    # Once for the first use, and once after each of the two calls that used it.
    assert outplay.get(player.made.remote()) - before == 3


def test_definitions_reach_workers_that_already_run() -> None:
    @outplay.remote
    class Reader:
        def read(self) -> Any:
            return outplay.reusables.setting

    reader = Reader.remote()
    outplay.reusables.setting = outplay.Reusable(lambda: "early")
    assert outplay.get(reader.read.remote()) == "early"
    outplay.reusables.setting = outplay.Reusable(lambda: "late")
    assert outplay.get(reader.read.remote()) == "late"


def test_a_task_inside_a_task_has_variables_of_its_own() -> None:
    outplay.reusables.game = outplay.Reusable(Game)

    @outplay.remote
    def outer() -> tuple[int, int, int]:
        first = outplay.reusables.game.move()
        inner = outplay.get(play.remote())[0]
        return first, inner, outplay.reusables.game.move()

    assert outplay.get(outer.remote()) == (1, 1, 2)


def test_an_unknown_variable_names_the_nearest() -> None:
    outplay.reusables.game = outplay.Reusable(Game)

    @outplay.remote
    def misspelt() -> Any:
        return outplay.reusables.gane

    with pytest.raises(outplay.TaskError, match=r"no reusable variable 'gane'. Did you mean 'game'\?"):
        outplay.get(misspelt.remote())
    with pytest.raises(TypeError, match=r"outplay\.Reusable"):
        outplay.reusables.game = Game()


# Typed functions


@outplay.remote(typed=True)
def repeat(text: str, times: int = 2) -> str:
    return text * times


@outplay.remote(typed=True)
def lies(value: int) -> str:
    return value  # type: ignore[return-value]


@outplay.remote(typed=True, num_returns=2)
def gradient(model: dict[str, np.ndarray], seed: int) -> tuple[dict[str, np.ndarray], float]:
    return {name: array + seed for name, array in model.items()}, 1.0


@outplay.remote
def anything(value: Any) -> Any:
    return value


def test_typed_functions_accept_what_they_declare() -> None:
    assert outplay.get(repeat.remote("ab")) == "abab"
    assert outplay.get(repeat.remote(outplay.put("x"), times=anything.remote(3))) == "xxx"
    grads, reward = gradient.remote({"w": np.zeros(2)}, 1)
    assert outplay.get(grads)["w"].sum() == 2
    assert outplay.get(reward) == 1.0


def test_a_wrong_argument_is_refused_at_the_call() -> None:
    with pytest.raises(TypeError, match=r"repeat\(\): parameter 'times' must be int, but was given str"):
        repeat.remote("ab", times="3")
    with pytest.raises(TypeError, match=r"parameter 'model' must be dict\[str, numpy.ndarray\], but was given dict"):
        gradient.remote({"w": 1}, 1)
    with pytest.raises(TypeError, match=r"repeat\(\): missing a required argument: 'text'"):
        repeat.remote()


def test_the_type_travels_with_the_ref() -> None:
    with pytest.raises(TypeError, match="parameter 'text' must be str, but was given a Ref to int"):
        repeat.remote(outplay.put(3))
    _, reward = gradient.remote({"w": np.zeros(2)}, 1)
    with pytest.raises(TypeError, match="parameter 'text' must be str, but was given a Ref to float"):
        repeat.remote(reward)

    @outplay.remote
    def passes_on(refs: list[Any]) -> str:
        try:
            repeat.remote(refs[0])
        except TypeError as error:
            return str(error)
        return "accepted"

    assert "a Ref to int" in outplay.get(passes_on.remote([outplay.put(3)]))


def test_what_is_not_known_at_the_call_is_refused_by_get() -> None:
    unknown = anything.remote(3)
    with pytest.raises(TypeError, match="parameter 'text' must be str, but was given int"):
        outplay.get(repeat.remote(unknown))
    with pytest.raises(TypeError, match=r"lies\(\): the result must be str, but was given int"):
        outplay.get(lies.remote(3))


def test_typed_actors_check_their_methods() -> None:
    @outplay.remote(typed=True)
    class Box:
        def __init__(self, size: int) -> None:
            self.size = size

        def grow(self, by: int) -> int:
            self.size += by
            return self.size

    with pytest.raises(TypeError, match=r"Box\(\): parameter 'size' must be int, but was given str"):
        Box.remote("large")
    box = Box.remote(3)
    assert outplay.get(box.grow.remote(1)) == 4
    with pytest.raises(TypeError, match=r"Box.grow\(\): parameter 'by' must be int, but was given float"):
        box.grow.remote(0.5)

    @outplay.remote
    def elsewhere(handle: Any) -> str:
        try:
            handle.grow.remote("much")
        except TypeError as error:
            return str(error)
        return "accepted"

    assert "parameter 'by' must be int" in outplay.get(elsewhere.remote(box))


# Serialisers


def test_a_serializer_teaches_the_engine_a_type() -> None:
    class Board:
        """Cannot be pickled: it holds a lock."""

        def __init__(self, cells: str) -> None:
            self.cells = cells
            self.lock = threading.Lock()

    with pytest.raises(outplay.SerializationError, match="register_serializer"):
        anything.remote(Board("xo"))
    outplay.register_serializer(Board, serializer=lambda board: board.cells, deserializer=lambda cells: Board(cells))

    @outplay.remote
    def flip(boards: list[Board]) -> Board:
        return Board(boards[0].cells[::-1])

    # Into a worker that ran before the type was known, and back out of it.
    assert outplay.get(flip.remote([Board("xo")])).cells == "ox"
    assert outplay.get(outplay.put({"board": Board("xx")}))["board"].cells == "xx"
