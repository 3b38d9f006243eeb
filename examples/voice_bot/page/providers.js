// The state of each provider, and the outcomes of its requests in this call.

import { breakable, element } from "./dom.js";

const COLUMNS = [
  ["p50, s", "median time to first token"],
  ["p95, s", "95th percentile of the time to first token"],
  ["requests", "requests in this call"],
  ["won", "answers that you heard"],
  ["closed", "requests that were closed because another one was faster"],
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
  cell("p50", provider.p50_secs.toFixed(2));
  cell("p95", provider.p95_secs.toFixed(2));
  for (const key of ["requests", "won", "superseded", "failed"]) {
    cell(key, String(provider[key]), provider[key] ? `count ${key}` : "count zero");
  }
  body.append(naming, figures);
  return body;
}

// What the latencies rest on, by the weight of the published figures in them.
function basis(priorWeight) {
  if (priorWeight < 0.05) return "measured";
  return priorWeight > 0.95 ? "assumed" : `${Math.round(priorWeight * 100)}\u00a0% assumed`;
}

function chips(provider) {
  const made = [];
  const chip = (kind, text) => made.push(element("span", `chip ${kind}`, text));
  if (provider.is_last) {
    chip("paused", "comes last: it rejected a request");
  } else if (provider.breaker !== "closed") {
    const kind = provider.breaker === "open" ? "excluded" : "paused";
    chip(kind, provider.breaker === "open" ? "breaker open" : "breaker half open");
    if (provider.breaker_reason) chip("problem", provider.breaker_reason);
  } else if (provider.retry_after_secs > 0) {
    const until = new Date(Date.now() + provider.retry_after_secs * 1000).toLocaleTimeString();
    chip("paused", `retry after ${until}`);
  } else {
    chip("usable", "usable");
  }
  if (provider.server) {
    const { is_up, running, waiting, detail } = provider.server;
    if (is_up) chip(waiting ? "problem" : "", `server: ${running} running, ${waiting} waiting`);
    else chip("problem", `server down${detail ? `: ${detail}` : ""}`);
  }
  if (provider.in_flight >= provider.limit) {
    chip("problem", `at its limit: ${provider.in_flight} of ${provider.limit} requests in flight`);
  }
  if (provider.was_first) chip("first", "primary");
  const basisChip = element("span", "chip basis", basis(provider.prior_weight));
  basisChip.title = "whether p50 and p95 were measured, or are published figures of such models";
  made.push(basisChip);
  if (provider.interrupted) chip("", `${provider.interrupted} interrupted by you`);
  if (provider.last_error) {
    chip("problem", `last error: ${provider.last_error.replaceAll("_", " ")}`);
  }
  return made;
}
