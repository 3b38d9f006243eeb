// The page of the voice bot: one WebRTC call, its transcript, and what the race did for each turn.
// What happens in the call arrives over the data channel as RTVI messages, Pipecat's own protocol;
// the bot adds server messages of its own: "turn", "speech" (what was spoken of a turn's answer),
// "providers" and "slos". Its services are known before a call, at /parts.
// The bench of buttons that make simulated providers fail works without a call.

import { Bench } from "./bench.js";
import { Meter } from "./meter.js";
import { ProvidersView } from "./providers.js";
import { SlosView } from "./slos.js";
import { TranscriptView } from "./transcript.js";
import { TurnsView } from "./turns.js";

const CONNECT_TIMEOUT_MS = 15000;
const GATHER_TIMEOUT_MS = 2000;
const RTVI_VERSION = "2.2.0";

const byId = (id) => document.getElementById(id);
const transcript = new TranscriptView(byId("transcript"), byId("hint"));
const turns = new TurnsView({
  list: byId("turns"),
  empty: byId("no-turns"),
  soFar: byId("so-far"),
  legend: byId("legend"),
  underWay: byId("under-way"),
});
const providers = new ProvidersView({
  table: byId("providers"),
  empty: byId("no-providers"),
  order: byId("order"),
});

const slos = new SlosView({
  place: byId("slos"),
  summary: byId("slos-summary"),
  cards: byId("slo-cards"),
});
const bench = new Bench(byId("bench"), fail);

let call = null;

// An error whose message is shown to the user as it is.
class UserError extends Error {}

class Call {
  constructor() {
    this.connection = new RTCPeerConnection({ iceServers: [] });
    this.microphone = null;
    this.meters = [];
    this.deadline = null;
  }

  async connect() {
    this.microphone = await openMicrophone();
    const { connection } = this;
    const [track] = this.microphone.getAudioTracks();
    track.onended = () => endCall("The microphone went away. Plug it in, then connect again.");
    connection.addTransceiver(track, { direction: "sendrecv", streams: [this.microphone] });
    connection.ontrack = (event) => this.play(event.track);
    connection.onconnectionstatechange = () => this.stateChanged(connection.connectionState);
    const channel = connection.createDataChannel("rtvi");
    channel.onopen = () => {
      clearViews(); // only now: a call that does not connect leaves the last one on the page
      bench.load();
      channel.send(clientReady());
    };
    channel.onmessage = (event) => received(JSON.parse(event.data));

    this.watch("you", this.microphone);
    await connection.setLocalDescription(await connection.createOffer());
    await gathered(connection);
    if (!connection.localDescription.sdp.includes("a=candidate")) throw new UserError(NO_NETWORK);
    const answer = await postOffer(connection.localDescription);
    if (connection.signalingState === "closed") return;
    await connection.setRemoteDescription(answer);
    this.deadline = setTimeout(() => endCall(NO_PATH), CONNECT_TIMEOUT_MS);
  }

  play(track) {
    const stream = new MediaStream([track]);
    byId("audio").srcObject = stream;
    this.watch("bot", stream);
  }

  watch(id, stream) {
    this.meters.push(new Meter(stream, byId(id).querySelector(".bar span")));
  }

  stateChanged(state) {
    if (state === "connected") {
      clearTimeout(this.deadline);
      show("connected", "connected");
      byId("mute").disabled = false;
    } else if (state === "disconnected") {
      show("waiting", "connection lost, waiting for it");
    } else if (state === "failed") {
      endCall(NO_PATH);
    }
  }

  mute(isMuted) {
    for (const track of this.microphone.getAudioTracks()) track.enabled = !isMuted;
  }

  close() {
    clearTimeout(this.deadline);
    this.connection.onconnectionstatechange = null;
    this.connection.close();
    for (const meter of this.meters) meter.close();
    for (const track of this.microphone?.getTracks() ?? []) track.stop();
    byId("audio").srcObject = null;
  }
}

const NO_PATH =
  "The call could not be connected: the bot answered, but no sound can travel between it and " +
  "this browser. Open the page on the computer that runs the bot, or turn off a VPN or firewall.";

const NO_NETWORK =
  "This browser found no network to call over. Connect the computer to any network, or start " +
  "Chromium with --allow-loopback-in-peer-connection to call without one.";

async function openMicrophone() {
  if (!navigator.mediaDevices?.getUserMedia) {
    throw new UserError(
      `Browsers give the microphone only to secure pages, and ${location.origin} is none. ` +
        `On the computer that runs the bot, open http://127.0.0.1:${location.port || 80}/.`,
    );
  }
  try {
    return await navigator.mediaDevices.getUserMedia({
      audio: { echoCancellation: true, noiseSuppression: true, autoGainControl: true },
    });
  } catch (error) {
    throw new UserError(
      {
        NotFoundError: "No microphone was found. Plug one in, then connect again.",
        NotAllowedError:
          "The browser may not use the microphone. Allow it for this page (with the icon beside " +
          "the address), then connect again.",
        NotReadableError:
          "The microphone cannot be opened. Close the other program that uses it, then connect again.",
      }[error.name] ?? `The microphone cannot be opened (${error.message}).`,
    );
  }
}

function gathered(connection) {
  if (connection.iceGatheringState === "complete") return Promise.resolve();
  return new Promise((resolve) => {
    const done = () => connection.iceGatheringState === "complete" && resolve();
    connection.addEventListener("icegatheringstatechange", done);
    setTimeout(resolve, GATHER_TIMEOUT_MS); // with the candidates found so far
  });
}

