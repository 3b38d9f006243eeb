"""What the simulated recogniser hears and the simulated voice says: as the offline ones do."""

from __future__ import annotations

from typing import Any

__all__ = ["recognize", "speak"]


def recognize(samples: Any) -> str:
    """Return what is said in samples (16 kHz, mono, 16 bit)."""
    from examples.voice_bot.speech.grammar_recognizer import shared_recognizer
    from examples.voice_bot.speech.pocketsphinx_stt import RESTAURANT_GRAMMAR

    return shared_recognizer(RESTAURANT_GRAMMAR).recognize(samples.tobytes())


def speak(text: str) -> Any:
    """Return a text's sound as samples (16 kHz, mono, 16 bit)."""
    import numpy as np
    import soxr

    from examples.voice_bot.speech.espeak_engine import shared_engine

    sound, engine = bytearray(), shared_engine()
    engine.speak(text, "en-us+f3", 165, lambda audio: bool(sound.extend(audio) or True))
    return soxr.resample(np.frombuffer(sound, "<i2"), engine.sample_rate, 16000)
