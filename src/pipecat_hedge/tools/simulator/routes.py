"""Which address speaks which protocol, and how a request becomes an `Exchange`."""

import asyncio
import contextlib
import ipaddress
import random
import re
import sys
from collections import Counter
from typing import Any

from aiohttp import web

from pipecat_hedge.policy.profiles import PROFILES
from pipecat_hedge.tools.simulator.anthropic_wire import AnthropicWire
from pipecat_hedge.tools.simulator.arrivals import Arrivals
from pipecat_hedge.tools.simulator.behaviour import Behaviour, BehaviourError, override, parse_model
from pipecat_hedge.tools.simulator.capacity import Capacity
from pipecat_hedge.tools.simulator.conditions import Conditions, read_conditions
from pipecat_hedge.tools.simulator.exchange import Exchange
from pipecat_hedge.tools.simulator.google_wire import GoogleWire
from pipecat_hedge.tools.simulator.ledger import Ledger
from pipecat_hedge.tools.simulator.openai_wire import OpenAIWire
from pipecat_hedge.tools.simulator.plan import plan
from pipecat_hedge.tools.simulator.prompt import Prompt, PromptError
from pipecat_hedge.tools.simulator.wire import Wire, dumps

_MAX_BODY_BYTES = 64 * 2**20
_OPENAI, _ANTHROPIC, _GOOGLE = OpenAIWire(), AnthropicWire(), GoogleWire()
_GOOGLE_CALL = re.compile(r"/models/(?P<model>.+):(?P<method>\w+)$")
_MADE = 1735689600  # 2025-01-01, when every simulated model was "created"


