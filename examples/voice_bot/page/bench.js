// A row of buttons for each simulated provider, which make it slow, fail or work.

import { breakable, element } from "./dom.js";

const PATH = "/simulated";

export class Bench {
  // `fail` shows an error to the user; null clears it.
  constructor(place, fail) {
    Object.assign(this, { place, fail });
  }

  // Shows nothing if no provider is simulated.
  async load() {
    const response = await fetch(PATH).catch(() => null);
    if (!response?.ok) return;
    const { providers } = await response.json();
    this.place.hidden = !providers.length;
    this.place.replaceChildren(
      element("p", "bench-title", "Break one and ask again:"),
      ...providers.map(({ provider, behaviours }) => this.row(provider, behaviours)),
    );
    this.press(providers);
  }

  row(provider, behaviours) {
    const row = element("div", "bench-row");
    row.dataset.provider = provider;
    const label = breakable(element("span", "bench-name"), provider);
    const buttons = element("div", "bench-buttons");
    buttons.setAttribute("role", "group");
    buttons.setAttribute("aria-label", `${provider} is`);
    for (const { name, title } of behaviours) {
      const button = element("button", "", name);
      button.type = "button";
      button.title = title;
      button.dataset.behaviour = name;
      button.addEventListener("click", () => this.set(provider, name));
      buttons.append(button);
    }
    row.append(label, buttons);
    return row;
  }

  press(providers) {
    const current = new Map(providers.map(({ provider, behaviour }) => [provider, behaviour]));
    for (const button of this.place.querySelectorAll("button")) {
      const { provider } = button.closest(".bench-row").dataset;
      const isPressed = current.get(provider) === button.dataset.behaviour;
      button.setAttribute("aria-pressed", String(isPressed));
    }
  }

  async set(provider, behaviour) {
    const response = await fetch(PATH, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ provider, behaviour }),
    }).catch(() => null);
    const answer = await response?.json().catch(() => null);
    if (response?.ok) {
      this.press(answer.providers);
      this.fail(null);
    } else {
      this.fail(`${provider} could not be changed: ${answer?.detail ?? "the bot does not answer"}.`);
    }
  }
}
