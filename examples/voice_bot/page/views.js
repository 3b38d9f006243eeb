// What was said, and what the race did for each turn.

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

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

export class TurnsView {
  constructor(list, empty, soFar) {
    this.list = list;
    this.empty = empty;
    this.soFar = soFar;
    this.clear();
  }

  clear() {
    this.list.replaceChildren();
    this.empty.hidden = false;
    this.soFar.hidden = true;
    this.firstTokens = [];
    this.voiceToVoice = [];
  }

  add(turn) {
    this.empty.hidden = true;
    const card = element("li", "turn");
    const head = element("div", "turn-head");
    head.append(
      element("span", "turn-number", `Turn ${turn.turn}`),
      element("span", "turn-winner", turn.winner ?? "no winner"),
      element("span", `outcome ${turn.outcome}`, OUTCOMES[turn.outcome] ?? turn.outcome),
    );
    const figures = element("dl", "figures");
    const filled = turn.filler?.spoken_secs != null && !turn.filler.was_cut;
    figures.append(figure("First token", turn.ttft_secs));
    if (filled) figures.append(figure("First sound", turn.first_sound_secs));
    figures.append(figure("Voice to voice", turn.voice_to_voice_secs));
    const attempts = element("ul", "attempts");
    const span = Math.max(SHORTEST_TRACK_SECS, ...turn.attempts.map(({ ended_secs }) => ended_secs));
    attempts.append(...turn.attempts.map((attempt) => attemptItem(attempt, span)));
    if (filled) attempts.append(fillerItem(turn.filler, span));
    card.append(head, figures, attempts);
    this.list.prepend(card);
    this.sumUp(turn);
  }

  // How the call has been so far; a turn that nobody heard says nothing of what was heard.
  sumUp(turn) {
    if (turn.ttft_secs != null) this.firstTokens.push(turn.ttft_secs);
    if (turn.voice_to_voice_secs != null) this.voiceToVoice.push(turn.voice_to_voice_secs);
    this.soFar.hidden = false;
    this.soFar.replaceChildren(
      figure("First token, p50", percentile(this.firstTokens, 0.5)),
      figure("p95", percentile(this.firstTokens, 0.95)),
      figure("Voice to voice, p50", percentile(this.voiceToVoice, 0.5)),
      figure("p95", percentile(this.voiceToVoice, 0.95)),
    );
  }
}

function percentile(values, share) {
  const ascending = [...values].sort((one, other) => one - other);
  return ascending.length ? ascending[Math.ceil(share * ascending.length) - 1] : null;
}

const CAUSES = {
  slow: "the answer was late",
  tool: "a tool was running",
  failing: "providers were failing",
};

function fillerItem(filler, span) {
  const item = element("li", "attempt filler");
  const text = element("p", "attempt-text");
  const why = CAUSES[filler.cause] ?? filler.cause;
  text.append(element("strong", "", "filler"), ` after ${ms(filler.spoken_secs)}, as ${why}`);
  const track = element("div", "track");
  track.setAttribute("aria-hidden", "true");
  const mark = element("span", "spoken");
  mark.style.left = `${Math.min((100 * filler.spoken_secs) / span, 99)}%`;
  track.append(mark);
  item.append(text, track);
  return item;
}

const SHORTEST_TRACK_SECS = 1; // most turns are shorter, and so compare at a glance

const OUTCOMES = {
  answered: "answered",
  answered_with_tools: "called a tool",
  interrupted: "interrupted",
  failed: "failed",
};

const OUTCOMES_OF_ATTEMPTS = {
  won: "won",
  superseded: "stopped, another was faster",
  failed: "failed",
  interrupted: "interrupted",
};

function figure(name, secs) {
  const cell = element("div", "figure");
  const value = element("dd", "", secs == null ? "–" : String(Math.round(secs * 1000)));
  if (secs != null) value.append(element("span", "unit", " ms"));
  cell.append(element("dt", "", name), value);
  return cell;
}

function attemptItem(attempt, span) {
  const item = element("li", `attempt ${attempt.outcome}`);
  const words = [OUTCOMES_OF_ATTEMPTS[attempt.outcome] ?? attempt.outcome];
  if (attempt.error_category) words[0] += ` (${attempt.error_category.replaceAll("_", " ")})`;
  if (attempt.ttft_secs != null) words.push(`first token after ${ms(attempt.ttft_secs)}`);
  if (attempt.launch_reason !== "primary") {
    words.push(`asked at ${ms(attempt.launched_secs)} (${attempt.launch_reason})`);
  }
  const text = element("p", "attempt-text");
  text.append(element("strong", "", attempt.provider), ` ${words.join(", ")}`);
  item.append(text, timeline(attempt, span));
  return item;
}

// The attempt's life within the turn: waiting, then answering.
function timeline(attempt, span) {
  const percent = (secs) => `${(100 * secs) / span}%`;
  const track = element("div", "track");
  track.setAttribute("aria-hidden", "true");
  const begun = attempt.launched_secs;
  const first = attempt.ttft_secs == null ? attempt.ended_secs : begun + attempt.ttft_secs;
  const waiting = element("span", "waiting");
  waiting.style.left = percent(begun);
  waiting.style.width = percent(first - begun);
  track.append(waiting);
  if (attempt.ttft_secs != null) {
    const answering = element("span", "answering");
    answering.style.left = percent(Math.min(first, 0.99 * span));
    answering.style.width = percent(Math.max(attempt.ended_secs - first, span / 100));
    track.append(answering);
  }
  return track;
}

function ms(secs) {
  return `${Math.round(secs * 1000)}\u00a0ms`;
}
