"""From the content of a request to its answer: parses, checks, acts, keeps the state of sessions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from starlette.exceptions import HTTPException

from outplay.errors import ConfigError, nearest, shortened, type_name
from outplay.parsing import json_problem
from outplay.serve.batching import Answer, Batcher
from outplay.serve.decoding import Decoder, plain_action
from outplay.serve.metrics import ServerMetrics
from outplay.serve.sessions import Session, Sessions
from outplay.serve.settings import ServeSettings
from outplay.serve.source import Array, ServedPolicy
from outplay.spaces import Leaves

_ONE = ("observation", "mask", "session", "reset", "reward")
_BATCH = ("observations", "masks")
_MESSAGE = ("observation", "mask", "reset", "reward")
_LARGEST_REWARD = float(np.finfo(np.float32).max)


class Acting:
    """Answers requests with a Batcher and Sessions."""

    def __init__(self, served: ServedPolicy, settings: ServeSettings, metrics: ServerMetrics) -> None:
        self.settings, self.metrics = settings, metrics
        self.batcher = Batcher(
            served, metrics, settings.max_batch_size, settings.max_wait_ms / 1000, explore=settings.explore
        )
        self.sessions = Sessions(settings.max_sessions, settings.session_timeout_s)
        self.decoder = Decoder(served.policy, settings.check_bounds)

    @property
    def served(self) -> ServedPolicy:
        return self.batcher.served

    def session(self, name: Any) -> Session:
        """The session with this id. Raises HTTPException 404."""
        try:
            return self.sessions.get(name)
        except (KeyError, TypeError):
            raise self._no_session(name) from None

    def delete_session(self, name: str) -> None:
        try:
            self.sessions.delete(name)
        except KeyError:
            raise self._no_session(name) from None

    def _no_session(self, name: Any) -> HTTPException:
        limit = f"after {self.sessions.timeout_s:g} s without a request"
        shown = shortened(str(name), 40)
        return HTTPException(404, f"there is no session {shown!r}: it was deleted, or it expired {limit}")

    async def act_on_json(self, data: bytes) -> dict[str, Any]:
        """The answer to the body of POST /act."""
        request = _parsed(data)
        if "observation" in request and "observations" in request:
            raise ConfigError("the request has both observation and observations; send one of them")
        if "observations" in request:
            return await self._act_on_batch(request)
        _check_keys(request, _ONE)
        return await self._act_on_one(request, request.get("session"))

    async def act_on_binary_message(self, data: bytes, session: str) -> Answer:
        """The answer to a binary message of a WebSocket: an observation, without anything beside it."""
        if self.served.uses_reward:
            raise ConfigError(
                "the network gets the previous reward (lstm_use_prev_reward), which a binary message cannot have: send "
                'JSON, {"observation": …, "reward": …}'
            )
        return await self.act_on_bytes(data, session)

    async def act_on_message(self, data: bytes, session: str) -> dict[str, Any]:
        """The answer to a text message of a WebSocket, which has a session."""
        request = _parsed(data)
        _check_keys(request, _MESSAGE)
        if "observation" not in request and request.get("reset") is True:
            self.session(session).state = None  # messages of a connection come one after the other
            return {"reset": True}
        return await self._act_on_one(request, session)

    async def act_on_bytes(
        self, data: bytes, session: str | None = None, reset: bool = False, reward: float | None = None
    ) -> Answer:
        """The actions for observations in bytes. With a session, there must be one."""
        rows = self.decoder.rows_from_bytes(data)
        return await self._act(rows, None, session, reset, reward)

    async def _act_on_one(self, request: Mapping[str, Any], session: str | None) -> dict[str, Any]:
        if "observation" not in request:
            raise ConfigError('the request has no observation: send {"observation": …}')
        observations = [request["observation"]]
        rows = self.decoder.rows(observations, is_batch=False)
        mask = request.get("mask")
        masks = self.decoder.mask(observations, None if mask is None else [mask])
        answer = await self._act(rows, masks, session, _reset(request), _reward(request))
        space = answer.served.policy.action_space
        return {"action": plain_action(space, answer.actions[0]), "iteration": answer.served.iteration}

    async def _act_on_batch(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if "session" in request:
            raise ConfigError('a session takes one observation at a time: send {"observation": …, "session": …}')
        _check_keys(request, _BATCH)
        observations, masks = request["observations"], request.get("masks")
        for name, value in (("observations", observations), ("masks", masks)):
            if not isinstance(value, list) and (name == "observations" or value is not None):
                raise ConfigError(f"{name} must be a list, not {type_name(value)}")
        if not observations:
            return {"actions": [], "iteration": self.served.iteration}
        self._check_number(len(observations))
        rows = self.decoder.rows(observations, is_batch=True)
        answer = await self._act(rows, self.decoder.mask(observations, masks))
        space = answer.served.policy.action_space
        actions = [plain_action(space, action) for action in answer.actions]
        return {"actions": actions, "iteration": answer.served.iteration}

    def _check_number(self, number: int) -> None:
        if number > self.settings.max_batch_size:
            most = self.settings.max_batch_size
            raise HTTPException(413, f"the request has {number:,} observations; at most {most:,} are allowed")

    async def _act(
        self,
        rows: Leaves,
        mask: Array | None,
        session: str | None = None,
        reset: bool = False,
        reward: float | None = None,
    ) -> Answer:
        number = len(rows[0])
        self._check_number(number)
        if session is None:
            if reset or reward is not None:
                raise ConfigError("reset and reward are for sessions: create one (POST /sessions) and send its id")
            return await self.batcher.act(rows, None, mask)
        if number != 1:
            raise ConfigError(f"a session takes one observation at a time, not {number}")
        found = self.session(session)
        async with found.lock:
            before = None if reset else found.state
            if before is not None:
                rewards = None if reward is None else np.array([reward], np.float32)
                before = self._state_before(before, rewards)
            answer = await self.batcher.act(rows, before, mask)
            found.state = answer.state
        return answer

    def _state_before(self, state: dict[str, Array], rewards: Array | None) -> dict[str, Array]:
        try:
            before: dict[str, Array] = self.served.policy.state_from(state, rewards, 1)
        except ConfigError:
            raise ConfigError(
                'the network gets the previous reward (lstm_use_prev_reward): send it as "reward", or "reset": true at '
                "the start of an episode"
            ) from None
        return before


def from_query(query: Mapping[str, str]) -> dict[str, Any]:
    """session, reset and reward of a binary request: /act?session=ID&reset=true&reward=1.0."""
    _check_keys(query, ("session", "reset", "reward"))
    found: dict[str, Any] = {"session": query.get("session")}
    if "reset" in query:
        if query["reset"] not in ("true", "false"):
            raise ConfigError(f"reset must be true or false, not {shortened(query['reset'])!r}")
        found["reset"] = query["reset"] == "true"
    if "reward" in query:
        try:
            found["reward"] = _reward({"reward": float(query["reward"])})
        except ValueError:
            raise ConfigError(f"reward must be a finite number, not {shortened(query['reward'])!r}") from None
    return found


def check_no_query(query: Mapping[str, str]) -> None:
    """Raise ConfigError if a JSON request has parameters in the query, which are for bytes."""
    for key in query:
        raise ConfigError(
            f"the query has {shortened(key)!r}, which is for observations in bytes; in JSON, send it in the body: "
            '{"observation": …, "session": …}'
        )


def _parsed(data: bytes) -> dict[str, Any]:
    """The JSON object of a request."""
    try:
        value = json.loads(data, parse_constant=_refuse_constant)
    except RecursionError:
        raise ConfigError("the JSON is nested too deep") from None
    except ValueError as error:  # also UnicodeDecodeError
        raise ConfigError(f"the body is not valid JSON: {shortened(json_problem(error), 100)}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"the body must be a JSON object, not {type_name(value)}")
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _check_keys(given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in given:
        if key not in known:
            raise ConfigError(f"unknown key {shortened(key)!r}{nearest(key, known)}")


def _reset(request: Mapping[str, Any]) -> bool:
    value = request.get("reset", False)
    if not isinstance(value, bool):
        raise ConfigError(f"reset must be true or false, not {type_name(value)}")
    return value


def _reward(request: Mapping[str, Any]) -> float | None:
    value = request.get("reward")
    if value is None:
        return None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not abs(value) <= _LARGEST_REWARD:  # integers of JSON may be too large for a float
        raise ConfigError(f"reward must be a finite number of at most ±{_LARGEST_REWARD:.1e}")
    return float(value)
