"""A picture of a turn: the caller above, the bot below, and the gap between them marked. Pure.

SVG, because it is text: it goes into the report as it is, and scales.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape

import numpy as np
import numpy.typing as npt

from pipecat_hedge.tools.replay.conversation import FILLER_SECS, HeardTurn, Waves

__all__ = ["STYLE", "picture"]

WIDTH, LANE, GAP, AXIS = 860, 56, 8, 22
LEFT = 52
LETTER = 6.6
"""About as wide is a letter of what is told of the gap."""
HEIGHT = 2 * LANE + GAP + AXIS
QUIETEST_DB = -54.0
"""What is drawn as nothing: levels are drawn in decibels, as they are heard."""
STYLE = """
.turn { font: 12px system-ui, sans-serif; --ink: #1d2733; --dim: #66727f; --caller: #3b6ea8;
  --bot: #2e8b6f; --late: #b4531a; --band: #f6e7d8; --line: #d7dde3; }
@media (prefers-color-scheme: dark) { .turn { --ink: #e6ebf0; --dim: #98a4b0; --caller: #7fb0e6;
  --bot: #63c7a6; --late: #f0a268; --band: #3d2f22; --line: #3a444e; } }
.turn text { fill: var(--dim); } .turn .label { fill: var(--ink); }
.turn .caller { fill: var(--caller); } .turn .bot { fill: var(--bot); }
.turn .band { fill: var(--band); } .turn .edge { stroke: var(--late); stroke-width: 1.5; }
.turn .gap { fill: var(--late); font-weight: 600; } .turn .tick { stroke: var(--line); }
.turn .other { stroke: var(--bot); }
.turn .stage { stroke: var(--dim); stroke-dasharray: 2 3; }
"""


def picture(turn: HeardTurn, *, alone: bool = False) -> str:
    """Draw a turn.

    Args:
        turn: The turn.
        alone: Whether it is a file of its own, which needs its style with it.

    Returns:
        An SVG element; a line that says why if nothing was said.
    """
    title = escape(f"{turn.recording}, run {turn.run}, caller {turn.caller}")
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="turn" role="img" aria-label="{title}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" width="100%"><title>{title}</title>'
    )
    parts = [head, f"<style>{STYLE}</style>" if alone else ""]
    if turn.waves is None:
        parts.append(f'<text x="8" y="24">{escape(turn.error or "nothing was said")}</text>')
    else:
        parts += _drawn(turn, turn.waves)
    return "".join(parts) + "</svg>"


def _drawn(turn: HeardTurn, waves: Waves) -> list[str]:
    def x(secs: float) -> float:
        return LEFT + (WIDTH - LEFT - 8) * min(max(secs / waves.secs, 0.0), 1.0)

    bottom = 2 * LANE + GAP
    parts: list[str] = []
    answered = turn.voice_to_voice_secs
    answer_at = None if answered is None else waves.spoken_secs + answered
    if answer_at is not None and answer_at > waves.spoken_secs:
        left, right = x(waves.spoken_secs), x(answer_at)
        parts.append(
            f'<rect class="band" x="{left:.1f}" y="0" width="{right - left:.1f}" '
            f'height="{bottom}"/>'
        )
    for name, values, top in (
        ("caller", waves.caller, 0),
        ("bot", waves.bot, LANE + GAP),
    ):
        parts.append(f'<path class="{name}" d="{_wave(values, top, x, waves.secs)}"/>')
        parts.append(f'<text class="label" x="4" y="{top + LANE / 2 + 4:.0f}">{name}</text>')
    step = _step(waves.secs)
    for number in range(int(waves.secs / step) + 1):
        at = x(number * step)
        parts.append(
            f'<line class="tick" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" y2="{bottom + 5}"/>'
            f'<text x="{at:.1f}" y="{HEIGHT - 3}" text-anchor="middle">{number * step:g} s</text>'
        )
    heard = waves.heard_secs
    if heard is not None and (answer_at is None or answer_at > heard + FILLER_SECS):
        parts += _other_sound(turn, x(heard), x(max(heard, waves.spoken_secs)))
    marks = [waves.spoken_secs, answer_at]
    for secs in marks:
        if secs is not None:
            parts.append(
                f'<line class="edge" x1="{x(secs):.1f}" x2="{x(secs):.1f}" y1="0" y2="{bottom}"/>'
            )
    for stage, secs in turn.stages.items():
        at = x(waves.spoken_secs + secs)
        name = escape(f"{stage.replace('_', ' ')} {secs:.2f} s")
        parts.append(
            f'<line class="stage" x1="{at:.1f}" x2="{at:.1f}" y1="{LANE}" y2="{bottom}">'
            f"<title>{name}</title></line>"
        )
    # What an error says behind a semicolon is for the page.
    why = (turn.error or "no answer").partition(";")[0]
    told = why if answered is None else f"{answered:.2f} s"
    if turn.silent_after_secs is not None:
        told += f", silent {turn.silent_after_secs:.2f} s after the interruption began"
    spoken = x(waves.spoken_secs)
    if spoken > WIDTH * 0.7:
        at, anchor = spoken - 6, "end"
    else:
        at, anchor = min(spoken + 6, WIDTH - LETTER * len(told)), "start"
    parts.append(
        f'<text class="gap" x="{at:.1f}" y="{LANE + GAP / 2 + 4:.0f}" '
        f'text-anchor="{anchor}">{escape(told)}</text>'
    )
    return parts


def _other_sound(turn: HeardTurn, at: float, silent_from: float) -> list[str]:
    """Name the sound that was no answer: above its beginning, where the caller is silent.

    The bot's own lane is full of it. Where nothing tells that it was a filler, it is a sound.
    """
    is_answer_perhaps = turn.voice_to_voice_secs is None and turn.answer_text
    name = "sound" if is_answer_perhaps else "filler"
    left = min(max(at, silent_from) + 4, WIDTH - 40)
    return [
        f'<line class="other" x1="{at:.1f}" x2="{at:.1f}" y1="{LANE - 20}" y2="{LANE - 6}"/>',
        f'<text class="label" x="{left:.1f}" y="{LANE - 11}">{name}</text>',
    ]


def _wave(
    values: npt.NDArray[np.float64], top: int, x: Callable[[float], float], secs: float
) -> str:
    """The outline of a wave, as high as it is loud, around the middle of its lane."""
    decibels = 20 * np.log10(np.maximum(values, 1e-6))
    heights = np.clip(1 - decibels / QUIETEST_DB, 0.0, 1.0) * (LANE / 2 - 3) + 0.4
    middle, place = top + LANE / 2, np.linspace(0.0, secs, len(values))
    at = [x(float(p)) for p in place]
    above = [f"{a:.1f},{middle - h:.1f}" for a, h in zip(at, heights, strict=True)]
    below = [f"{a:.1f},{middle + h:.1f}" for a, h in zip(at, heights, strict=True)]
    return f"M{' '.join(above)} {' '.join(reversed(below))}Z"


def _step(secs: float) -> float:
    """Seconds between two ticks, for no more than a dozen of them."""
    return next(step for step in (0.5, 1, 2, 5, 10, 60) if secs / step <= 12 or step == 60)
