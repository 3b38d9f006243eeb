// Percentiles of the call so far. Pure: nothing here touches the page.

// Nearest rank: the smallest measured value that at least this share of the values does not exceed.
export function percentile(values, share) {
  if (!values.length) return null;
  const ascending = [...values].sort((one, other) => one - other);
  const rank = Math.ceil(share * values.length - 1e-9); // 0.95 × 180 is a little over 171
  return ascending[Math.max(rank, 1) - 1];
}

// With fewer turns the longest one is shown in place of the p95, which would be the same.
const ENOUGH_TURNS = 20;

export class CallFigures {
  constructor() {
    this.firstTokens = [];
    this.voiceToVoice = [];
  }

  // A turn without an answer has no first token. A turn whose answer did not play has no
  // voice-to-voice time, and neither has a fallback text. The race after a tool call belongs to the
  // turn that called the tool.
  count({ outcome, continues, ttft_secs, voice_to_voice_secs }) {
    if (ttft_secs != null && !continues) this.firstTokens.push(ttft_secs);
    if (voice_to_voice_secs != null && outcome !== "failed") {
      this.voiceToVoice.push(voice_to_voice_secs);
    }
  }

  get summary() {
    return { ttft: summed(this.firstTokens), voiceToVoice: summed(this.voiceToVoice) };
  }
}

function summed(values) {
  return {
    count: values.length,
    p50_secs: percentile(values, 0.5),
    tail: values.length < ENOUGH_TURNS ? "longest" : "p95",
    tail_secs: percentile(values, values.length < ENOUGH_TURNS ? 1 : 0.95),
  };
}
