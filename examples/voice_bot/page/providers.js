// The providers: what is known of each now, and what it has done in this call.

import { breakable, element } from "./dom.js";

const COLUMNS = [
  ["p50, ms", "the time to first token that half of its answers are expected to stay within"],
  ["p95, ms", "the time to first token that 19 of 20 answers are expected to stay within"],
  ["assumed", "how much of p50 and p95 is still assumed, from the published figures of its kind"],
  ["asked", "requests in this call"],
  ["won", "answers that you heard"],
  ["closed", "requests that were closed because another was faster"],
  ["failed", "requests that failed"],
];

export class ProvidersView {
  constructor({ table, empty, order }) {
    Object.assign(this, { table, empty, order });
    this.clear();
  }

  clear() {
    this.table.replaceChildren();
    this.table.hidden = this.order.hidden = true;
    this.empty.hidden = false;
  }

  show({ providers, routing_reason }) {
    this.empty.hidden = true;
    this.table.hidden = false;
    this.table.replaceChildren(heading(), ...providers.map(providerRows));
    this.order.hidden = !routing_reason;
    this.order.textContent = routing_reason ? `Order: ${routing_reason}.` : "";
  }
}

function heading() {
  const head = element("thead");
  const row = element("tr");
  for (const [name, meaning] of COLUMNS) {
    const cell = element("th", "", name);
    cell.scope = "col";
    cell.title = meaning;
    row.append(cell);
  }
  head.append(row);
  return head;
}

function providerRows(provider) {
  const body = element("tbody");
  body.dataset.provider = provider.provider;
  const name = element("th", "provider-head");
  name.colSpan = COLUMNS.length;
  name.scope = "rowgroup";
  const line = element("div");
  line.append(breakable(element("span", "provider-name"), provider.provider), ...chips(provider));
  name.append(line);
  const naming = element("tr");
  naming.append(name);

  const figures = element("tr", "provider-figures");
  const cell = (key, text, className = "") => {
    const made = element("td", className, text);
    made.dataset.figure = key;
    figures.append(made);
  };
  cell("p50", String(Math.round(provider.p50_secs * 1000)));
  cell("p95", String(Math.round(provider.p95_secs * 1000)));
  cell("assumed", `${Math.round(provider.prior_weight * 100)}\u00a0%`);
  for (const key of ["requests", "won", "superseded", "failed"]) {
    cell(key, String(provider[key]), provider[key] ? `count ${key}` : "count zero");
  }
  body.append(naming, figures);
  return body;
}

function chips(provider) {
  const made = [];
  const chip = (kind, words) => made.push(element("span", `chip ${kind}`, words));
  if (provider.is_excluded) {
    chip("out", "left out: it rejects requests for good");
  } else if (provider.breaker !== "closed") {
    const kind = provider.breaker === "open" ? "out" : "resting";
    chip(kind, provider.breaker === "open" ? "left alone" : "may be tried again");
    if (provider.breaker_reason) chip("trouble", provider.breaker_reason);
  } else if (provider.retry_after_secs > 0) {
    const until = new Date(Date.now() + provider.retry_after_secs * 1000).toLocaleTimeString();
    chip("resting", `rests until ${until}, as it asked`);
  } else {
    chip("usable", "usable");
  }
  if (provider.server) {
    const { is_up, running, waiting, detail } = provider.server;
    if (is_up) chip(waiting ? "trouble" : "", `its server: ${running} running, ${waiting} waiting`);
    else chip("trouble", `its server is down${detail ? `: ${detail}` : ""}`);
  }
  if (provider.in_flight >= provider.limit) {
    chip("trouble", `no room: ${provider.in_flight} of ${provider.limit} requests in flight`);
  }
  if (provider.was_first) chip("first", "asked first");
  if (provider.interrupted) chip("", `${provider.interrupted} cut off by you`);
  if (provider.last_error) {
    const { category, turn } = provider.last_error;
    chip("trouble", `last error: ${category.replaceAll("_", " ")}, turn ${turn}`);
  }
  return made;
}
