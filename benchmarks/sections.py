"""What is asked of every peer: the sections of a run. Imported by all processes, needs no package.

A turn's number decides what its providers do, so the trace is the same for every peer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PROFILE = "gemma-4-31b-baseten"
"""The providers' time to first token in `calm`: a hosted model's published figures."""
PROVIDERS = ("a", "b")
"""Models of two providers, in the order in which peers get them. Only the first has faults."""
ANSWER = (
    "Yes, we are open until nine tonight. "
    "The kitchen closes half an hour before that, so do come by in time."
)
SENTENCE = ANSWER.partition(".")[0] + "."
TOOL, ARGUMENTS = "book_table", {"people": 4, "time": "half past seven", "name": "Ada Lovelace"}
FAULTS = {
    "hang": "hang",
    "keepalives": "keepalives",
    "529": "529",
    "cut": "cut",
    "cut_tool": "cut",
    "400_once": "400",
}
"""Sections in which something befalls the first provider in every second turn, and the fault."""
SPOKEN = "do you have a table for two"
"""What callers say to a recogniser."""
SPEAKERS = ("sonic-3?region=a", "sonic-3?region=b")
"""Two voices."""
RECOGNISERS = ("nova-3-general@fault=late,delay=5", "nova-3-general")
"""Two recognisers, of which the first one's transcripts are 5 s late."""
_TURN = re.compile(r"Turn (\w+) (\d+)")


@dataclass(frozen=True)
class Section:
    """Calls that run at the same time.

    Parameters:
        name: Says what the providers do.
        callers: Simultaneous calls, each with objects of its own, as users have them.
        turns: Turns of each call, one after another; an even number.
        give_up_secs: A turn that is not over by then is lost.
    """

    name: str
    callers: int
    turns: int
    give_up_secs: float = 15.0

    @property
    def has_tools(self) -> bool:
        """Whether the model may call a tool, and does."""
        return "tool" in self.name

    def is_faulty(self, turn: int) -> bool:
        """Whether a fault befalls the turn."""
        if self.name == "late_transcript":
            return True
        return (self.name in FAULTS or self.name in VOICES) and turn % 2 == 1


def sections(turns: int) -> list[Section]:
    """The sections of an LLM, for so many turns of a usual day."""
    callers = min(30, turns // 4)
    faulty = [Section(name, min(10, callers), 4) for name in FAULTS]
    return [
        Section("one", 1, min(50, turns // 4)),
        Section("fifty", 50, 2),
        Section("calm", callers, 2 * round(turns / callers / 2), 60.0),
        *faulty,
    ]


VOICES = {name: Section(name, 4, 6) for name in ("silent_voice", "late_transcript")}
"""The section of a voice, in which the first one is silent in every second turn; and that of a
recogniser."""


def prompt(section: str, turn: int) -> str:
    """The caller's question."""
    return f"Turn {section} {turn}: are you open tonight?"


def turn_of(text: str) -> tuple[str, int] | None:
    """The section and the number of the turn that asks this."""
    found = _TURN.search(text)
    return (found[1], int(found[2])) if found else None
