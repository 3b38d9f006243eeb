// What was said.

import { element } from "./dom.js";

export class TranscriptView {
  constructor(list, hint) {
    this.list = list;
    this.hint = hint;
    this.clear();
  }

  clear() {
    this.list.replaceChildren();
    this.hint.hidden = false;
    this.segments = new Map(); // what the bot says comes in segments, each sent more than once
    this.last = null;
  }

  user(text) {
    if (this.last?.who === "you") this.last.words.textContent += ` ${text}`;
    else this.line("you", "You", text);
    this.scroll();
  }

  bot(segment, text) {
    const known = this.segments.get(segment);
    if (known) {
      known.textContent = text;
    } else {
      const line = this.last?.who === "bot" ? this.last : this.line("bot", "Bot", "");
      if (line.words.childNodes.length) line.words.append(" ");
      const words = element("span", "", text);
      line.words.append(words);
      this.segments.set(segment, words);
    }
    this.scroll();
  }

  tool(name) {
    this.line("tool", "Tool", name ?? "called");
    this.scroll();
  }

  interrupted() {
    if (this.last?.who === "bot" && !this.last.item.querySelector(".cut")) {
      this.last.words.append(" ", element("span", "cut", "(interrupted)"));
    }
  }

  line(who, name, text) {
    this.hint.hidden = true;
    const item = element("li", who);
    const words = element("p", "words", text);
    item.append(element("span", "who", name), words);
    this.list.append(item);
    this.last = { who, words, item };
    return this.last;
  }

  scroll() {
    this.list.scrollTop = this.list.scrollHeight;
  }
}