async function postOffer({ sdp, type }) {
  let response;
  try {
    response = await fetch("/api/offer", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ sdp, type }),
      signal: AbortSignal.timeout(CONNECT_TIMEOUT_MS),
    });
  } catch {
    throw new UserError("The bot does not answer. Start it again with “make bot”, then connect.");
  }
  if (!response.ok) {
    throw new UserError(
      `The bot rejected the call (status ${response.status}). The reason is in the bot's terminal.`,
    );
  }
  const answer = await response.json();
  return { sdp: answer.sdp, type: answer.type };
}

function clientReady() {
  const about = { library: "pipecat-hedge-voice-bot-page" };
  const data = { version: RTVI_VERSION, about };
  return JSON.stringify({ id: "ready", label: "rtvi-ai", type: "client-ready", data });
}

// ---- the bot's messages over the data channel

const handlers = {
  "user-started-speaking": () => setActivity("you", "speaking"),
  "user-stopped-speaking": () => setActivity("you", "silent"),
  "bot-started-speaking": () => setActivity("bot", "speaking"),
  "bot-stopped-speaking": () => setActivity("bot", "silent"),
  "bot-interrupted": () => byId("bot").dataset.activity === "speaking" && interrupted(),
  "bot-llm-started": () => turns.begin(),
  "user-input": (data) => data.final && transcript.user(data.text),
  "bot-output": (data) => transcript.bot(data.segment_id, data.text),
  "llm-function-call-started": (data) => transcript.tool(data.function_name),
  "server-message": (data) => serverHandlers[data.type]?.(data),
  error: (data) => fail(`The bot reports an error: ${data.error ?? "unknown"}.`),
};

const serverHandlers = {
  turn: (turn) => turns.add(turn),
  speech: (speech) => turns.speak(speech),
  providers: (message) => providers.show(message),
  slos: (message) => slos.show(message),
};

const SPEECH = {
  deepgram: "Deepgram",
  cartesia: "Cartesia",
  pocketsphinx: "pocketsphinx (offline)",
  espeak: "espeak-ng (offline)",
};

const ONLY_PHRASES =
  "It understands only what callers of a restaurant ask, in words like these; all else is heard as the nearest of them.";

async function showParts() {
  const response = await fetch("/parts").catch(() => null);
  if (!response?.ok) return;
  const parts = await response.json();
  const real = parts.llms.some((name) => name.startsWith("vllm:")); // never simulated
  const how = real ? " (simulated, except the vLLM)" : " (simulated)";
  const llms = parts.llms.join(" and ") + (parts.simulated ? how : "");
  byId("parts").textContent = `Racing ${llms}, policy ${parts.policy.replaceAll(" ", "\u00a0")}.`;
  byId("speech").textContent =
    `Speech to text: ${SPEECH[parts.stt] ?? parts.stt}. Text to speech: ${SPEECH[parts.tts] ?? parts.tts}.`;
  byId("phrases-hint").textContent = parts.stt === "pocketsphinx" ? ONLY_PHRASES : "Ask, for example:";
}

function interrupted() {
  transcript.interrupted();
  turns.interrupt();
}

function received(message) {
  if (message.type === "signalling") {
    if (message.message?.type === "peerLeft") endCall("The bot has ended the call.");
    return;
  }
  handlers[message.type]?.(message.data ?? {});
}

// ---- user actions

async function startCall() {
  fail(null);
  show("connecting", "connecting");
  showConnectButton("Disconnect");
  const mine = (call = new Call());
  try {
    await mine.connect();
  } catch (error) {
    if (call !== mine) return; // disconnected meanwhile
    endCall(error instanceof UserError ? error.message : `The call failed: ${error.message}.`);
  }
}

function endCall(why) {
  call?.close();
  call = null;
  turns.end();
  show("idle", "not connected");
  setActivity("you", "silent");
  setActivity("bot", "silent");
  showConnectButton("Connect");
  byId("mute").disabled = true;
  setMuted(false);
  fail(why ?? null);
}

function clearViews() {
  transcript.clear();
  turns.clear();
  providers.clear();
}

function showConnectButton(text) {
  byId("connect").textContent = text;
  byId("connect").classList.toggle("primary", text === "Connect");
}

function setMuted(isMuted) {
  const button = byId("mute");
  button.setAttribute("aria-pressed", String(isMuted));
  button.textContent = isMuted ? "Muted" : "Mute";
  call?.mute(isMuted);
}

function show(state, text) {
  byId("state").dataset.state = state;
  byId("state").textContent = text;
}

function setActivity(id, activity) {
  byId(id).dataset.activity = activity;
  byId(id).querySelector(".activity").textContent = activity;
}

function fail(why) {
  byId("error").textContent = why ?? "";
  byId("error").hidden = !why;
}

byId("connect").addEventListener("click", () => (call ? endCall() : startCall()));
byId("mute").addEventListener("click", () =>
  setMuted(byId("mute").getAttribute("aria-pressed") !== "true"),
);
const wide = matchMedia("(min-width: 721px)"); // a telephone's screen is short: its legend is folded
const unfoldLegend = () => (byId("legend").open = wide.matches);
wide.addEventListener("change", unfoldLegend);
unfoldLegend();
showParts();
window.addEventListener("pagehide", () => call?.close());
bench.load();
