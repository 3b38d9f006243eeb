// What callers are promised, and how it is kept: over all calls of this bot, so a new call does not
// clear it. The error budget is the share of turns that may break the promise; a burn of 1 uses it up
// exactly.

import { element, ms } from "./dom.js";

const OBJECTIVES = {
  ttft: "first token",
  ttfs: "first sentence",
  voice_to_voice: "voice to voice",
};
const FAST = 6; // times as fast as allowed: somebody should look
const WINDOWS = [
  ["d", 86400],
  ["h", 3600],
  ["min", 60],
];

export class PromisesView {
  constructor(place) {
    this.place = place;
  }

  show({ promises }) {
    this.place.hidden = !promises.length;
    const tiers = new Set(promises.map(({ tier }) => tier));
    this.place.replaceChildren(...promises.map((one) => card(one, tiers.size > 1)));
  }
}

function card(promise, withTier) {
  const { objective, within_secs, share, attainment, budget_left, turns } = promise;
  const made = element("div", "promise");
  made.dataset.objective = objective;
  made.dataset.tier = promise.tier;
  const tier = withTier ? `${promise.tier}: ` : "";
  made.append(
    element("h3", "", `${tier}${OBJECTIVES[objective] ?? objective} within ${ms(within_secs)}`),
  );

  const kept = element("p", "kept");
  const isKept = attainment == null || attainment >= share;
  const days = named(promise.burns.at(-1).window_secs);
  kept.append(
    element("strong", isKept ? "is-kept" : "is-broken", percent(attainment)),
    ` of ${percent(share)}`,
    element("small", "", ` ${turns} ${turns === 1 ? "turn" : "turns"} in ${days}`),
  );

  const left = element("p", `left ${leftKind(budget_left)}`);
  const bar = element("span", "budget");
  bar.setAttribute("role", "img");
  const words = budget_left < 0 ? `overspent ${times(1 - budget_left)}` : `${percent(budget_left)} left`;
  bar.setAttribute("aria-label", `error budget: ${words}`);
  const fill = element("span");
  fill.style.width = `${Math.max(0, Math.min(1, budget_left)) * 100}%`;
  bar.append(fill);
  left.append(bar, element("span", "budget-words", `budget ${words}`));

  const burns = element("ul", "burns");
  for (const { window_secs, burn } of promise.burns) {
    const item = element("li", burnKind(burn));
    item.title = "how many times as fast as allowed the error budget is spent";
    item.append(`${named(window_secs)} `, element("b", "", burn == null ? "–" : times(burn)));
    burns.append(item);
  }
  made.append(kept, left, burns);
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
