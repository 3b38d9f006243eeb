// A turn as a chart, one row for each request, tool, filler and answer, on one time axis. Zero is the
// caller's last sound or, in a turn without caller speech, the moment the LLM was called.

import { breakable, element, inSecs } from "./dom.js";

const SHORTEST_SECS = 1; // most turns are shorter: one scale makes them comparable
const AFTERMATH = 1.5; // of the time until the last event; the streaming of the answer is cut
const STEPS_SECS = [0.2, 0.5, 1, 2, 5, 10, 20, 50];
const MOST_STEPS = 5;
const TOOL_SECS = 0.02; // quicker tools have no row
const CONNECTING_SECS = 0.05; // quicker connections are not mentioned
const FILLER_SECS = 0.25; // drawn length of a filler whose end is not known

const ENDINGS = {
  won: "won",
  superseded: "closed, another one was faster",
  failed: "failed",
  interrupted: "closed, you spoke",
};

const REASONS = {
  hedge: "hedge",
  failure: "after the failure",
  silence: "after the silence",
  stall: "after the stall",
};

const CAUSES = {
  slow: "the answer was late",
  tool: "a tool was running",
  failing: "providers were failing",
};

const ORIGINS = {
  user_silence: "you fell silent",
  turn_end: "your turn ended",
  context: "the LLM was called",
};

// Whether a filler played before the answer.
export function fillerHeard(races) {
  const { heard } = races.at(-1);
  if (heard?.sound_secs == null) return false;
  const spoken = races.some(({ filler }) => filler?.spoken_secs != null && !filler.was_cut);
  return spoken && (heard.answer_secs == null || heard.sound_secs < heard.answer_secs - 0.02);
}

export function chart(races, { wasCut, spoken: speech }) {
  const drawing = new Drawing(span(races));
  const { origin, asked_secs, transcripts } = races[0];
  if (asked_secs > 0 && origin !== "context") {
    const heard = origin === "user_silence" ? transcripts.at(-1) : null;
    const marks = heard ? transcriptMarks(transcripts) : "";
    const wait = heard?.transcript_secs;
    const note = wait == null ? "silent" : `transcript ${inSecs(wait)}`;
    drawing.row("You", note + marks);
    drawing.bar("pause", 0, asked_secs);
    if (wait != null) drawing.bar(marks ? "waiting rescued" : "waiting", 0, wait);
    drawing.caption(0, `pause that ended your turn, ${inSecs(asked_secs)}`);
  }
  races.forEach((race, number) => {
    if (number) drawTool(drawing, races[number - 1], race);
    drawRace(drawing, race);
  });
  drawHeard(drawing, races, wasCut, speech);
  drawing.axis(`0 is when ${ORIGINS[origin] ?? origin}`);
  return drawing.grid;
}

// The main moments by name, each with the sign that marks it in the chart.
export function moments(races) {
  const found = [];
  const add = (sign, name, secs) => found.push({ sign, name, secs });
  const { heard } = races.at(-1);
  for (const race of races) {
    if (race.asked_secs > 0) add("asked", race.continues ? "LLM called again" : "LLM called", race.asked_secs);
    if (race.committed_secs != null) add("commit", "committed", race.committed_secs);
  }
  if (fillerHeard(races)) add("filler", "first sound, a filler", heard.sound_secs);
  if (heard?.answer_secs != null) add("answer", `${spoken(races)} heard`, heard.answer_secs);
  const list = element("ul", "moments");
  for (const { sign, name, secs } of found.sort((one, other) => one.secs - other.secs)) {
    const item = element("li");
    item.append(element("span", `sign ${sign}`), `${name} `, element("strong", "", inSecs(secs)));
    list.append(item);
  }
  return list;
}

