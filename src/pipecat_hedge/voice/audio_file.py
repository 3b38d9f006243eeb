"""Reads audio files as mono 16-bit samples at a given rate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from pipecat_hedge.race.errors import ConfigurationError


def read_audio(path: Path, sample_rate: int) -> npt.NDArray[np.int16]:
    """Read the loudest channel of an audio file.

    Args:
        path: A file of any format that libsndfile reads, such as WAV or FLAC.
        sample_rate: In Hz; the samples are resampled to it.

    Returns:
        Mono 16-bit samples; shape (n,).

    Raises:
        ConfigurationError: If the file is missing, is not audio, or has NaN or infinite samples.
    """
    try:
        # Not int16: libsndfile does not scale floating-point files to it.
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
            f"{path}: contains NaN or infinite samples. Convert the file to 16 bit."
        )
    loudest = samples[:, int(np.argmax(np.abs(samples).max(axis=0, initial=0.0)))]
    mono = np.clip(np.rint(loudest * 32768), -32768, 32767).astype(np.int16)
    if sample_rate == file_rate:
        return mono
    return np.asarray(soxr.resample(mono, file_rate, sample_rate), dtype=np.int16)
