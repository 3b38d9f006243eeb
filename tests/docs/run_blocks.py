"""Runs each block of the documentation's Python alone, or after those it names.

It is a process of its own: some blocks start servers and exporters. No block reaches the network.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import traceback
import urllib.request
from dataclasses import replace
from typing import Any

from pipecat.processors.frame_processor import FrameProcessor

from tests.docs.pages import PAGES, README, Block

OPTIONAL = ("livekit",)
"""Of others' packages, which need not be there."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Transport:
    """Stands for a bot's transport, which opens microphones or waits for a caller."""

    def input(self) -> FrameProcessor:
        return FrameProcessor()

    output = input


def refuse_network(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: refuse connections that leave this machine."""
    if event == "socket.connect" and (address := arguments[1])[0] not in LOOPBACK:
        raise PermissionError(f"a block connects to {address}")


def run(*blocks: Block) -> str:
    """Run blocks one after the other, as one file; returns what is printed."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for block in blocks:
            code = re.sub(r"(start_http_server)\(\d+\)", r"\1(0)", block.code)  # it may be taken
            exec(compile(code, str(block), "exec", dont_inherit=True), names)
        if "def bot(transport, stt, tts)" in blocks[-1].code:
            names["bot"](Transport(), FrameProcessor(), FrameProcessor())
    return printed.getvalue()


def main() -> None:
    """Run everything, and print what went wrong and what README's example has printed."""
    sys.addaudithook(refuse_network)
    failed: list[str] = []
    printed: list[str] = []
    example = next(README.blocks("python"))
    for block in (block for page in PAGES for block in page.blocks("python")):
        try:
            output = run(*block.with_those_before)
            if block == example:
                printed.append(output)
        except ModuleNotFoundError as error:
            if error.name not in OPTIONAL:
                failed.append(f"{block}\n{error}")
        except Exception:
            failed.append(f"{block}\n{traceback.format_exc(limit=-2)}")
    (change,) = re.findall(r'^Then write `(model=".*?")`', README.text, re.M)
    printed.append(run(replace(example, code=re.sub(r'model="[\w.-]+"', change, example.code))))
    simulator = os.environ["ANTHROPIC_BASE_URL"]
    urllib.request.urlopen(f"{simulator}/simulator/conditions", b'{"fault": "529"}').close()
    printed.append(run(example))
    print(json.dumps({"failed": failed, "printed": printed}), flush=True)
    os._exit(0)  # exporters would look for a collector


if __name__ == "__main__":
    sys.exit(main())
