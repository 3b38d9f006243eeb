// The SLOs and how well they are met, over all calls of this bot: a new call does not clear them. The
// error budget is the share of turns that may miss the SLO; a burn rate of 1 spends exactly that.

import { element, inSecs } from "./dom.js";

const OBJECTIVES = {
  ttft: "first token",
  ttfs: "first sentence",
  voice_to_voice: "voice to voice",
};
const ENOUGH_TURNS = 20; // with fewer, one turn decides
const FAST = 6; // times as fast as allowed: worth an alert
const WINDOWS = [
  ["d", 86400],
  ["min", 60],
];

export class SlosView {
  // They are folded until there are enough turns; after that the user decides.
  constructor({ place, summary, cards }) {
    Object.assign(this, { place, summary, cards, isDecided: false });
  }

  show({ slos }) {
    this.place.hidden = !slos.length;
    const tiers = new Set(slos.map(({ tier }) => tier));
    this.cards.replaceChildren(...slos.map((one) => card(one, tiers.size > 1)));
    const missed = slos.filter(({ attainment, share }) => attainment != null && attainment < share);
    const turns = Math.max(0, ...slos.map((slo) => slo.turns));
    const counted = `${turns} ${turns === 1 ? "turn" : "turns"}`;
    const state = missed.length ? `${missed.length} of ${slos.length} missed` : "all met";
    this.summary.textContent = turns < ENOUGH_TURNS ? `${counted} so far` : `${state}, ${counted}`;
    if (turns >= ENOUGH_TURNS && !this.isDecided) this.isDecided = this.place.open = true;
  }
}

function card(slo, withTier) {
  const { objective, within_secs, share, attainment, budget_left, turns } = slo;
  const made = element("div", "slo");
  made.dataset.objective = objective;
  made.dataset.tier = slo.tier;
  const tier = withTier ? `${slo.tier}: ` : "";
  made.append(
    element("h3", "", `${tier}${OBJECTIVES[objective] ?? objective} within ${inSecs(within_secs)}`),
  );

  const met = element("p", "met");
  const isMet = attainment == null || attainment >= share;
  const days = named(slo.burns.at(-1).window_secs);
  met.append(
    element("strong", isMet ? "is-met" : "is-missed", percent(attainment)),
    ` of ${percent(share)}`,
    element("small", "", ` ${turns} ${turns === 1 ? "turn" : "turns"} in ${days}`),
  );

  const left = element("p", `budget-left ${leftKind(budget_left)}`);
  const bar = element("span", "budget");
  bar.setAttribute("role", "img");
  const text = budget_left < 0 ? `overspent ${times(1 - budget_left)}` : `${percent(budget_left)} left`;
  bar.setAttribute("aria-label", `error budget: ${text}`);
  const fill = element("span");
  fill.style.width = `${Math.max(0, Math.min(1, budget_left)) * 100}%`;
  bar.append(fill);
  left.append(bar, element("span", "budget-text", `budget ${text}`));

  const burns = element("ul", "burns");
  for (const { window_secs, burn } of slo.burns) {
    const item = element("li", burnKind(burn));
    item.title = "burn rate: 1 spends the error budget exactly as fast as allowed";
    item.append(`${named(window_secs)} `, element("b", "", burn == null ? "–" : times(burn)));
    burns.append(item);
  }
  made.append(met, left, burns);
  return made;
}

function percent(share) {
  if (share == null) return "–";
  const isRound = Math.abs(share * 100 - Math.round(share * 100)) < 1e-9;
  return `${(share * 100).toFixed(isRound ? 0 : 1)}\u00a0%`;
}

function times(burn) {
  return `${burn.toFixed(burn < 10 ? 1 : 0)}×`;
}

function named(secs) {
  const [unit, length] = WINDOWS.find(([, length]) => secs >= length && secs % length === 0);
  return `${secs / length}\u00a0${unit}`;
}

function leftKind(left) {
  return left < 0 ? "spent" : left < 0.25 ? "scarce" : "enough";
}

function burnKind(burn) {
  if (burn == null) return "unknown";
  return burn >= FAST ? "fast" : burn > 1 ? "over" : "calm";
}
