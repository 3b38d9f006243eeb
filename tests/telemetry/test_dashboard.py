"""The Grafana dashboard: made by its script, about metrics there are, and laid out without overlap.

Each of its expressions is asked of a real Prometheus in ``tests/live/test_prometheus_server.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from scripts.make_dashboard import OUT, as_json

from tests.support.prometheus_server import RULES
from tests.telemetry.test_rules import names_asked, names_served

DASHBOARD = json.loads(OUT.read_text())
CHARTS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def test_the_file_is_what_the_script_makes() -> None:
    """Or the next change of the script would undo one of the file."""
    assert OUT.read_text() == as_json()


@pytest.mark.parametrize("panel", CHARTS, ids=lambda panel: panel["title"])
def test_a_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    """Title, unit, what to make of it, a legend for each line, metrics that there are, whose."""
    assert panel["description"]
    assert panel["fieldConfig"]["defaults"]["unit"]
    recorded = RULES.read_text()
    for target in panel["targets"]:
        assert target["legendFormat"]
        asked = names_asked(target["expr"])
        assert asked <= names_served()
        for name in re.findall(r"\w+:\w+:\w+", target["expr"]):
            assert f"record: {name}\n" in recorded
        selectors = re.findall(r"pipecat_hedge_[\w:]+(\S*)", target["expr"])
        assert all(selector.startswith('{job=~"$job"') for selector in selectors)


def test_grafana_knows_every_field() -> None:
    """Its own models, of each kind of panel and of Prometheus' queries, drop what they do not know.

    Of an annotation they know the core only: how one reads is its data source's, here Prometheus'.
    """
    register_default_plugins()
    kept = json.loads(JSONEncoder().encode(Dashboard.from_json(json.loads(OUT.read_text()))))
    (alerts,) = DASHBOARD["annotations"]["list"]
    for name in ("titleFormat", "textFormat"):
        kept["annotations"]["list"][0].setdefault(name, alerts[name])
    assert list(dropped(DASHBOARD, kept)) == []
    misspelt = json.loads(OUT.read_text())
    misspelt["panels"][1]["options"]["legned"] = {"showLegend": True}
    kept = json.loads(JSONEncoder().encode(Dashboard.from_json(misspelt)))
    assert ".panels[1].options.legned" in list(dropped(misspelt, kept))


def dropped(said: Any, kept: Any, where: str = "") -> Iterator[str]:
    """Where something has been said that was not kept as it was."""
    if isinstance(said, dict) and isinstance(kept, dict):
        for name, value in said.items():
            yield from dropped(value, kept.get(name), f"{where}.{name}")
    elif isinstance(said, list) and isinstance(kept, list) and len(said) == len(kept):
        for number, (value, other) in enumerate(zip(said, kept, strict=True)):
            yield from dropped(value, other, f"{where}[{number}]")
    elif said != kept:
        yield where


def test_no_panel_covers_another() -> None:
    """On Grafana's grid of 24 columns."""
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not taken & cells
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
