"""Writes what was measured into the page, between its two markers, and draws the picture."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from jinja2 import Template

from benchmarks.peers import Peer
from benchmarks.provider import QUICK_SECS
from benchmarks.sections import ANSWER, Section
from pipecat_hedge.tools.bench.percentiles import percentile
from pipecat_hedge.tools.formatting import UNKNOWN, secs

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
FAULT_NAMES = {
    "hang": "hang",
    "keepalives": "keep-alives, no text",
    "529": "529",
    "cut": "cut in mid-answer",
    "cut_tool": "cut tool call",
    "400_once": "400 once",
}
VOICE_FAULTS = {
    "silent_voice": "the first voice stays silent in every second sentence",
    "late_transcript": "the first recogniser's transcripts are 5 s late",
}
LATE_SECS, BUSY = 0.02, 0.85
"""The machine was too busy if one request in a hundred got its first token so much too late, or if
so much of its processors was in use."""
REFERENCE = "llm bare"
"""The one peer with one provider that stands in the table of faults: the others end as it does."""
_REGION = re.compile(r"ttft=([\d.]+).*region=(\w+)\.")
_SECS = {"first": "first_secs", "sentence": "sentence_secs"}


class Figures:
    """What one peer's turns and requests come to."""

    def __init__(self, result: Mapping[str, Any]):
        self._turns: list[dict[str, Any]] = result["turns"]
        self._cpu_secs: dict[str, float] = result["cpu_secs"]
        self.busy: float = result["busy"]
        """The share of the machine's processors that was in use."""
        self._requests: dict[str, list[tuple[dict[str, Any], float]]] = {}
        for request in result["requests"]:
            if found := _REGION.search(request["model"]):
                requests = self._requests.setdefault(found[2], [])
                requests.append((request, float(found[1])))

    def turns(self, section: str) -> list[dict[str, Any]]:
        """The turns of a section."""
        return [turn for turn in self._turns if turn["section"] == section]

    def waits(self, section: str, what: str) -> list[float]:
        """Seconds to the first token or sentence; infinite for a turn without one."""
        found = (turn[_SECS[what]] for turn in self.turns(section))
        return [math.inf if each is None else each for each in found]

    def extra_requests(self) -> float:
        """Requests beyond one a turn, per turn of a usual day."""
        return len(self._requests.get("calm", ())) / len(self.turns("calm")) - 1

    def unused_tokens(self) -> float:
        """Answer tokens that were not heard, per token of an answer, on a usual day."""
        sent = sum(request["tokens_sent"] for request, _ in self._requests.get("calm", ()))
        turns = self.turns("calm")
        return (sent - sum(turn["words"] for turn in turns)) / len(turns) / len(ANSWER.split())

    def added_secs(self, section: str) -> float | None:
        """The median first token's time over the provider's own."""
        median = percentile(self.waits(section, "first"), 0.5)
        return None if median is None else median - QUICK_SECS

    def cpu_secs(self) -> float | None:
        """Processor time of a turn."""
        turns = self.turns("fifty")
        return self._cpu_secs["fifty"] / len(turns) if turns else None

    def late_secs(self) -> float:
        """How late the provider's own first tokens were, in the worst of a hundred."""
        late = [
            request["first_token_secs"] - request["began_secs"] - ttft_secs
            for request, ttft_secs in self._requests.get("calm", ())
            if request["first_token_secs"] is not None
        ]
        return percentile(late, 0.99) or 0.0

    def is_doubtful(self) -> bool:
        """Whether the machine may have made a usual day's waits longer."""
        return bool(self.turns("calm")) and (self.late_secs() > LATE_SECS or self.busy > BUSY)

    def faulty(self, section: str) -> list[dict[str, Any]]:
        """The turns of a section that a fault befell."""
        played = Section(section, 1, 1)
        return [turn for turn in self.turns(section) if played.is_faulty(turn["turn"])]

    def fault(self, section: str) -> str:
        """What became of these turns: how many failed, and the others' waits, p50, p90 and max."""
        turns = self.faulty(section)
        if not turns:
            return UNKNOWN
        bad = [(name, sum(turn["outcome"] == name for turn in turns)) for name in _BAD]
        text = ", ".join(f"**{count} {name}**" for name, count in bad if count)
        waits = [turn["first_secs"] for turn in turns if turn["outcome"] == "ok"]
        waited = [" / ".join(secs(percentile(waits, p)) for p in (0.5, 0.9, 1))] if waits else []
        return ", ".join(([text] if text else []) + waited)


