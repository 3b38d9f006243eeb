"""A request's fields are found as a JSON parser finds them, and only the model's name changes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.tools.proxy import request as module
from pipecat_hedge.tools.proxy.request import ProxiedRequest, find_fields, read_request

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
FIELDS = st.dictionaries(st.text() | st.just('mo"d\\e\\\\l'), JSON)


def read(body: str | bytes, **headers: str) -> ProxiedRequest:
    raw = bytearray(body.encode() if isinstance(body, str) else body)
    return asyncio.run(read_request("/v1/messages", headers, raw))


def sent(body: str | bytes, model: str = "new") -> bytes:
    return b"".join(read(body).body_for(model))


@given(fields=FIELDS, indent=st.sampled_from([None, 0, 3]), ascii_only=st.booleans())
def test_fields_are_found_as_a_parser_finds_them(
    fields: dict[str, Any], indent: int | None, ascii_only: bool
) -> None:
    body = bytearray(json.dumps(fields, indent=indent, ensure_ascii=ascii_only).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SLICE_BYTES", 5)  # each slice ends somewhere else
        found = asyncio.run(find_fields(body))
    assert [(name, json.loads(body[begin:end])) for name, begin, end in found] == [*fields.items()]


@given(before=FIELDS, after=FIELDS)
def test_only_the_model_s_name_changes_in_a_request(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    before.pop("model", None)
    after.pop("model", None)
    parts = [json.dumps(each, indent=1)[1:-1].strip() for each in (before, after)]
    text = "{ " + " , ".join([p for p in (parts[0], '"model" : "old"', parts[1]) if p]) + " }"
    assert sent(text, "näw").decode() == text.replace('"model" : "old"', '"model" : "n\\u00e4w"')


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            '{"m\\u006fdel": "gpt", "x": {"model": "a"}}',
            '{"m\\u006fdel": "new", "x": {"model": "a"}}',
        ),
        ('{"x": {"model": "a"}, "model":"g\\u0070t" }', '{"x": {"model": "a"}, "model":"new" }'),
        ('{"model": "a", "model": "gpt"}', '{"model": "new", "model": "new"}'),
        ('{"x": "\\"model\\": 1", "model": "gpt"}', '{"x": "\\"model\\": 1", "model": "new"}'),
        ('\ufeff {"model": "gpt"}\r\n', '\ufeff {"model": "new"}\r\n'),
    ],
)
def test_the_model_is_replaced_where_a_parser_finds_it(body: str, expected: str) -> None:
    assert read(body).model == "gpt"
    assert sent(body).decode() == expected


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b" ", b"{", b"[]", b'"model"', b'x{"model": "a"}', b'{"model": "a"} x', b"{}"),
        *(b'{"model": "a', b'{"model": "a"', b'{"model"}', b'{"model": }', b'{"x": "\\', b"null"),
        *(b'{"model": "\xff"}', b'{"mod\xffel": "a"}', b'{model: "a"}'),
    ],
)
def test_what_is_no_object_with_a_model_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        read(body)


@pytest.mark.parametrize(
    ("more", "is_stream", "has_tools"),
    [
        ('"stream": true', True, False),
        ('"stream": true, "stream": false', False, False),
        ('"stream": "true", "tools": [ ]', False, False),
        ('"tools": [{"name": "x"}], "functions": null', False, True),
        ('"functions": [{"name": "x"}]', False, True),
    ],
)
def test_whether_it_streams_and_may_call_tools(more: str, is_stream: bool, has_tools: bool) -> None:
    request = read('{"model": "a", ' + more + "}")
    assert (request.is_stream, request.has_tools) == (is_stream, has_tools)


async def test_other_tasks_run_while_a_large_body_is_read() -> None:
    inner = [{"role": "user", "content": 'a "quoted" word'}] * 20_000
    body = bytearray(json.dumps({"model": "a", "messages": inner, "x": "y" * 10**6}).encode())
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    assert len(await find_fields(body)) == 3
    counting.cancel()
    assert turns > 5