function drawRace(drawing, race) {
  const winner = committedAttempt(race);
  for (const attempt of race.attempts) {
    const ending = ENDINGS[attempt.outcome] ?? attempt.outcome;
    const cause = attempt.error_category ? `: ${attempt.error_category.replaceAll("_", " ")}` : "";
    drawing.row(attempt.provider, ending + cause, `attempt ${attempt.outcome}`);
    drawing.mark("asked", attempt.launched_secs);
    const first = attempt.first_token_secs;
    drawing.bar("waiting", attempt.launched_secs, first ?? attempt.ended_secs);
    if (first != null) drawing.bar("answering", first, attempt.ended_secs);
    if (attempt.outcome !== "won") drawing.mark(`closed ${attempt.outcome}`, attempt.ended_secs);
    if (attempt === winner) drawing.mark("commit", race.committed_secs);
    drawing.caption(attempt.launched_secs, described(attempt));
  }
  if (!race.attempts.length) drawing.row("LLM", "no provider available");
}

function described(attempt) {
  const lasted = inSecs(attempt.ended_secs - attempt.launched_secs);
  let result =
    attempt.ttft_secs == null
      ? `no token in ${lasted}`
      : `first token in ${inSecs(attempt.ttft_secs)}`;
  if (attempt.connecting_secs >= CONNECTING_SECS) {
    result += `, ${inSecs(attempt.connecting_secs)} of it to connect`;
  }
  const reason = REASONS[attempt.launch_reason];
  return reason ? `${reason}: ${result}` : result;
}

// Whether another recogniser had to help.
function transcriptMarks(transcripts) {
  const isRescued = transcripts.some(({ is_rescued }) => is_rescued);
  const isReplaced = transcripts.some(({ was_replaced }) => was_replaced);
  return (isRescued ? ", rescued" : "") + (isReplaced ? ", replaced" : "");
}

// The attempt whose answer was committed; the commit is marked in its row.
function committedAttempt(race) {
  if (race.committed_secs == null) return null;
  const answering = race.attempts.filter(
    ({ outcome, first_token_secs }) => outcome !== "superseded" && first_token_secs != null,
  );
  return answering.find(({ first_token_secs }) => first_token_secs <= race.committed_secs) ?? null;
}

function drawTool(drawing, before, race) {
  const ended = Math.max(...before.attempts.map(({ ended_secs }) => ended_secs));
  if (race.asked_secs - ended < TOOL_SECS) return;
  drawing.row("Tool", "called");
  drawing.bar("pause", ended, race.asked_secs);
  drawing.caption(ended, `LLM called again after ${inSecs(race.asked_secs - ended)}`);
}

function drawHeard(drawing, races, wasCut, speech) {
  const { heard, outcome } = races.at(-1);
  const { answer_secs: answer, sound_secs: sound } = heard ?? {};
  const filled = fillerHeard(races);
  const isCut = wasCut || heard?.interrupted || outcome === "interrupted";
  if (answer == null && sound == null) {
    drawing.row("You hear", isCut ? "nothing: you spoke first" : "nothing", "heard none");
    return;
  }
  const answered = spoken(races);
  const note = filled ? `a filler, the ${answered}` : `the ${answered}`;
  const marks = voiceMarks(speech);
  drawing.row("You hear", isCut ? "cut off: you spoke" : marks || note, "heard");
  const texts = [];
  if (filled) {
    const { cause } = races.map(({ filler }) => filler).findLast((f) => f?.spoken_secs != null);
    const end = heard.filler_end_secs ?? Math.min(sound + FILLER_SECS, answer ?? Infinity);
    drawing.bar("filler", sound, end);
    drawing.mark("filler", sound);
    texts.push(`filler, as ${CAUSES[cause] ?? cause}`);
  }
  if (answer == null && !filled) {
    drawing.bar("spoken", sound, drawing.span);
    texts.push(`a sound after ${inSecs(sound)}`);
  }
  if (answer != null) {
    drawing.bar(isCut ? "spoken cut" : "spoken", answer, drawing.span);
    drawing.mark("answer", answer);
    texts.push(`${answered} after ${inSecs(answer)}`);
    const wait = speech[0]?.first_sound_secs; // from the text of the first sentence on
    if (wait != null) {
      drawing.bar(marks ? "waiting rescued" : "waiting", Math.max(answer - wait, 0), answer);
      texts[texts.length - 1] += `, voice ${inSecs(wait)}`;
    }
  }
  drawing.caption(sound ?? answer, texts.join("; "));
}

