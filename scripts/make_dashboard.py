"""Makes the Grafana dashboard: ``python scripts/make_dashboard.py``.

A dashboard's file is thousands of lines in which nobody sees a change. Here is what it says: rows,
panels, their units and their expressions. `tests/deploy` asks a real Prometheus each of these.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUT = Path(__file__).parents[1] / "deploy/grafana/pipecat-hedge.json"
WIDTH = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_METRIC = re.compile(r"((?:\w+:)?pipecat_hedge_\w+(?::\w+)?)(?:{([^}]*)})?")


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart.

    Parameters:
        title: What it shows.
        unit: Grafana's name of the unit of its axis.
        queries: ``(legend, expression)`` of each family of lines.
        about: What to make of it.
        kind: Grafana's name of the kind of chart.
        width: Of 24 columns.
        stack: Whether the lines add up.
    """

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    about: str
    kind: str = "timeseries"
    width: int = 8
    stack: bool = False


def _quantiles(metric: str, by: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (
            f"{{{{{by}}}}} p{share * 100:g}",
            _quantile(share, metric, by),
        )
        for share in (0.5, 0.95, 0.99)
    )


def _quantile(share: float, metric: str, by: str) -> str:
    """Of native histograms where Prometheus stores these, else of classic ones."""
    times = f"pipecat_hedge_{metric}_seconds"
    return (
        f"histogram_quantile({share}, sum by ({by}) (rate({times}[$__rate_interval]))) or "
        f"histogram_quantile({share}, sum by ({by}, le) (rate({times}_bucket[$__rate_interval])))"
    )


def _per_minute(metric: str, by: str, where: str = "") -> str:
    return f"60 * sum by ({by}) (rate(pipecat_hedge_{metric}_total{where}[$__rate_interval]))"


def _waits(by: str, ending: str) -> str:
    """How long was waited for providers, whether something came or not."""
    told = (
        f"sum by ({by}) (rate(pipecat_hedge_attempt_ttft_seconds{ending}[$__rate_interval]))",
        f"sum by ({by}) (rate(pipecat_hedge_attempt_unanswered_seconds{ending}"
        '{outcome!="interrupted", launch_reason!="hedge"}[$__rate_interval]))',
    )
    return f"({' + '.join(told)} or {' or '.join(told)})"


