// Each turn's race, newest first, and the figures of the call so far.

import { breakable, element, figure, msFigure } from "./dom.js";
import { CallFigures } from "./figures.js";
import { chart, fillerHeard, moments } from "./timeline.js";

const OUTCOMES = {
  answered: "answered",
  answered_with_tools: "called a tool",
  interrupted: "interrupted",
  failed: "failed",
};

export class TurnsView {
  constructor({ list, empty, soFar, legend, underWay }) {
    Object.assign(this, { list, empty, soFar, legend, underWay });
    this.clear();
  }

  clear() {
    this.list.replaceChildren();
    this.empty.hidden = false;
    this.soFar.hidden = this.legend.hidden = this.underWay.hidden = true;
    this.figures = new CallFigures();
    this.card = null;
    this.isCut = false;
  }

  // The LLM was called; its turn is shown once the answer plays.
  begin() {
    this.empty.hidden = true;
    this.underWay.hidden = false;
    this.isCut = false;
  }

  end() {
    this.underWay.hidden = true;
  }

  // The caller interrupted the answer in progress, or the last one.
  interrupt() {
    if (!this.underWay.hidden) this.isCut = true;
    else if (this.card) this.show({ ...this.card, isCut: true });
  }

  // A race has ended. A race that continues the previous turn shares its card.
  add(race) {
    this.end();
    this.empty.hidden = true;
    const isCut = this.isCut;
    if (race.continues && this.card) this.show({ ...this.card, races: [...this.card.races, race], isCut });
    else this.show({ races: [race], isCut, item: null });
    this.sumUp(race);
  }

  show(card) {
    const item = turnItem(card);
    if (card.item) card.item.replaceWith(item);
    else this.list.prepend(item);
    this.card = { ...card, item };
  }

  sumUp(race) {
    this.figures.count(race);
    const { ttft, voiceToVoice } = this.figures.summary;
    this.soFar.hidden = this.legend.hidden = false;
    this.soFar.replaceChildren(
      group("Time to first token", ttft, "races"),
      group("Voice to voice", voiceToVoice, "turns"),
    );
  }
}

function group(name, { count, p50_secs, p95_secs }, what) {
  const made = element("div", "so-far-group");
  const list = element("dl", "figures");
  list.append(msFigure("p50", p50_secs), msFigure("p95", p95_secs), figure("of", String(count), what));
  made.append(element("h3", "", name), list);
  return made;
}

function turnItem({ races, isCut }) {
  const last = races.at(-1);
  const isInterrupted = isCut || last.outcome === "interrupted" || last.heard?.interrupted === true;
  const outcome = isInterrupted ? "interrupted" : last.outcome;
  const item = element("li", `turn ${outcome}`);
  item.dataset.outcome = outcome;
  const head = element("div", "turn-head");
  const winners = [...new Set(races.map(({ winner }) => winner ?? "no winner"))];
  head.append(
    element("span", "turn-number", numbered(races)),
    winnersName(winners),
    element("span", `outcome ${outcome}`, described(outcome, races)),
  );
  const figures = element("dl", "figures");
  const tokens = races.map(({ ttft_secs }) => ttft_secs).filter((secs) => secs != null);
  const text = tokens.map((secs) => Math.round(secs * 1000)).join(" + ");
  figures.append(figure("First token", text || "–", text && "ms"));
  if (fillerHeard(races)) figures.append(msFigure("First sound", last.first_sound_secs));
  figures.append(msFigure("Voice to voice", last.voice_to_voice_secs));
  item.append(head, figures, chart(races, { wasCut: isInterrupted }), moments(races));
  return item;
}

function winnersName(winners) {
  const name = element("span", "turn-winner");
  winners.forEach((winner, number) => {
    if (number) name.append(", then ");
    breakable(name, winner);
  });
  return name;
}

function numbered(races) {
  const [first, last] = [races[0].turn, races.at(-1).turn];
  return first === last ? `Turn ${first}` : `Turns ${first}–${last}`;
}

function described(outcome, races) {
  const text = OUTCOMES[outcome] ?? outcome;
  if (outcome === "interrupted") return "interrupted: you spoke";
  return races.length > 1 && outcome === "answered" ? "answered, after a tool" : text;
}
