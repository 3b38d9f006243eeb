"""A client's request, read only as far as the proxy has to know."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from multidict import CIMultiDict

MAX_FIELD_BYTES = 2**16
MAX_FIELDS = 256
"""The longest header, and the most headers, of a request or a response. aiohttp's own limits, 8190
bytes and 128, are less than the SDKs' clients accept."""
_OWN_HEADERS = {
    *("host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer"),
    *("upgrade", "proxy-authorization", "proxy-connection", "expect", "accept-encoding", "cookie"),
    *("authorization", "x-api-key", "api-key", "idempotency-key", "cache-control"),
    *("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"),
    "content-encoding",  # the server has unpacked the body
}
"""Headers that end at the proxy: a client's key above all."""
_SLICE_SECS = 0.001
_SLICE_BYTES = 2**16
_NOTHING = re.compile(rb'(?:null|false|0|""|\[\s*\]|\{\s*\})?')


@dataclass(frozen=True, slots=True)
class ProxiedRequest:
    """A client's request.

    Parameters:
        path: Its path at the proxy, with the query.
        headers: Its headers.
        body: Its JSON, byte for byte.
        model: The model that it asks for; not a string in a faulty request.
        is_stream: Whether the answer is to be streamed.
        has_tools: Whether the model may call tools.
        has_choices: Whether several answers are asked for, which come in one stream.
        model_at: Where the body has the model: the beginning and the end of each value.
    """

    path: str
    headers: Mapping[str, str]
    body: bytearray
    model: object
    is_stream: bool
    has_tools: bool
    has_choices: bool
    model_at: tuple[tuple[int, int], ...]

    @property
    def forwarded(self) -> CIMultiDict[str]:
        """The headers that go on to an upstream."""
        own = _OWN_HEADERS | named_by_connection(self.headers)
        return CIMultiDict((k, v) for k, v in self.headers.items() if k.lower() not in own)

    @property
    def found(self) -> Mapping[str, Any]:
        """The body, parsed.

        Raises:
            ValueError: If a part of it is no JSON.
        """
        return json.loads(self.body)

    def body_for(self, model: str) -> list[memoryview]:
        """The body with another model and no other byte changed, in parts: none is copied."""
        body, name = memoryview(self.body), memoryview(json.dumps(model).encode())
        parts, at = list[memoryview](), 0
        for begin, end in self.model_at:
            parts += [body[at:begin], name]
            at = end
        return [*parts, body[at:]]


def named_by_connection(headers: Mapping[str, str]) -> set[str]:
    """The headers that ``Connection`` names: they are for one connection (RFC 9110, 7.6.1)."""
    lines = (value for name, value in headers.items() if name.lower() == "connection")
    return {each.strip() for each in ",".join(lines).lower().split(",")}


async def read_request(path: str, headers: Mapping[str, str], body: bytearray) -> ProxiedRequest:
    """Read a request.

    Raises:
        ValueError: If the body is no JSON object, or has no model.
        RecursionError: If its model is no name, but deeply nested.
    """
    fields = await find_fields(body)
    values = {name: body[begin:end].strip() for name, begin, end in fields if name in _READ}
    # Parsers differ in which of two fields with one name they take.
    model_at = tuple(
        (begin + body[begin:end].index(value.strip()), begin + len(value.rstrip()))
        for name, begin, end in fields
        if name == "model" and (value := body[begin:end])
    )
    return ProxiedRequest(
        path,
        headers,
        body,
        model=json.loads(values.get("model", b"")),
        is_stream=values.get("stream") == b"true",
        has_tools=any(not _NOTHING.fullmatch(values.get(n, b"")) for n in ("tools", "functions")),
        has_choices=values.get("n", b"1") not in (b"1", b"null"),
        model_at=model_at,
    )


_READ = ("model", "stream", "tools", "functions", "n")


async def find_fields(body: bytearray) -> list[tuple[str, int, int]]:
    """The fields of a JSON object: each name, and where its value begins and ends.

    What is within a value is the upstream's affair. ``json.loads`` of 20 MB stops all streams for
    0.2 s, in a thread as well; this gives way to them every ``_SLICE_SECS``.

    Raises:
        ValueError: If it is no JSON object.
    """
    fields = list[tuple[str, int, int]]()
    depth, at = 0, len(_BOM) if body.startswith(_BOM) else 0
    name, value_at, string_at = b"", -1, -1
    due = time.perf_counter() + _SLICE_SECS
    while True:
        if time.perf_counter() > due:
            await asyncio.sleep(0)
            due = time.perf_counter() + _SLICE_SECS
        skipped = _STRING if string_at >= 0 else _VALUES if depth > 1 else _SCALARS
        begin, at = at, skipped.match(body, at, at + _SLICE_BYTES).end()  # pyright: ignore[reportOptionalMemberAccess]
        mark = body[at : at + 1]
        if at - begin == _SLICE_BYTES or (mark == b"\\" and at > begin):
            continue
        if depth == 0 and (mark != b"{" or body[:at].removeprefix(_BOM).strip()):
            raise ValueError("it is no object")
        if string_at >= 0:
            if mark != b'"':
                raise ValueError("a string has no end")
            if depth == 1 and value_at < 0:
                name = body[string_at : at + 1]
            string_at = -1
        elif mark == b'"':
            string_at = at
        elif mark == b":":
            value_at = at + 1 if value_at < 0 else value_at
        elif mark in (b"{", b"["):
            depth += 1
        elif mark not in (b"}", b"]", b","):
            raise ValueError("the object has no end")
        else:
            if depth == 1 and name:
                if value_at < 0:
                    raise ValueError("a name has no value")
                fields.append((json.loads(name), value_at, at))
                name, value_at = b"", -1
            depth -= mark != b","
            if depth == 0:
                if body[at + 1 :].strip():
                    raise ValueError("something follows the object")
                return fields
        at += 1


_BOM = b"\xef\xbb\xbf"
_SCALARS = re.compile(rb'[^"{}\[\],:]*+')
_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_VALUES = re.compile(rb'(?:[^"{}\[\]]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
"""What may be skipped outside of values, in a string, and within a value: all but its brackets."""
