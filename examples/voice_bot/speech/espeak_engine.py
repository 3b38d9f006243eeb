"""Drives espeak-ng through its C interface: text in, 22.05 kHz samples out, 500 times real time.

The library has global state: one engine per process, one utterance at a time. Its callback runs in
the calling thread, and stops the speech by returning 1. espeak-ng is GPL-3 and comes with the
package espeakng-loader, which only this example uses.
"""

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

from pipecat_hedge.race import ConfigurationError

try:
    import espeakng_loader
except ModuleNotFoundError as missing:
    raise ImportError(
        'Offline speech synthesis needs espeakng-loader: pip install "pipecat-hedge[demo]"'
    ) from missing

WORDS_PER_MINUTE = range(80, 451)  # the library clips other rates silently

# From espeak-ng's speak_lib.h.
_SYNCHRONOUS = 2  # espeak_Synth returns when all is spoken
_DONT_EXIT = 0x8000  # report a failure instead of ending the process
_UTF8 = 1
_RATE = 1
_CHUNK_MS = 60  # the library gives no shorter chunks
_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)


@cache
def shared_engine() -> "EspeakEngine":
    """The process's engine, started on first use."""
    return EspeakEngine()


class EspeakEngine:
    """The speech engine: one per process, from `shared_engine`. Thread-safe.

    Attributes:
        sample_rate: Of the speech, 22050 Hz.

    Raises:
        RuntimeError: If the library does not start.
    """

    def __init__(self):
        self._data = Path(espeakng_loader.get_data_path())
        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        self._library.espeak_Synth.argtypes = [
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.c_uint,
            ctypes.c_int,
            ctypes.c_uint,
            ctypes.c_uint,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]
        self._lock = threading.Lock()
        self._on_audio: Callable[[bytes], bool] = lambda audio: False
        self._failure: BaseException | None = None
        self._callback = _Callback(self._deliver)  # keep a reference: the library has a pointer
        # The interface takes the folder that holds espeak-ng-data, or espeak-ng-data itself.
        data = str(self._data).encode()
        self.sample_rate: int = self._library.espeak_Initialize(
            _SYNCHRONOUS, _CHUNK_MS, data, _DONT_EXIT
        )
        if self.sample_rate <= 0:
            raise RuntimeError(
                f"espeak-ng did not start with the data in {self._data}. "
                'Install it again: pip install --force-reinstall "pipecat-hedge[demo]"'
            )
        self._library.espeak_SetSynthCallback(self._callback)

    def check(self, voice: str, words_per_minute: int) -> None:
        """Check a voice and a rate.

        Raises:
            ConfigurationError: If there is no such voice or variant, or the rate is out of range.
        """
        if words_per_minute not in WORDS_PER_MINUTE:
            raise ConfigurationError(
                f"words_per_minute: {words_per_minute} is outside {WORDS_PER_MINUTE.start} to "
                f"{WORDS_PER_MINUTE.stop - 1}. People speak at 150 to 180."
            )
        # The library would silently use the plain voice for an unknown variant.
        _, plus, variant = voice.partition("+")
        variants = {path.name for path in (self._data / "voices" / "!v").iterdir()}
        if plus and variant not in variants:
            raise ConfigurationError(
                f"voice: espeak-ng has no variant {variant!r}. Use one of f1 to f5, m1 to m8, or: "
                f"{', '.join(sorted(variants - _numbered(variants)))}"
            )
        with self._lock:
            self._choose(voice)

    def speak(
        self, text: str, voice: str, words_per_minute: int, on_audio: Callable[[bytes], bool]
    ) -> None:
        """Synthesize in the calling thread; blocks until the text is done.

        Args:
            text: The text.
            voice: A voice's file name, "en-us" or "en" (British) for example, optionally with "+"
                and a variant.
            words_per_minute: The rate.
            on_audio: Gets each chunk of up to 60 ms, 16-bit mono; returning False stops the speech.

        Raises:
            ConfigurationError: If there is no such voice.
        """
        encoded = text.encode()
        with self._lock:
            self._choose(voice)
            self._library.espeak_SetParameter(_RATE, words_per_minute, 0)
            self._on_audio, self._failure = on_audio, None
            self._library.espeak_Synth(encoded, len(encoded) + 1, 0, 1, 0, _UTF8, None, None)
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _choose(self, voice: str) -> None:
        if not voice or self._library.espeak_SetVoiceByName(voice.encode()) != 0:
            languages = sorted(path.name for path in (self._data / "lang" / "gmw").glob("en*"))
            raise ConfigurationError(
                f"voice: espeak-ng has no voice {voice!r}. Use the name of a file, in English: "
                f"{', '.join(languages)}"
            )

    def _deliver(self, samples: "ctypes._Pointer[ctypes.c_short]", count: int, _: int) -> int:
        if count <= 0:
            return 0
        try:
            return 0 if self._on_audio(ctypes.string_at(samples, 2 * count)) else 1
        except BaseException as failure:
            self._failure = failure  # an exception cannot pass through C
            return 1


def _numbered(variants: set[str]) -> set[str]:
    return {name for name in variants if name[0] in "fm" and name[1:].isdigit()}
