"""Offline speech services, for a bot without cloud keys."""

from examples.voice_bot.speech.espeak_tts import EspeakTTSService
from examples.voice_bot.speech.pocketsphinx_stt import PocketsphinxSTTService

__all__ = ["EspeakTTSService", "PocketsphinxSTTService"]
