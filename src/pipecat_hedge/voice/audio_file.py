"""Reads audio files as samples: mono, 16 bit, at the rate that is wanted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from pipecat_hedge.race.errors import ConfigurationError

__all__ = ["read_audio"]


def read_audio(path: Path, sample_rate: int) -> npt.NDArray[np.int16]:
    """Read the loudest channel of an audio file.

    Args:
        path: A file of any kind that libsndfile reads, such as WAV or FLAC.
        sample_rate: In Hz; the samples are resampled to it.

    Returns:
        Mono samples, 16 bit; shape (n,).

    Raises:
        ConfigurationError: If the file is missing, is not audio, or holds NaN or infinity.
    """
    if sample_rate <= 0:
        raise ConfigurationError(f"sample_rate: {sample_rate} is not a rate. Use 48000 or 16000.")
    try:
        # Not as int16: libsndfile does not scale files of floating point samples to it.
        samples, file_rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, OSError) as error:
        if not path.exists():
            raise ConfigurationError(
                f"{path}: no such file. Put it there, or correct its name."
            ) from error
        reason = (getattr(error, "error_string", "") or str(error)).rstrip(".")
        raise ConfigurationError(
            f"{path}: not an audio file that can be read ({reason}). Name a WAV or FLAC file."
        ) from error
    if not np.isfinite(samples).all():
        raise ConfigurationError(
            f"{path}: holds samples that are no numbers (NaN or infinite). Make the file again, as "
            "16 bit."
        )
    loudest = samples[:, int(np.argmax(np.abs(samples).max(axis=0, initial=0.0)))]
    mono = np.clip(np.rint(loudest * 32768), -32768, 32767).astype(np.int16)
    if sample_rate == file_rate:
        return mono
    return np.asarray(soxr.resample(mono, file_rate, sample_rate), dtype=np.int16)