_KEPT = (
    "1 - sum by (job, tier, objective) (rate(pipecat_hedge_slo_missed_total[1h]))"
    " / (sum by (job, tier, objective) (rate(pipecat_hedge_slo_turns_total[1h])) > 0)"
)
_LEFT = (
    "1 - sum by (job, tier, objective) (increase(pipecat_hedge_slo_missed_total[30d]))"
    " / (sum by (job, tier, objective) (increase(pipecat_hedge_slo_turns_total[30d])) > 0)"
    " / on (job, tier) group_left () (1 - max by (job, tier) (pipecat_hedge_slo_share_ratio))"
)

ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "What callers get",
        (
            Panel(
                "Promises kept, last hour",
                "percentunit",
                (("{{job}} {{tier}} {{objective}}", _KEPT),),
                "The share of turns that were answered in the promised time.",
                kind="stat",
                width=6,
            ),
            Panel(
                "Error budget left, 30 days",
                "percentunit",
                (("{{job}} {{tier}} {{objective}}", _LEFT),),
                "Below 0 the promise is broken for these 30 days. Prometheus keeps 15 days unless "
                "it is told otherwise (--storage.tsdb.retention.time): then it is of these.",
                kind="stat",
                width=6,
            ),
            Panel(
                "Error budget burn",
                "none",
                (
                    (
                        "{{job}} {{tier}} {{objective}} 5 min",
                        "job_tier_objective:pipecat_hedge_slo_burn:rate5m",
                    ),
                    (
                        "{{job}} {{tier}} {{objective}} 1 h",
                        "job_tier_objective:pipecat_hedge_slo_burn:rate1h",
                    ),
                ),
                "Times faster than allowed. 1 spends the budget exactly; 14.4 over an hour pages.",
                width=12,
            ),
            Panel(
                "Time to first token, turns",
                "s",
                _quantiles("turn_ttft", "tier"),
                "From the context to the answer's first usable token.",
            ),
            Panel(
                "Time to first sentence, turns",
                "s",
                _quantiles("turn_ttfs", "tier"),
                "To the first sentence that can be spoken. A filler is none.",
            ),
            Panel(
                "Voice to voice",
                "s",
                _quantiles("voice_to_voice", "tier"),
                "From the caller's silence to the answer's first sound (TurnLatencyObserver).",
            ),
            Panel(
                "Turns",
                "turns/min",
                (
                    ("{{outcome}}", _per_minute("turns", "outcome", '{degraded="false"}')),
                    ("degraded", _per_minute("turns", "degraded", '{degraded="true"}')),
                ),
                "By outcome; degraded: nobody could be asked, or the answer broke off.",
                width=12,
                stack=True,
            ),
            Panel(
                "Fillers and rescues",
                "per min",
                (
                    ("filler {{result}}", _per_minute("fillers", "result")),
                    ("rescue {{result}}", _per_minute("rescues", "result")),
                ),
                "Silences that were filled, and answers that broke off and were continued.",
                width=12,
            ),
        ),
    ),
    (
        "Which provider",
        (
            Panel(
                "Waits by provider",
                "s",
                tuple(
                    (
                        f"{{{{provider}}}} p{share * 100:g}, at least",
                        f"histogram_quantile({share}, {_waits('provider', '')}) or "
                        f"histogram_quantile({share}, {_waits('provider, le', '_bucket')})",
                    )
                    for share in (0.5, 0.95)
                ),
                "To its first token or, where others were faster, as long as was waited for it, so "
                "that a provider that always loses does not look fast: at least so long. Refusals "
                "are no waits, nor are hedges that lost.",
                width=12,
            ),
            Panel(
                "Attempts by what came of them",
                "attempts/min",
                (("{{provider}} {{outcome}}", _per_minute("attempts", "provider, outcome")),),
                "Superseded are those that another overtook.",
                width=12,
            ),
            Panel(
                "Failures",
                "failures/min",
                (
                    (
                        "{{provider}} {{category}}",
                        _per_minute("attempt_failures", "provider, category"),
                    ),
                ),
                "By what went wrong. Shed: there was no room, and no request was sent.",
            ),
            Panel(
                "Breakers",
                "none",
                (
                    (
                        "{{provider}} {{state}}",
                        "sum by (provider, state) "
                        '(pipecat_hedge_breaker_state{state=~"open|half_open"})',
                    ),
                ),
                "Processes that leave the provider alone (open), or try it again (half open).",
            ),
            Panel(
                "Requests in flight, and their limit",
                "none",
                (
                    (
                        "{{provider}} in flight",
                        "sum by (provider) (pipecat_hedge_requests_in_flight)",
                    ),
                    ("{{provider}} limit", "sum by (provider) (pipecat_hedge_concurrency_limit)"),
                ),
                "The limit is found out as one goes, process by process.",
            ),
        ),
    ),
    (
        "What hedging buys and costs",
        (
            Panel(
                "Hedges per turn",
                "percentunit",
                (
                    (
                        "hedged",
                        "sum(rate(pipecat_hedge_hedges_total[$__rate_interval]))"
                        " / (sum(rate(pipecat_hedge_turns_total[$__rate_interval])) > 0)",
                    ),
                    ("budget", "max(pipecat_hedge_budget_requests_per_turn)"),
                ),
                "The adaptive policy keeps to its budget over some hundred turns.",
            ),
            Panel(
                "Hedges won and lost",
                "hedges/min",
                (("{{provider}} {{result}}", _per_minute("hedges", "provider, result")),),
                "A hedge that wins was a caller's wait cut short; one that loses was its price.",
            ),
            Panel(
                "Hedging budget",
                "none",
                (
                    (
                        "{{budget}}",
                        "min by (budget) (pipecat_hedge_budget_balance_requests)",
                    ),
                ),
                "Requests that may be spent yet; below -2 hedges come later.",
            ),
            Panel(
                "Tokens",
                "tokens/min",
                (("{{use}} {{direction}}", _per_minute("tokens", "use, direction")),),
                "Wasted are those of attempts whose answer nobody heard to the end.",
                stack=True,
            ),
            Panel(
                "Cost",
                "USD/h",
                (
                    (
                        "{{provider}} {{use}}",
                        "3600 * sum by (provider, use) "
                        "(rate(pipecat_hedge_cost_usd_total[$__rate_interval]))",
                    ),
                ),
                "Of providers whose price was given.",
                stack=True,
            ),
            Panel(
                "Cost of an answered turn",
                "currencyUSD",
                (
                    (
                        "a turn",
                        "sum(rate(pipecat_hedge_cost_usd_total[$__rate_interval])) / (sum(rate("
                        'pipecat_hedge_turns_total{outcome=~"answered.*"}[$__rate_interval])) > 0)',
                    ),
                ),
                "All that was spent, by the turns that had an answer.",
            ),
        ),
    ),
    (
        "The process",
        (
            Panel(
                "Calls",
                "none",
                (("calls", "sum(pipecat_hedge_sessions)"),),
                "Calls that are being held.",
                width=6,
            ),
            Panel(
                "Queue",
                "none",
                (("waiting", "sum(pipecat_hedge_queue_depth)"),),
                "Requests that wait until a provider has room.",
                width=6,
            ),
            Panel(
                "What turns waited for room",
                "s",
                (
                    (
                        "{{tier}} p95",
                        _quantile(0.95, "turn_queued", "tier"),
                    ),
                ),
                'Three seconds at most; then it is sent or, with admission="shed", degraded.',
                width=6,
            ),
            Panel(
                "Event-loop lag",
                "s",
                (
                    (
                        "{{instance}}",
                        "max by (instance) (pipecat_hedge_event_loop_lag_seconds)",
                    ),
                ),
                "What every caller of the process hears everything later by. Hedges are shed "
                "from 0.1 s on.",
                width=6,
            ),
            Panel(
                "Left undone",
                "per min",
                (("{{what}}", _per_minute("shed", "what")),),
                "What there was no room for: attempts by launch reason, and whole turns.",
                width=12,
            ),
            Panel(
                "Cold connections",
                "per min",
                (("{{provider}}", _per_minute("cold_connections", "provider")),),
                "Requests that had to open a connection: the commonest avoidable second.",
                width=12,
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row, charts in ROWS:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
            }
        )
        x, y = 0, y + 1
        for chart in charts:
            if x + chart.width > WIDTH:
                x, y = 0, y + 8
            place = {"x": x, "y": y, "w": chart.width, "h": 8}
            panels.append(_panel(chart, len(panels) + 1, place))
            x += chart.width
        y += 8
    return {
        "uid": "pipecat-hedge",
        "title": "pipecat-hedge",
        "tags": ["pipecat", "voice", "llm"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Prometheus",
                    "type": "datasource",
                    "query": "prometheus",
                },
                {
                    "name": "job",
                    "label": "Job",
                    "type": "query",
                    "datasource": SOURCE,
                    "query": {"query": "label_values(pipecat_hedge_turns_total, job)"},
                    "refresh": 2,
                    "multi": True,
                    "includeAll": True,
                    "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "annotations": {
            "list": [
                {
                    "name": "Alerts",
                    "enable": True,
                    "iconColor": "red",
                    "datasource": SOURCE,
                    "expr": 'ALERTS{alertname=~"Hedge.*", alertstate="firing", job=~"$job"}',
                    "titleFormat": "{{alertname}}",
                    "textFormat": "{{job}} {{provider}}{{tier}}",
                }
            ]
        },
        "panels": panels,
    }


def _panel(chart: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": _grafana_unit(chart.unit)}
    options: dict[str, Any] = {"tooltip": {"mode": "multi", "sort": "desc"}}
    if chart.kind == "stat":
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none"}
        defaults["decimals"] = 1
    else:
        defaults["custom"] = {
            "axisLabel": chart.unit if chart.unit not in ("none", "percentunit") else "",
            "fillOpacity": 20 if chart.stack else 0,
            "stacking": {"mode": "normal" if chart.stack else "none"},
            "showPoints": "never",
            "spanNulls": True,
        }
        options["legend"] = {"displayMode": "list", "placement": "bottom"}
    return {
        "id": number,
        "type": chart.kind,
        "title": chart.title,
        "description": chart.about,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": _of_the_jobs(expression),
                "legendFormat": legend,
            }
            for index, (legend, expression) in enumerate(chart.queries)
        ],
    }


def _of_the_jobs(expression: str) -> str:
    """Of those jobs alone that are chosen at the top of the page."""

    def chosen(found: re.Match[str]) -> str:
        others = f", {found[2]}" if found[2] else ""
        return f'{found[1]}{{job=~"$job"{others}}}'

    return _METRIC.sub(chosen, expression)


def _grafana_unit(unit: str) -> str:
    """Grafana's own units by name; others are written behind the number."""
    return unit if unit in ("s", "none", "percentunit", "currencyUSD") else f"suffix: {unit}"


def as_json() -> str:
    """The file's text."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    OUT.write_text(as_json())
    print(f"written: {OUT}")
