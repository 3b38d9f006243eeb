// The page of the voice bot: one WebRTC call, its transcript, and what the race did for each turn.
// What happens in the call arrives over the data channel as RTVI messages, Pipecat's own protocol;
// the bot adds server messages of its own: "parts" (what it is made of), "turn", "providers" and
// "promises".

import { Meter } from "./meter.js";
import { PromisesView } from "./promises.js";
import { ProvidersView } from "./providers.js";
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

const promises = new PromisesView(byId("promises"));

let call = null;

// An error that is already a sentence for the person in front of the page.
class Sentence extends Error {}

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
    connection.ontrack = (event) => this.hear(event.track);
    connection.onconnectionstatechange = () => this.stateChanged(connection.connectionState);
    const channel = connection.createDataChannel("rtvi");
    channel.onopen = () => channel.send(clientReady());
    channel.onmessage = (event) => received(JSON.parse(event.data));

    this.watch("you", this.microphone);
    await connection.setLocalDescription(await connection.createOffer());
    await gathered(connection);
    if (!connection.localDescription.sdp.includes("a=candidate")) throw new Sentence(NO_NETWORK);
    const answer = await postOffer(connection.localDescription);
    if (connection.signalingState === "closed") return;
    await connection.setRemoteDescription(answer);
    this.deadline = setTimeout(() => endCall(NO_PATH), CONNECT_TIMEOUT_MS);
  }

  hear(track) {
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
    throw new Sentence(
      `Browsers give the microphone only to secure pages, and ${location.origin} is none. ` +
        `On the computer that runs the bot, open http://127.0.0.1:${location.port || 80}/.`,
    );
  }
  try {
    return await navigator.mediaDevices.getUserMedia({
      audio: { echoCancellation: true, noiseSuppression: true, autoGainControl: true },
    });
  } catch (error) {
    throw new Sentence(
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
    setTimeout(resolve, GATHER_TIMEOUT_MS); // with what there is by then
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
    throw new Sentence("The bot does not answer. Start it again with “make bot”, then connect.");
  }
  if (!response.ok) {
    throw new Sentence(
      `The bot refused the call (status ${response.status}). The terminal in which it runs says why.`,
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

// ---- what the bot says over the data channel

const handlers = {
  "user-started-speaking": () => doing("you", "speaking"),
  "user-stopped-speaking": () => doing("you", "silent"),
  "bot-started-speaking": () => doing("bot", "speaking"),
  "bot-stopped-speaking": () => doing("bot", "silent"),
  "bot-interrupted": () => byId("bot").dataset.doing === "speaking" && interrupted(),
  "bot-llm-started": () => turns.begin(),
  "user-input": (data) => data.final && transcript.user(data.text),
  "bot-output": (data) => transcript.bot(data.segment_id, data.text),
  "llm-function-call-started": (data) => transcript.tool(data.function_name),
  "server-message": (data) => serverHandlers[data.type]?.(data),
  error: (data) => fail(`The bot reports an error: ${data.error ?? "unknown"}.`),
};

const SPEECH = {
  deepgram: "Deepgram",
  cartesia: "Cartesia",
  pocketsphinx: "pocketsphinx (offline, the restaurant's phrases only)",
  espeak: "espeak-ng (offline)",
};

const serverHandlers = {
  parts: (parts) => {
    const real = parts.llms.some((name) => name.startsWith("vllm:")); // the one that is never simulated
    const how = real ? " (simulated, but for the vLLM)" : " (simulated)";
    const llms = parts.llms.join(" and ") + (parts.simulated ? how : "");
    byId("parts").textContent = `Racing ${llms}, policy ${parts.policy}.`;
    byId("speech").textContent =
      `Hears with ${SPEECH[parts.stt] ?? parts.stt}, speaks with ${SPEECH[parts.tts] ?? parts.tts}.`;
  },
  turn: (turn) => turns.add(turn),
  providers: (message) => providers.show(message),
  promises: (message) => promises.show(message),
};

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

// ---- what the person does

async function startCall() {
  fail(null);
  transcript.clear();
  turns.clear();
  providers.clear();
  show("connecting", "connecting");
  byId("connect").textContent = "Disconnect";
  const mine = (call = new Call());
  try {
    await mine.connect();
  } catch (error) {
    if (call !== mine) return; // disconnected meanwhile
    endCall(error instanceof Sentence ? error.message : `The call failed: ${error.message}.`);
  }
}

function endCall(why) {
  call?.close();
  call = null;
  turns.end();
  show("idle", "not connected");
  doing("you", "silent");
  doing("bot", "silent");
  byId("connect").textContent = "Connect";
  byId("mute").disabled = true;
  setMuted(false);
  fail(why ?? null);
}

function setMuted(isMuted) {
  const button = byId("mute");
  button.setAttribute("aria-pressed", String(isMuted));
  button.textContent = isMuted ? "Muted" : "Mute";
  call?.mute(isMuted);
}

function show(state, words) {
  byId("state").dataset.state = state;
  byId("state").textContent = words;
}

function doing(id, what) {
  byId(id).dataset.doing = what;
  byId(id).querySelector(".doing").textContent = what;
}

function fail(why) {
  byId("error").textContent = why ?? "";
  byId("error").hidden = !why;
}

byId("connect").addEventListener("click", () => (call ? endCall() : startCall()));
byId("mute").addEventListener("click", () =>
  setMuted(byId("mute").getAttribute("aria-pressed") !== "true"),
);
window.addEventListener("pagehide", () => call?.close());
