"""An upstream that answers 400 to what the vendors document that they reject, in four wires.

The model's name says which answers are its. A model named ``strict...`` has a chat template such as
Mistral's: it knows no ``developer``, and the caller and the model take turns. One named
``mistral...`` wants ids of nine letters or digits as well.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

UNCHECKED = "skip_thought_signature_validator"


@dataclass(frozen=True)
class Answer:
    """One answer of a model.

    Parameters:
        text: What it says.
        call: The id, the name and the arguments of a tool that it calls then, or None.
        thinks: Whether it thinks before.
        secs: When it begins.
        is_cut: Whether the connection is lost after the text.
    """

    text: str = ""
    call: tuple[str | None, str, Mapping[str, Any]] | None = None
    thinks: bool = False
    secs: float = 0.0
    is_cut: bool = False


class Rejected(Exception):
    """A request that the vendor rejects."""


def require(condition: object, why: str) -> None:
    if not condition:
        raise Rejected(why)


@dataclass
class StrictUpstream:
    """What it is to answer, and what it was asked.

    Parameters:
        answers: The answers of each model, one after the other; the last one is repeated.
        is_race: Whether the models are asked at the same time: none answers before all are asked.
        prompts: The messages of each request, by model.
        rejections: Why requests were rejected.
        url: Where it is.
    """

    answers: Mapping[str, Sequence[Answer]]
    is_race: bool = False
    prompts: dict[str, list[list[Any]]] = field(default_factory=dict[str, list[list[Any]]])
    rejections: list[str] = field(default_factory=list[str])
    url: str = ""
    _asked: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def _next(self, model: str, prompt: list[Any]) -> Answer:
        seen, script = self.prompts.setdefault(model, []), self.answers[model]
        seen.append(prompt)
        number = len(seen)
        if self.is_race:
            async with self._asked:
                self._asked.notify_all()
                await self._asked.wait_for(lambda: self._all_were_asked(number))
        return script[min(number, len(script)) - 1]

    def _all_were_asked(self, times: int) -> bool:
        asked = all(len(self.prompts.get(model, ())) >= times for model in self.answers)
        return asked or bool(self.rejections)

    async def openai(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        return await self._respond(
            request, body["model"], body["messages"], check_chat, chat_events
        )

    async def anthropic(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        thinking = body.get("thinking", {}).get("type", "disabled")

        def check(messages: list[Any], model: str) -> None:
            check_claude(messages, model, thinking)

        messages = without_cache_marks(body["messages"])
        return await self._respond(request, body["model"], messages, check, claude_events)

    async def google(self, request: web.Request) -> web.StreamResponse:
        body, model = await request.json(), request.match_info["model"]
        return await self._respond(request, model, body["contents"], check_gemini, gemini_events)

    async def responses(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        reasons = body.get("reasoning", {}).get("effort", "none") != "none"

        def check(items: list[Any], model: str) -> None:
            check_responses(items, model, reasons=reasons)

        events = responses_events
        return await self._respond(request, body["model"], body["input"], check, events)

    async def _respond(
        self, request: web.Request, model: str, prompt: list[Any], check: Any, events: Any
    ) -> web.StreamResponse:
        try:
            check(prompt, model)
        except Rejected as rejected:
            self.rejections.append(f"{model}: {rejected}")
            async with self._asked:
                self._asked.notify_all()
            error = {"message": str(rejected), "type": "invalid_request_error", "code": 400}
            return web.json_response({"type": "error", "error": error}, status=400)
        answer = await self._next(model, prompt)
        await asyncio.sleep(answer.secs)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events(answer, model, prompt):
            if event is None:  # cut here
                await asyncio.sleep(0.05)
                assert request.transport is not None
                request.transport.abort()
                return response
            await response.write(event)
        return response


def pieces(prompt: list[Any]) -> list[str]:
    """What a prompt consists of; services merge the parts of messages side by side.

    Without the blank with which Pipecat's service for Mistral ends a prompt after a tool.
    """
    found = list[str]()
    for message in prompt[:-1] if "prefix" in prompt[-1] else prompt:
        parts = message.get("parts", message.get("content"))
        parts = parts if isinstance(parts, list) else [message]
        found += [json.dumps([message.get("role"), part], sort_keys=True) for part in parts]
    return found


# ---- chat completions


def check_chat(messages: list[Any], model: str) -> None:
    pattern = r"[a-zA-Z0-9]{9}" if model.startswith("mistral") else r"[a-zA-Z0-9_-]{1,40}"
    is_strict = model.startswith(("strict", "mistral"))
    open_ids, turns = list[str](), list[str]()
    for n, message in enumerate(messages):
        role, calls = message["role"], message.get("tool_calls") or []
        for call in calls:
            require(re.fullmatch(pattern, call["id"] or ""), f"tool call id was {call['id']!r}")
            open_ids.append(call["id"])
        if role == "tool":
            require(message["tool_call_id"] in open_ids, "a tool message without its call")
            open_ids.remove(message["tool_call_id"])
        elif not calls:
            require(not open_ids, "tool calls must be followed by tool messages")
            if role in ("user", "assistant"):
                turns.append(role)
        if is_strict:
            require(role in ("system", "user", "assistant", "tool"), f"unexpected role {role}")
            require(role != "system" or n == 0, "system message must be at the beginning")
    require(not open_ids, "tool calls must be followed by tool messages")
    if is_strict:
        alternate = ["user", "assistant"] * len(turns)
        roles = "conversation roles must alternate user/assistant/user/assistant/..."
        require(turns == alternate[: len(turns)], roles)
        last = messages[-1]
        ends = last["role"] in ("user", "tool") or last.get("prefix")
        require(ends, "expected last role user or tool")


def chat_events(answer: Answer, model: str, prompt: list[Any]) -> list[bytes | None]:
    base = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": model}

    def event(delta: Any, reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return f"data: {json.dumps({**base, 'choices': [choice]})}\n\n".encode()

    events: list[bytes | None] = [event({"role": "assistant", "content": ""})]
    events += [event({"content": word}) for word in words(answer.text)]
    if answer.is_cut:
        return [*events, None]
    if answer.call is not None:
        call_id, name, arguments = answer.call
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"index": 0, "type": "function", "function": function}
        if call_id is not None:
            call["id"] = call_id
        events.append(event({"tool_calls": [call]}))
    events.append(event({}, "stop" if answer.call is None else "tool_calls"))
    return [*events, b"data: [DONE]\n\n"]


def words(text: str) -> list[str]:
    return re.findall(r"\S+\s*", text)


# ---- Anthropic


def without_cache_marks(messages: list[Any]) -> list[Any]:
    """The messages with a list of blocks as their content, and without marks for the cache."""
    found = list[Any]()
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        blocks = [{k: v for k, v in block.items() if k != "cache_control"} for block in blocks]
        found.append({**message, "content": blocks})
    return found


def signature(before: list[Any]) -> str:
    """What Claude signs a thought with; it depends on what came before."""
    return hashlib.sha256(json.dumps(pieces(before)).encode()).hexdigest()


def check_claude(messages: list[Any], model: str, thinking: str) -> None:
    seen = set[str]()
    for n, message in enumerate(messages):
        require(message["role"] == ("assistant" if n % 2 else "user"), "roles must alternate")
        require(message.keys() == {"role", "content"}, "extra inputs are not permitted")
        blocks = message["content"]
        require(blocks and all(b.get("text") != "" for b in blocks), "text must be non-empty")
        kinds = [block["type"] for block in blocks]
        results = {b["tool_use_id"] for b in blocks if b["type"] == "tool_result"}
        uses = [b["id"] for b in blocks if b["type"] == "tool_use"]
        before = messages[n - 1]["content"] if n else []
        require(
            results == {b["id"] for b in before if b["type"] == "tool_use"},
            "each tool_use must have its tool_result in the next message",
        )
        require(kinds[: len(results)] == ["tool_result"] * len(results), "tool_result comes first")
        for use in uses:
            require(re.fullmatch(r"[a-zA-Z0-9_-]+", use), f"tool_use.id {use!r}")
            require(use not in seen, "tool_use ids must be unique")
            seen.add(use)
        require(kinds[-1] != "thinking", "the final block cannot be thinking")
        for number, block in enumerate(blocks):
            if block["type"] == "thinking":
                before = [*messages[:n], {**message, "content": blocks[:number]}]
                is_signed = block["signature"] == signature(before)
                require(is_signed, "invalid signature: bound to a different conversation")
    require(messages[-1]["role"] == "user", "no prefill")
    loop = [m for m in messages[-2:] if m["role"] == "assistant"]
    is_loop = any(b["type"] == "tool_result" for b in messages[-1]["content"])
    for block in [m["content"][0] for m in loop if is_loop]:
        if thinking == "enabled":
            require(block["type"] == "thinking", "expected thinking, but found tool_use")
        if thinking == "disabled":
            require(block["type"] != "thinking", "thinking is disabled")


def claude_events(answer: Answer, model: str, prompt: list[Any]) -> list[bytes | None]:
    message = {"id": "m1", "type": "message", "role": "assistant", "model": model, "content": []}
    message |= {"stop_reason": None, "usage": {"input_tokens": 9, "output_tokens": 1}}
    found: list[Any] = [{"type": "message_start", "message": message}]

    def add(block: Any, *deltas: Any) -> None:
        index = sum(each["type"] == "content_block_start" for each in found)
        found.append({"type": "content_block_start", "index": index, "content_block": block})
        found.extend(
            {"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas
        )
        found.append({"type": "content_block_stop", "index": index})

    if answer.thinks:
        add(
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "Hm."},
            {"type": "signature_delta", "signature": signature(prompt)},
        )
    if answer.text:
        deltas = [{"type": "text_delta", "text": word} for word in words(answer.text)]
        add({"type": "text", "text": ""}, *deltas)
    if answer.call is not None:
        call_id, name, arguments = answer.call
        add(
            {"type": "tool_use", "id": call_id, "name": name, "input": {}},
            {"type": "input_json_delta", "partial_json": json.dumps(arguments)},
        )
    reason = "end_turn" if answer.call is None else "tool_use"
    found.append({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {}})
    found.append({"type": "message_stop"})
    events: list[bytes | None] = [
        f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in found
    ]
    return [*events[:-3], None] if answer.is_cut else events


# ---- Gemini


def check_gemini(contents: list[Any], model: str) -> None:
    for n, content in enumerate(contents):
        calls = [p for p in content["parts"] if "functionCall" in p]
        results = [p for p in content["parts"] if "functionResponse" in p]
        if calls:
            signature = base64.urlsafe_b64decode(calls[0].get("thoughtSignature", "")).decode()
            why = f"function call is missing a thought_signature: {signature!r}"
            require(signature in (UNCHECKED, f"gemini {model}"), why)
            require(n and contents[n - 1]["role"] == "user", "a call comes after a user turn")
            answered = [p for p in contents[n + 1]["parts"] if "functionResponse" in p]
            require(len(answered) == len(calls), "as many responses as calls")
        if results:
            before = [p for p in contents[n - 1]["parts"] if "functionCall" in p]
            require(len(before) == len(results), "as many responses as calls")
    require(contents[-1]["role"] == "user", "ends with a user turn")


def gemini_events(answer: Answer, model: str, prompt: list[Any]) -> list[bytes | None]:
    parts: list[Any] = [{"text": word} for word in words(answer.text)]
    if answer.call is not None:
        call_id, name, arguments = answer.call
        part: Any = {"functionCall": {"id": call_id, "name": name, "args": arguments}}
        if answer.thinks:
            part["thoughtSignature"] = base64.b64encode(f"gemini {model}".encode()).decode()
        parts.append(part)
    events = list[bytes | None]()
    for n, part in enumerate(parts):
        candidate: Any = {"content": {"role": "model", "parts": [part]}, "index": 0}
        if n == len(parts) - 1:
            candidate["finishReason"] = "STOP"
        events.append(f"data: {json.dumps({'candidates': [candidate]})}\n\n".encode())
    return events


# ---- Responses


def check_responses(items: list[Any], model: str, *, reasons: bool) -> None:
    open_ids = list[str]()
    for n, item in enumerate(items):
        kind = item.get("type", "message")
        after = items[n + 1] if n + 1 < len(items) else {}
        if kind == "reasoning":
            require(reasons, "reasoning items can only be provided to a reasoning model")
            sealed = item["encrypted_content"] == f"sealed {model}"
            require(sealed, "the encrypted content could not be verified")
            follows = after.get("type") == "function_call" or after.get("role") == "assistant"
            require(follows, "reasoning was provided without its required following item")
        elif kind == "function_call":
            require(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", item["call_id"]), "invalid call_id")
            open_ids.append(item["call_id"])
        elif kind == "function_call_output":
            require(item["call_id"] in open_ids, "no tool call found for function call output")
            open_ids.remove(item["call_id"])
    require(not open_ids, "no tool output found for function call")


def responses_events(answer: Answer, model: str, prompt: list[Any]) -> list[bytes | None]:
    found = list[Any]()
    if answer.thinks:
        item = {"type": "reasoning", "id": f"rs_{model}", "summary": []}
        item["encrypted_content"] = f"sealed {model}"
        found.append({"type": "response.output_item.done", "output_index": 0, "item": item})
    for word in words(answer.text):
        delta = {"type": "response.output_text.delta", "item_id": "msg_1", "delta": word}
        found.append({**delta, "output_index": 0, "content_index": 0, "logprobs": []})
    if answer.call is not None:
        call_id, name, arguments = answer.call
        item: Any = {"type": "function_call", "id": "fc_1", "call_id": call_id, "name": name}
        item |= {"arguments": "", "status": "in_progress"}
        found.append({"type": "response.output_item.added", "output_index": 0, "item": item})
        item = {**item, "arguments": json.dumps(arguments), "status": "completed"}
        found.append({"type": "response.output_item.done", "output_index": 0, "item": item})
    response = {"id": "r1", "object": "response", "created_at": 1, "model": model, "output": []}
    response |= {"status": "completed", "parallel_tool_calls": True, "tool_choice": "auto"}
    response |= {"tools": [], "usage": None}
    found.append({"type": "response.completed", "response": response})
    return [
        f"event: {each['type']}\ndata: {json.dumps({**each, 'sequence_number': n})}\n\n".encode()
        for n, each in enumerate(found)
    ]


@asynccontextmanager
async def strict_upstream(
    answers: Mapping[str, Sequence[Answer]], *, is_race: bool = False
) -> AsyncIterator[StrictUpstream]:
    """Run one."""
    upstream = StrictUpstream(answers, is_race=is_race)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", upstream.openai)
    app.router.add_post("/v1/messages", upstream.anthropic)
    app.router.add_post("/v1/responses", upstream.responses)
    app.router.add_post("/v1beta/models/{model}:streamGenerateContent", upstream.google)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert runner.addresses
    upstream.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield upstream
    finally:
        await runner.cleanup()
