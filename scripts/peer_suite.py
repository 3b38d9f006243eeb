"""Runs Pipecat's own tests with a hedged service in place of each LLM, recogniser or voice.

    python scripts/peer_suite.py CHECKOUT          # of Pipecat, at the installed version's tag
    python scripts/peer_suite.py                   # clones that tag first (needs git and a network)
    python scripts/peer_suite.py --of stt CHECKOUT
    python scripts/peer_suite.py --of tts CHECKOUT

Each test module runs twice, unchanged and with the substitution. A test that passes only unchanged
is a difference, and must be listed in `peer_differences.toml`: the script fails for an unlisted
one, and names entries without a difference.

The substitutions:

- llm: every subclass of ``LLMService`` in a test module's namespace becomes a class that creates a
  ``HedgedLLMService`` with the real service as its only member. Attributes that a test reads, sets
  or patches are the hedged service's if it has them, else the member's.
- stt: every ``STTService`` in a pipeline becomes the primary of a ``HedgedSTTService`` there, whose
  rescue hears nothing. A test keeps the service that it has made.
- tts: every ``TTSService`` in a pipeline becomes the only voice of a ``HedgedTTSService`` there,
  which gets the options that say what is spoken. Any audio counts as speech: that of the tests is
  silent.
"""

from __future__ import annotations

import argparse
import fnmatch
import inspect
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

REPOSITORY = "https://github.com/pipecat-ai/pipecat"
DIFFERENCES = Path(__file__).with_name("peer_differences.toml")
USES = {
    "llm": ("LLMService", "LLMSwitcher", "LLMWithBackend"),
    "stt": ("STTService",),
    "tts": ("TTSService",),
}
"""A test module with none of these names creates no such service."""


def main() -> int:
    """Compare the two runs.

    Returns:
        The exit status: 1 if a difference is not listed, 2 if nothing could be compared.
    """
    parser = argparse.ArgumentParser(description="Run Pipecat's tests on hedged services.")
    parser.add_argument("checkout", nargs="?", type=Path, help="a checkout of Pipecat")
    parser.add_argument("--of", choices=USES, default="llm", help="which services are replaced")
    parser.add_argument("-k", dest="keyword", default="", help="passed on to pytest")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        checkout = options.checkout or _clone(Path(folder))
        modules = [
            path
            for path in sorted((checkout / "tests").glob("test_*.py"))
            if any(name in path.read_text() for name in USES[options.of])
        ]
        if not modules:
            print(f"{checkout}: tests/ has no test of such a service", file=sys.stderr)
            return 2
        bare, hedged = (
            _outcomes(checkout, modules, options.keyword, Path(folder) / mode, mode)
            for mode in ("bare", options.of)
        )
    return _account(options.of, bare, hedged)


def _clone(folder: Path) -> Path:
    checkout = folder / "pipecat"
    tag = f"v{version('pipecat-ai')}"
    subprocess.run(
        ["git", "clone", "--quiet", "--depth", "1", "--branch", tag, REPOSITORY, str(checkout)],
        check=True,
    )
    return checkout


def _outcomes(
    checkout: Path, modules: list[Path], keyword: str, to: Path, mode: str
) -> dict[str, str]:
    names = [str(path.relative_to(checkout)) for path in modules]
    command = [
        sys.executable,
        str(Path(__file__).resolve()),
        "--pytest",
        mode,
        str(to),
        "-k",
        keyword,
    ]
    subprocess.run([*command, *names], cwd=checkout, stdout=subprocess.DEVNULL, check=False)
    if not to.exists():
        raise SystemExit(f"pytest did not run in {checkout}; is pytest-asyncio installed?")
    return json.loads(to.read_text())


def _account(of: str, bare: dict[str, str], hedged: dict[str, str]) -> int:
    reasons: dict[str, str] = tomllib.loads(DIFFERENCES.read_text())[of]
    passed = [test for test, outcome in bare.items() if outcome == "passed"]
    differ = [test for test in passed if hedged.get(test) != "passed"]
    used: set[str] = set()
    unexplained = 0
    for test in differ:
        pattern = next((p for p in reasons if fnmatch.fnmatchcase(test, p)), None)
        if pattern is None:
            unexplained += 1
            print(f"DIFFERS  {test}")
        else:
            used.add(pattern)
            print(f"differs  {test}\n         {reasons[pattern]}")
    same, explained = len(passed) - len(differ), len(differ) - unexplained
    print(f"{len(passed)} tests pass with the bare services, {same} of them with the substitution")
    print(f"{explained} differences accounted for, {unexplained} not")
    modules = {test.partition("::")[0] for test in bare}
    for pattern in reasons:
        if pattern not in used and pattern.partition("::")[0] in modules:
            print(f"{DIFFERENCES.name}: no test needs {pattern!r} any more")
    return 1 if unexplained else 0


# ---- inside pytest


class Recorder:
    """Records each test's outcome."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Record a phase; a test has passed if all of its phases have."""
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.nodeid] = report.outcome