_BAD = ("lost", "cut", "said twice", "wrong")


def write(
    path: Path,
    peers: Sequence[Peer],
    versions: Mapping[str, str],
    results: Sequence[Mapping[str, Any]],
) -> None:
    """Replace the measured part of the page, and its picture."""
    figures = {result["name"]: Figures(result) for result in results if "error" not in result}
    errors = {result["name"]: result["error"] for result in results if "error" in result}
    doubtful = ", ".join(name for name, each in figures.items() if each.is_doubtful())
    warning = f" **The machine was too busy for {doubtful}.**" if doubtful else ""
    alone = {peer.name for peer in peers if "one provider" in peer.setup and peer.kind != REFERENCE}
    rescuing = {name: each for name, each in figures.items() if name not in alone}
    parts = [
        f"Measured on {date.today():%d %B %Y}, {_turns(figures)} turns of each.{warning}",
        _faults(rescuing, FAULT_NAMES, "When the first provider fails in every second turn"),
        _picture(path, figures),
        _waits(figures, "sentence", "A usual day: time to the first whole sentence"),
        _waits(figures, "first", "A usual day: time to the first token"),
        _costs(figures),
        _faults(figures, VOICE_FAULTS, "Voices and recognisers"),
        _setups(peers, versions, errors),
    ]
    before, _, rest = path.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    measured = "\n\n".join(filter(None, parts))
    path.write_text(f"{before}{BEGIN}\n\n{measured}\n\n{END}{after}")


