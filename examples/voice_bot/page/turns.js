// Each turn's race: the last one with its chart, earlier ones folded; and the figures of the call.

import { breakable, element, figure, inSecs, secsFigure } from "./dom.js";
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
    this.soFar.hidden = this.legend.hidden = true;
    this.end();
    this.figures = new CallFigures();
    this.card = null;
    this.isCut = false;
    this.speech = new Map(); // by the turn whose answer it was
  }

  // The LLM was called; its turn is shown once the answer plays.
  begin() {
    this.empty.hidden = true;
    this.underWay.textContent = "in progress";
    this.isCut = false;
  }

  end() {
    this.underWay.textContent = "";
  }

  // The caller interrupted the answer in progress, or the last one.
  interrupt() {
    if (this.underWay.textContent) this.isCut = true;
    else if (this.card) this.show({ ...this.card, isCut: true });
  }

  // An answer has been spoken. Where the caller interrupts, its race may be reported later.
  speak(speech) {
    this.speech.set(speech.turn, speech);
    if (this.card?.races.some(({ turn }) => turn === speech.turn)) this.show(this.card);
  }

  // A race has ended. A race that continues the previous turn shares its card.
  add(race) {
    this.end();
    this.empty.hidden = true;
    const isCut = this.isCut;
    if (race.continues && this.card) {
      this.show({ ...this.card, races: [...this.card.races, race], isCut });
    } else {
      const isGreeting = race.origin === "context" && !this.card;
      this.show({ races: [race], isGreeting, isCut, item: null });
    }
    this.sumUp(race);
  }

  show(card) {
    const item = turnItem({ ...card, speech: this.speech });
    if (card.item) card.item.replaceWith(item);
    else {
      this.list.querySelector("details")?.removeAttribute("open");
      this.list.prepend(item);
    }
    this.card = { ...card, item };
  }

  sumUp(race) {
    this.figures.count(race);
    const { ttft, voiceToVoice } = this.figures.summary;
    this.soFar.hidden = this.legend.hidden = false;
    this.soFar.replaceChildren(
      group("First token", ttft),
      group("Voice to voice", voiceToVoice),
    );
  }
}

function group(name, { count, p50_secs, tail, tail_secs }) {
  const made = element("div", "so-far-group");
  const list = element("dl", "figures");
  const turns = figure("of", String(count), count === 1 ? "answer" : "answers");
  list.append(secsFigure("median", p50_secs), secsFigure(tail, tail_secs), turns);
  made.append(element("h3", "", name), list);
  return made;
}

// Each race has its number in the bot's log.
function turnName(races, isGreeting) {
  const numbers = races.map(({ turn }) => turn).join(" + ");
  return `Turn ${numbers}${isGreeting ? ", greeting" : ""}`;
}

function turnItem({ races, isGreeting, isCut, speech }) {
  const last = races.at(-1);
  const isInterrupted = isCut || last.outcome === "interrupted" || last.heard?.interrupted === true;
  const outcome = isInterrupted ? "interrupted" : last.outcome;
  const item = element("li", `turn ${outcome}`);
  item.dataset.outcome = outcome;
  const folded = element("details");
  folded.open = true;
  const head = element("summary", "turn-head");
  const winners = [...new Set(races.map(({ winner }) => winner ?? "no winner"))];
  head.append(
    element("span", "turn-number", turnName(races, isGreeting)),
    winnersName(winners),
    element("span", `outcome ${outcome}`, described(outcome, races)),
    waited(last),
  );
  const figures = element("dl", "figures");
  const tokens = races.map(({ ttft_secs }) => ttft_secs).filter((secs) => secs != null);
  const text = tokens.map((secs) => secs.toFixed(2)).join(" + ");
  figures.append(figure("First token", text || "–", text && "s"));
  if (fillerHeard(races)) figures.append(secsFigure("First sound", last.first_sound_secs));
  figures.append(secsFigure("Voice to voice", last.voice_to_voice_secs));
  const spoken = races.map(({ turn }) => speech.get(turn)).filter(Boolean);
  folded.append(head, figures, chart(races, { wasCut: isInterrupted, spoken }), moments(races));
  item.append(folded);
  return item;
}

// How long the caller waited, for a folded turn.
function waited({ voice_to_voice_secs: heard, ttft_secs: token }) {
  const text = heard != null ? `heard after ${inSecs(heard)}` : token != null ? inSecs(token) : "";
  return element("span", "waited", text);
}

function winnersName(winners) {
  const name = element("span", "turn-winner");
  winners.forEach((winner, number) => {
    if (number) name.append(", then ");
    breakable(name, winner);
  });
  return name;
}

function described(outcome, races) {
  const text = OUTCOMES[outcome] ?? outcome;
  if (outcome === "interrupted") return "interrupted: you spoke";
  return races.length > 1 && outcome === "answered" ? "answered, after a tool" : text;
}
