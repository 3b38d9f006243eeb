"""How the page looks: one sheet for laptops, telephones, the dark and paper."""

__all__ = ["STYLE"]

STYLE = """
:root { color-scheme: light; --ink: #1d2733; --dim: #5b6773; --paper: #fff; --line: #d7dde3;
  --soft: #f3f5f8; --bad: #b4231a; --good: #1f7a4d; --band: #f6dfc8; --k0: #2563a8; --k1: #b4531a;
  --k2: #1f7a4d; --k3: #7a3f9d; --wait: #b9cbe0; --talk: #2563a8; --open: #b4531a;
  --fine: #8fa3b8; }
@media screen and (prefers-color-scheme: dark) { :root { color-scheme: dark; --ink: #e6ebf0;
  --dim: #9ba7b3; --paper: #161b21; --line: #323b45; --soft: #1f262e; --bad: #ff8a7d;
  --good: #6fd3a2; --band: #4a3826; --k0: #7fb0e6; --k1: #f0a268; --k2: #63c7a6; --k3: #c79be6;
  --wait: #3b5068; --talk: #7fb0e6; --open: #f0a268; --fine: #5d7188; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 68rem; margin: 1.5rem auto 4rem; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.2rem; margin: 2.6rem 0 .3rem; }
h3 { font-size: 1rem; margin: 1.6rem 0 .2rem; }
p { margin: .4rem 0; } p.about, .about { color: var(--dim); } code { font-size: .92em; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(7.5rem, 1fr));
  gap: .8rem 1.4rem; margin: 1rem 0; }
.figures b { display: block; font-size: 1.5rem; line-height: 1.25; }
.figures span { color: var(--dim); display: block; line-height: 1.3; }
.heads { list-style: none; margin: 1rem 0; padding: 0; }
.heads li { border-left: 4px solid var(--line); padding: .1rem 0 .1rem .8rem; margin: .7rem 0; }
.heads li.bad { border-color: var(--bad); } .heads li.good { border-color: var(--good); }
.heads b { display: block; }
.bad { color: var(--bad); } .good { color: var(--good); } .heads li { color: var(--ink); }
.heads li.bad b { color: var(--bad); } .heads li.good b { color: var(--good); }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(21rem, 100%), 1fr));
  gap: .5rem 2.4rem; }
.two > * { min-width: 0; }
figure { margin: 1rem 0; break-inside: avoid; } figcaption { font-weight: 600; }
.plot { position: relative; height: 15rem; margin: .5rem .8rem 2.9rem 3.9rem; }
.plot.low { height: 5.5rem; }
.plot svg { position: absolute; inset: 0; width: 100%; height: 100%; overflow: visible; }
.plot path, .swatch path { fill: none; stroke-width: 2; vector-effect: non-scaling-stroke; }
.grid { stroke: var(--line); stroke-width: 1 !important; }
.k0 { stroke: var(--k0); } .k1 { stroke: var(--k1); stroke-dasharray: 7 3; }
.k2 { stroke: var(--k2); stroke-dasharray: 2 3; }
.k3 { stroke: var(--k3); stroke-dasharray: 9 3 2 3; }
.mark { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 4 3;
  vector-effect: non-scaling-stroke; }
rect.band { fill: var(--band); } rect.bad { fill: var(--bad); } rect.fine { fill: var(--fine); }
rect.wait { fill: var(--wait); } rect.talk { fill: var(--talk); } rect.open { fill: var(--open); }
.xt, .yt, .xtitle, .ytitle { position: absolute; color: var(--dim); font-size: .8rem;
  line-height: 1; white-space: nowrap; overflow-wrap: normal; }
.xt { top: calc(100% + .6rem); transform: translateX(-50%); }
.yt { right: calc(100% + .5rem); transform: translateY(50%); }
.xtitle { top: calc(100% + 1.8rem); left: 0; right: 0; text-align: center; }
.ytitle { position: static; margin: .4rem 0 .7rem; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: .3rem 0;
  padding: 0; font-size: .85rem; }
.legend li { display: flex; align-items: center; gap: .4rem; }
.swatch { width: 1.8rem; height: .8rem; flex: none; }
.wide { overflow-x: auto; margin: .6rem 0; background:
  linear-gradient(to left, var(--paper) 1.2rem, transparent) right / 3rem 100% no-repeat local,
  linear-gradient(to left, var(--line), transparent) right / 1.2rem 100% no-repeat scroll; }
table { border-collapse: collapse; width: 100%; overflow-wrap: normal; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; white-space: nowrap; vertical-align: top; }
th { color: var(--dim); font-weight: 600; vertical-align: bottom; white-space: normal;
  min-width: 4.2rem; }
th:first-child, td:first-child { text-align: left; padding-left: 0; min-width: 7rem;
  max-width: 18rem; white-space: normal; overflow-wrap: anywhere;
  position: sticky; left: 0; background: var(--paper); }
.words { text-align: left !important; white-space: normal !important; min-width: 11rem; }
details { margin: .6rem 0; } summary { cursor: pointer; }
.turn { border-top: 1px solid var(--line); padding: .9rem 0; break-inside: avoid; }
.turn h3 { margin: 0; } .turn p { margin: .1rem 0 .5rem; }
.lane { display: grid; grid-template-columns: minmax(9rem, 15rem) 1fr; gap: 0 1rem;
  align-items: center; font-size: .85rem; margin: .25rem 0; }
.lane svg { width: 100%; height: 1rem; display: block; background: var(--soft); }
.ends { display: flex; justify-content: space-between; color: var(--dim); font-size: .8rem;
  grid-column: 2; }
.change { border-left: 4px solid var(--k0); padding: 0 0 0 .8rem; margin: 1.2rem 0;
  break-inside: avoid; }
.change h3 { margin: 0; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1rem;
  color: var(--dim); font-size: .9rem; }
@media (max-width: 36rem) { .lane { grid-template-columns: 1fr; } .ends { grid-column: 1; }
  .wide { background: none; } .wide table, .wide tbody { display: block; }
  .wide thead { display: none; } .wide td.broad { grid-column: span 2; }
  .wide tr { display: grid; grid-template-columns: repeat(auto-fill, minmax(6.5rem, 1fr));
    gap: .4rem .8rem; align-items: end; padding: .7rem 0; border-bottom: 1px solid var(--line); }
  .wide td { display: block; min-width: 0; max-width: none; padding: 0; border: 0;
    text-align: left; white-space: normal; overflow-wrap: anywhere; line-height: 1.3; }
  .wide td:first-child, .wide td.words { grid-column: 1 / -1; min-width: 0; max-width: none; }
  .wide td:first-child { font-weight: 600; position: static; }
  .wide td:not(:first-child)::before { content: attr(data-head); display: block;
    color: var(--dim); font-size: .8rem; line-height: 1.2; }
  .wide td:first-child::before { content: attr(data-head) " "; color: var(--dim);
    font-weight: normal; } }
@media print { body { max-width: none; margin: 0; font-size: 12px; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  .wide { overflow: visible; background: none; } h2, h3 { break-after: avoid; }
  table { font-size: 11px; } th, td { padding: .2rem .3rem; } td.broad { white-space: normal; }
  th, th:first-child, td:first-child, .words { min-width: 0; position: static; }
  tr { break-inside: avoid; } .plot { height: 11rem; } }
"""