def _turns(figures: Mapping[str, Figures]) -> str:
    counts = sorted({len(each.turns("calm")) for each in figures.values()} - {0})
    return " or ".join(map(str, counts))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, align: str = "---:") -> str:
    lines = [heads, ["---", *[align] * (len(heads) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _waits(figures: Mapping[str, Figures], what: str, title: str) -> str:
    rows = [
        [name, *(secs(percentile(waits, share)) for share in SHARES.values())]
        for name, each in figures.items()
        if (waits := each.waits("calm", what))
    ]
    return f"### {title}\n\n" + _table(["", *SHARES], rows)


def _faults(figures: Mapping[str, Figures], faults: Mapping[str, str], title: str) -> str:
    shown = [name for name in faults if any(f.turns(name) for f in figures.values())]
    having = {name: f for name, f in figures.items() if any(map(f.turns, shown))}
    if not having:
        return ""
    counts = {len(f.faulty(fault)) for f in having.values() for fault in shown} - {0}
    heads = [f"of {' or '.join(map(str, sorted(counts)))}", *(faults[name] for name in shown)]
    rows = [[name, *(each.fault(fault) for fault in shown)] for name, each in having.items()]
    return f"### {title}\n\n" + _table(heads, rows, align="---")


def _costs(figures: Mapping[str, Figures]) -> str:
    rows = [
        [
            name,
            f"{max(each.extra_requests(), 0):.1%}",
            f"{each.unused_tokens():.1%}",
            *(_ms(each.added_secs(section)) for section in ("one", "fifty")),
            _ms(each.cpu_secs()),
            _ms(each.late_secs()),
            f"{each.busy:.0%}" + (" **busy**" if each.is_doubtful() else ""),
        ]
        for name, each in figures.items()
        if each.turns("calm")
    ]
    heads = ["", "extra requests", "unused tokens", "added, 1 call", "added, 50 calls"]
    heads += ["processor a turn", "provider late, p99", "processors in use"]
    return "### What it costs\n\n" + _table(heads, rows)


def _ms(value: float | None) -> str:
    return secs(value) if value is None or math.isinf(value) else f"{1000 * value:.1f} ms"


def _setups(peers: Sequence[Peer], versions: Mapping[str, str], errors: Mapping[str, str]) -> str:
    rows = []
    for peer in peers:
        version = versions[peer.environment]
        if not all(versions[name] for name in peer.environments):
            version = "left out: cannot be installed"
        how = f"failed: {errors[peer.name]}" if peer.name in errors else peer.setup
        rows.append([peer.name, f"{peer.environment} {version}", how])
    return "### How each was set up\n\n" + _table(["", "environment", "setup"], rows, align="---")


def _picture(path: Path, figures: Mapping[str, Figures]) -> str:
    rows = [
        (name, [percentile(waits, share) or 0.0 for share in SHARES.values()])
        for name, each in figures.items()
        if (waits := each.waits("calm", "sentence"))
    ]
    if not rows:
        return ""
    low, high = 0.4, 64.0

    def x(value: float) -> float:
        return 260 + 500 * math.log(min(max(value, low), high) / low) / math.log(high / low)

    lanes = [
        (name, 62 + 26 * number, [(x(value), math.isinf(value)) for value in values])
        for number, (name, values) in enumerate(rows)
    ]
    ticks = [(x(value), f"{value:g} s") for value in (0.5, 1, 2, 4, 8, 16, 32)]
    drawn = _PICTURE.render(
        lanes=lanes, ticks=ticks, shares=list(SHARES), height=90 + 26 * len(rows)
    )
    picture = path.parent / "images" / f"{path.stem}.svg"
    picture.parent.mkdir(exist_ok=True)
    picture.write_text(drawn)
    return f"![Waits for the first sentence, by peer](images/{path.stem}.svg)"


_PICTURE = Template(
    """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 {{ height }}" width="800" \
height="{{ height }}" role="img" aria-labelledby="t" \
font-family="system-ui, -apple-system, 'Segoe UI', sans-serif" font-size="13">
<title id="t">Waits for the first sentence, by peer</title>
<style>
.ink { fill: #1c2530 } .dim { fill: #5b6875 } .bg { fill: #f7f9fb }
.grid { stroke: #d5dbe1 } .line { stroke: #9aa7b4 } .other { fill: #c2452d } .ours { fill: #13795b }
@media (prefers-color-scheme: dark) {
.ink { fill: #e8edf2 } .dim { fill: #9aa7b4 } .bg { fill: #141a21 } .grid { stroke: #35414d }
.other { fill: #f0866e } .ours { fill: #52cfa5 } }
</style>
<rect class="bg" width="800" height="{{ height }}" rx="12"/>
<text class="ink" x="20" y="28" font-size="15" font-weight="600">\
Wait for the first sentence: {{ shares | join(', ') }}</text>
{%- for at, text in ticks %}
<line class="grid" x1="{{ '%.1f' % at }}" x2="{{ '%.1f' % at }}" y1="44" y2="{{ height - 34 }}"/>
<text class="dim" x="{{ '%.1f' % at }}" y="{{ height - 16 }}" text-anchor="middle">{{ text }}</text>
{%- endfor %}
{%- for name, y, dots in lanes %}
<text class="ink" x="20" y="{{ y + 4 }}">{{ name | replace('`', '') }}</text>
<line class="line" x1="{{ '%.1f' % dots[0][0] }}" x2="{{ '%.1f' % dots[-1][0] }}" \
y1="{{ y }}" y2="{{ y }}"/>
{%- for at, is_lost in dots %}
<circle class="{{ 'ours' if 'pipecat-hedge' in name else 'other' }}" cx="{{ '%.1f' % at }}" \
cy="{{ y }}" r="{{ 3 + loop.index0 }}" fill-opacity="{{ 0.35 if is_lost else 0.75 }}"/>
{%- endfor %}
{%- endfor %}
</svg>
"""
)