class Substitution:
    """Replaces the services in test modules once they are imported."""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Replace the services in every module that has tests."""
        for module in {item.module for item in items}:
            _substitute(module)


def _substitute(module: ModuleType) -> None:
    from pipecat.services.llm_service import LLMService

    for name, value in list(vars(module).items()):
        if isinstance(value, type) and issubclass(value, LLMService) and value is not LLMService:
            setattr(module, name, _substitute_for(value))


def _substitute_for(real: type[Any]) -> type[Any]:
    from pipecat.frames.frames import LLMContextFrame
    from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
    from pipecat.services.ai_service import AIService
    from pipecat.services.llm_service import LLMService
    from pipecat.services.settings import LLMSettings

    from pipecat_hedge import HedgedLLMService

    for_any = {
        name
        for base in (LLMService, AIService, FrameProcessor)
        for name in inspect.signature(base.__init__).parameters
    } - {"self", "settings", "kwargs"}

    class Forwarding(type(HedgedLLMService)):
        def __getattr__(cls, name: str) -> Any:
            return getattr(real, name)

        def __setattr__(cls, name: str, value: Any) -> None:
            type.__setattr__(cls if name in vars(cls) else real, name, value)

        def __delattr__(cls, name: str) -> None:
            type.__delattr__(cls if name in vars(cls) else real, name)

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real) or type.__instancecheck__(cls, instance)

    class Substitute(HedgedLLMService, metaclass=Forwarding):
        def __init__(self, *args: Any, **kwargs: Any):
            member = vars(self)["_member"] = real(*args, **kwargs)
            own: dict[str, Any] = {name: kwargs[name] for name in for_any & kwargs.keys()}
            if isinstance(instruction := member._settings.system_instruction, str):
                own["settings"] = LLMSettings(system_instruction=instruction)
            super().__init__([member], warm=False, **own)
            if "settings" in own:  # as a pipeline's start does
                self._settings.system_instruction = self._base_system_instruction = instruction
            for name in ("_setup", "_task_manager"):  # a test's service may set itself up
                if (value := vars(member).get(name)) is not None:
                    object.__setattr__(self, name, value)
            vars(self)["_is_made"] = True

        def __getattr__(self, name: str) -> Any:
            return getattr(vars(self)["_member"], name)

        def __setattr__(self, name: str, value: Any) -> None:
            is_own = name in vars(self) or hasattr(HedgedLLMService, name)
            if "_is_made" in vars(self) and not is_own and hasattr(self._member, name):
                setattr(self._member, name, value)
            else:
                object.__setattr__(self, name, value)

        def __delattr__(self, name: str) -> None:
            object.__delattr__(self if name in vars(self) else self._member, name)

        async def _process_context(self, context: Any) -> None:
            await self.process_frame(LLMContextFrame(context), FrameDirection.DOWNSTREAM)

    Substitute.__qualname__ = Substitute.__name__ = real.__name__
    return Substitute


def _host(host: Callable[[Any], Any]) -> None:
    """Have each processor of a pipeline replaced by what a function returns for it."""
    from pipecat.pipeline.pipeline import Pipeline

    create = Pipeline.__init__

    def hosting(self: Pipeline, processors: Sequence[Any], **options: Any) -> None:
        create(self, [host(processor) for processor in processors], **options)

    Pipeline.__init__ = hosting


def _host_recognisers() -> None:
    from collections.abc import AsyncGenerator

    from pipecat.frames.frames import Frame
    from pipecat.processors.frame_processor import FrameProcessor
    from pipecat.services.settings import STTSettings
    from pipecat.services.stt_service import SegmentedSTTService, STTService

    from pipecat_hedge import HedgedSTTService, ProviderStats

    class Silent(SegmentedSTTService):
        async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
            yield None

    hosted: list[STTService] = []  # a hedged service's own pipelines hold its primary, too

    def host(processor: FrameProcessor) -> FrameProcessor:
        if not isinstance(processor, STTService) or processor in hosted:
            return processor
        settings = STTSettings(model=None, language=None)
        rescue = Silent(settings=settings, ttfs_p99_latency=1.0)
        hosted.extend((processor, rescue))
        hedged = HedgedSTTService(processor, rescue, stats=ProviderStats())
        hedged._name = processor.name  # a switcher of the test knows the service
        return hedged

    _host(host)


def _host_voices() -> None:
    from pipecat.processors.frame_processor import FrameProcessor
    from pipecat.services.tts_service import TTSService

    from pipecat_hedge import HedgedTTSService, ProviderStats, Voice

    def host(processor: FrameProcessor) -> FrameProcessor:
        if not isinstance(processor, TTSService) or isinstance(processor, HedgedTTSService):
            return processor
        hedged = HedgedTTSService(
            [Voice("voice", processor)],
            stats=ProviderStats(),
            sample_rate=processor._init_sample_rate,
            skip_text_types=processor._skip_text_types,
            text_transforms=processor._text_transforms,
            transport_destination=processor._transport_destination,
            push_silence_after_stop=processor._push_silence_after_stop,
            silence_time_s=processor._silence_time_s,
        )
        hedged._text_filters, hedged._name = processor._text_filters, processor.name
        processor._skip_text_types, processor._text_transforms = [], []
        processor._text_filters = []
        return hedged

    # The tests' audio is digital silence, and is meant to be heard.
    patch("pipecat_hedge.voice.hosted_voice.detect_speech_onset", lambda *_: 0).start()
    _host(host)


def _run_pytest(mode: str, to: str, arguments: list[str]) -> int:
    import pytest

    sys.path[:] = [
        path for path in sys.path if Path(path or ".").resolve() != Path(__file__).parent
    ]
    recorder = Recorder()
    plugins: list[Any] = [recorder, *([Substitution()] if mode == "llm" else [])]
    if mode == "stt":
        _host_recognisers()
    elif mode == "tts":
        _host_voices()
    options = ["-q", "--tb=short", "--timeout=60", "-p", "no:cacheprovider"]
    options += ["--continue-on-collection-errors", "-o", "addopts=", "-o", "pythonpath="]
    options += ["-o", "asyncio_default_fixture_loop_scope=function"]
    pytest.main([*options, *arguments], plugins)
    Path(to).write_text(json.dumps(recorder.outcomes))
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--pytest"]:
        sys.exit(_run_pytest(sys.argv[2], sys.argv[3], sys.argv[4:]))
    sys.exit(main())
