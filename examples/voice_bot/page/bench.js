// A row of buttons for each simulated provider, which make it slow, fail or work.

import { breakable, element } from "./dom.js";

const PATH = "/simulated";

export class Bench {
  // `fail` shows an error to the user.
  constructor(place, fail) {
    Object.assign(this, { place, fail });
  }

  // Shows nothing if no provider is simulated.
  async load() {
    const response = await fetch(PATH).catch(() => null);
    if (response?.ok) this.show(await response.json());
  }

  show({ providers, behaviours }) {
    this.place.hidden = !providers.length;
    this.place.replaceChildren(
      element("p", "bench-title", "Break one and ask again:"),
      ...providers.map((one) => this.row(one, behaviours)),
    );
  }

  row({ provider, behaviour: current }, behaviours) {
    const row = element("div", "bench-row");
    row.dataset.provider = provider;
    const name = breakable(element("span", "bench-name"), provider);
    const buttons = element("div", "bench-buttons");
    buttons.setAttribute("role", "group");
    buttons.setAttribute("aria-label", `${provider} is`);
    for (const { name, title } of behaviours) {
      const button = element("button", "", name);
      button.type = "button";
      button.title = title;
      button.dataset.behaviour = name;
      button.setAttribute("aria-pressed", String(name === current));
      button.addEventListener("click", () => this.set(provider, name));
      buttons.append(button);
    }
    row.append(name, buttons);
    return row;
  }

  async set(provider, behaviour) {
    const response = await fetch(PATH, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ provider, behaviour }),
    }).catch(() => null);
    if (response?.ok) this.show(await response.json());
    else this.fail("The simulated provider could not be changed. Is the bot still running?");
  }
}
