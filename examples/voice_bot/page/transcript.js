// The transcript.

import { element } from "./dom.js";

export class TranscriptView {
  constructor(list, hint) {
    this.list = list;
    this.hint = hint;
    new ResizeObserver(() => this.scroll()).observe(list);
    this.clear();
  }

  clear() {
    this.list.replaceChildren();
    this.hint.hidden = false;
    this.segments = new Map(); // the bot's text comes in segments, each sent more than once
    this.last = null;
  }

  user(text) {
    if (this.last?.speaker === "you") this.last.text.textContent += ` ${text}`;
    else this.line("you", "You", text);
    this.scroll();
  }

  bot(segment, text) {
    const known = this.segments.get(segment);
    if (known) {
      known.textContent = text;
    } else {
      const line = this.last?.speaker === "bot" ? this.last : this.line("bot", "Bot", "");
      if (line.text.childNodes.length) line.text.append(" ");
      const part = element("span", "", text);
      line.text.append(part);
      this.segments.set(segment, part);
    }
    this.scroll();
  }

  tool(name) {
    this.line("tool", "Tool", name ?? "called");
    this.scroll();
  }

  interrupted() {
    if (this.last?.speaker === "bot" && !this.last.item.querySelector(".cut")) {
      this.last.text.append(" ", element("span", "cut", "(interrupted)"));
    }
  }

  line(speaker, name, content) {
    this.hint.hidden = true;
    const item = element("li", speaker);
    const text = element("p", "text", content);
    item.append(element("span", "speaker", name), text);
    this.list.append(item);
    this.last = { speaker, text, item };
    return this.last;
  }

  scroll() {
    this.list.scrollTop = this.list.scrollHeight;
  }
}