class Routes:
    """The simulator's addresses, on the running loop.

    Args:
        ledger: Where requests are written down.
        seed: The n-th request to a model name gets the same draw for the same seed.
        capacity: How many requests are served at once, the others wait; None is as many as come.
    """

    def __init__(self, ledger: Ledger, seed: int, capacity: int | None = None):
        self._ledger = ledger
        self._seed = seed
        self._usual_capacity = capacity
        self._capacity = Capacity(capacity)
        self._conditions = Conditions()
        self._arrivals = Arrivals(asyncio.get_running_loop().time())
        self._asked: Counter[str] = Counter()
        self._serving: set[asyncio.Task[Any]] = set()
        self._is_closing = False

    def application(self) -> web.Application:
        """A web application with these addresses."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_post("/v1/chat/completions", self._openai)
        app.router.add_post("/v1/messages", self._anthropic)
        app.router.add_post("/v1beta/models/{call:.+}", self._google)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/ledger", self._ledger_get)
        app.router.add_delete("/ledger", self._ledger_delete)
        app.router.add_get("/simulator/arrivals", self._arrivals_get)
        app.router.add_get("/simulator/conditions", self._conditions_get)
        app.router.add_post("/simulator/conditions", self._conditions_post)
        app.router.add_route("*", "/{path:.*}", self._unknown)
        return app

    def close(self) -> None:
        """Stop serving; the requests that are still open have failed."""
        self._is_closing = True
        for task in self._serving:
            task.cancel()

    async def _openai(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, _OPENAI, None, stream=False)

    async def _anthropic(self, request: web.Request) -> web.StreamResponse:
        return await self._serve(request, _ANTHROPIC, None, stream=False)

    async def _google(self, request: web.Request) -> web.StreamResponse:
        # The raw path: a model's values keep their URL encoding until they are read.
        found = _GOOGLE_CALL.search(request.rel_url.raw_path)
        method = found["method"] if found else None
        if found is None or method not in ("generateContent", "streamGenerateContent"):
            return await self._unknown(request)
        model = found["model"].replace("%40", "@").replace("%3D", "=").replace("%2C", ",")
        stream = method == "streamGenerateContent"
        return await self._serve(request, _GOOGLE, model, stream=stream)

    async def _serve(
        self, request: web.Request, wire: Wire, model: str | None, *, stream: bool
    ) -> web.StreamResponse:
        self._arrivals.add(asyncio.get_running_loop().time())
        entry = self._ledger.arrived(wire.name)
        exchange = Exchange(request, wire, self._ledger, entry)
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            with contextlib.suppress(ConnectionError):
                return await self._answer(request, wire, model, exchange, stream=stream)
            # The socket is closing; the cancellation that follows ends this.
            await asyncio.get_running_loop().create_future()
            raise AssertionError("unreachable")
        except asyncio.CancelledError:
            if not self._is_closing:
                exchange.left()
            raise
        finally:
            self._serving.discard(task)
            self._ledger.ended(entry, "failed")

    async def _answer(
        self,
        request: web.Request,
        wire: Wire,
        model: str | None,
        exchange: Exchange,
        *,
        stream: bool,
    ) -> web.StreamResponse:
        entry = exchange.entry
        try:
            body = await _json_body(request)
            # Interned: the ledger keeps the name of each of its 100,000 requests.
            entry.model = model = sys.intern(model or _model_in(body))
            behaviour = parse_model(model)
            entry.profile = behaviour.profile.name
            prompt = _read(wire, body, stream=stream)
            behaviour = _overridden(behaviour, prompt)
        except BehaviourError as error:
            return await exchange.refuse(error.status, str(error), None)
        except PromptError as error:
            return await exchange.refuse(400, str(error), None)
        entry.stream, entry.prompt_tokens = prompt.stream, prompt.input_tokens
        number = self._asked[model]
        self._asked[model] += 1
        async with self._capacity.place():
            exchange.begin()
            behaviour = self._conditions.applied(behaviour)
            planned = plan(behaviour, prompt, random.Random(f"{self._seed} {model} {number}"))
            entry.fault = planned.fault.name if planned.fault else None
            encoder = wire.encoder(prompt, behaviour.profile.name, entry.id)
            return await exchange.play(planned, encoder)

    async def _models(self, request: web.Request) -> web.Response:
        """The list of models, in a form that is OpenAI's and Anthropic's at once."""
        data = [
            {
                "id": name,
                "object": "model",
                "created": _MADE,
                "owned_by": "simulator",
                "type": "model",
                "display_name": name,
                "created_at": "2025-01-01T00:00:00Z",
            }
            for name in PROFILES
        ]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"], "has_more": False}
        return _json(200, {"object": "list", "data": data, **ends})

    async def _ledger_get(self, request: web.Request) -> web.Response:
        try:
            wait_secs = float(request.query.get("wait", "0"))
        except ValueError:
            return _json(400, {"error": {"message": "wait: expected seconds"}})
        if wait_secs > 0:
            with contextlib.suppress(TimeoutError):  # the answer shows what is still open
                await self._ledger.wait_until(lambda ledger: not ledger.open, wait_secs)
        open_only = request.query.get("open", "0") not in ("", "0", "false")
        return _json(200, self._ledger.as_dict(open_only=open_only))

    async def _ledger_delete(self, request: web.Request) -> web.Response:
        self._ledger.clear()
        return _json(200, self._ledger.as_dict())

    async def _arrivals_get(self, request: web.Request) -> web.Response:
        """How many requests came in each second of the machine's monotonic clock."""
        try:
            since = int(request.query.get("since", "0"))
        except ValueError:
            return _json(400, {"error": {"message": "since: expected a whole second"}})
        first, counts = self._arrivals.since(since, asyncio.get_running_loop().time())
        queue = {"busy": self._capacity.busy, "waiting": self._capacity.waiting}
        return _json(200, {"first": first, "counts": counts, **queue})

    async def _conditions_get(self, request: web.Request) -> web.Response:
        return _json(200, dict(self._conditions.told))

    async def _conditions_post(self, request: web.Request) -> web.Response:
        if not _is_loopback(request.remote):
            message = "conditions can be set from this machine only"
            return _json(403, {"error": {"message": message}})
        try:
            conditions = read_conditions(await _json_body(request))
        except (BehaviourError, PromptError) as error:
            return _json(400, {"error": {"message": str(error)}})
        self._conditions = conditions
        self._capacity.limit = (
            conditions.capacity if conditions.has_capacity else self._usual_capacity
        )
        return _json(200, dict(conditions.told))

    async def _unknown(self, request: web.Request) -> web.Response:
        message = (
            f"unknown address {request.method} {request.path}; known: POST /v1/chat/completions, "
            "POST /v1/messages, POST /v1beta/models/{model}:streamGenerateContent, "
            "GET /v1/models, GET and DELETE /ledger, GET /simulator/arrivals, "
            "GET and POST /simulator/conditions"
        )
        return _json(404, {"error": {"message": message, "type": "not_found_error", "code": 404}})


async def _json_body(request: web.Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except ValueError:
        raise PromptError("the body is not JSON") from None
    if not isinstance(body, dict):
        raise PromptError("the body is not a JSON object")
    return body


def _model_in(body: dict[str, Any]) -> str:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise PromptError("model: expected the name of a model")
    return model


def _read(wire: Wire, body: dict[str, Any], *, stream: bool) -> Prompt:
    try:
        return wire.read_prompt(body, stream=stream)
    except (AttributeError, KeyError, TypeError) as error:
        raise PromptError(f"the body does not have the shape of a request: {error}") from None


def _overridden(behaviour: Behaviour, prompt: Prompt) -> Behaviour:
    """The behaviour as the last thing the user said wants it, if that begins with ``?key=``."""
    said = next((turn.text for turn in reversed(prompt.turns) if turn.role == "user"), "")
    if re.match(r"\?[a-z_]+=", said):
        return override(behaviour, said[1:].strip())
    return behaviour


def _is_loopback(address: str | None) -> bool:
    return address is not None and ipaddress.ip_address(address.split("%")[0]).is_loopback


def _json(status: int, value: dict[str, Any]) -> web.Response:
    return web.Response(status=status, body=dumps(value), content_type="application/json")