// What the voices did with the sentences, where it was more than to say them.
function voiceMarks(speech) {
  const sum = (name) => speech.reduce((total, each) => total + each[name], 0);
  const [all, rescued, silent] = ["sentences", "rescued", "left_out"].map(sum);
  const texts = [rescued && `${rescued} of ${all} rescued`, silent && `${silent} left out`];
  return texts.filter(Boolean).join(", ");
}

// If every provider failed, the bot speaks the fallback text.
function spoken(races) {
  return races.at(-1).outcome === "failed" ? "fallback text" : "answer";
}

function span(races) {
  const { heard } = races.at(-1);
  const key = [heard?.sound_secs, heard?.filler_end_secs, heard?.answer_secs];
  const ends = [];
  for (const race of races) {
    key.push(race.asked_secs, race.committed_secs);
    for (const attempt of race.attempts) {
      key.push(attempt.launched_secs, attempt.first_token_secs);
      (attempt.outcome === "won" ? ends : key).push(attempt.ended_secs);
    }
  }
  const last = Math.max(...key.map((secs) => secs ?? 0));
  const wanted = Math.max(last * 1.2, ...ends);
  return Math.max(SHORTEST_SECS, Math.min(wanted, last * AFTERMATH));
}

class Drawing {
  constructor(spanSecs) {
    this.span = spanSecs;
    this.grid = element("div", "chart");
  }

  percent(secs) {
    return Math.min((100 * secs) / this.span, 100);
  }

  row(name, note, kind = "") {
    const row = element("div", `row ${kind}`);
    const label = element("p", "row-label");
    label.append(breakable(element("span", "row-name"), name), element("span", "row-note", note));
    this.track = element("div", "track");
    const what = element("div", "row-what");
    what.append(this.track);
    row.append(label, what);
    this.what = what;
    this.grid.append(row);
  }

  bar(kind, from, to) {
    const left = this.percent(from);
    const bar = element("span", `bar ${kind}`);
    bar.style.left = `${Math.min(left, 99)}%`;
    bar.style.width = `${Math.max(this.percent(to) - left, 0.6)}%`;
    if (to > this.span) bar.classList.add("goes-on");
    this.track.append(bar);
  }

  mark(kind, secs) {
    const mark = element("span", `mark ${kind}`);
    mark.style.left = `${this.percent(secs)}%`;
    this.track.append(mark);
  }

  // Under the bar, at its beginning, or pushed back from the right edge.
  caption(secs, text) {
    const caption = element("p", "caption", text);
    const left = this.percent(secs);
    if (left > 45) caption.classList.add("at-end");
    else caption.style.marginLeft = `${left}%`;
    this.what.append(caption);
  }

  axis(origin) {
    const row = element("div", "row axis");
    const ticks = element("div", "ticks");
    const step = STEPS_SECS.find((secs) => this.span / secs <= MOST_STEPS) ?? this.span;
    for (let n = 0; n * step <= this.span; n += 1) {
      const secs = n * step;
      const isLast = this.percent(secs) > 88; // its label does not fit
      const text = n ? `${Number(secs.toFixed(1))}\u00a0s` : "0";
      const tick = element("span", "tick", isLast ? "" : text);
      tick.style.left = `${this.percent(secs)}%`;
      ticks.append(tick);
    }
    row.append(element("p", "row-label row-note", origin), ticks);
    this.grid.append(row);
  }
}
