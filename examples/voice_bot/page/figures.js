// How the call has been so far: percentiles of what was measured. Nothing here touches the page.

// The smallest value that at least this share of the values does not exceed (nearest rank): always
// one that was measured, so of a few values the p95 is the largest.
export function percentile(values, share) {
  if (!values.length) return null;
  const ascending = [...values].sort((one, other) => one - other);
  const rank = Math.ceil(share * values.length - 1e-9); // 0.95 × 180 is a little over 171
  return ascending[Math.max(rank, 1) - 1];
}

export class CallFigures {
  constructor() {
    this.firstTokens = [];
    this.voiceToVoice = [];
  }

  // A race without an answer has no first token, and one whose answer nobody heard no voice-to-voice;
  // an apology is heard, but is no answer.
  count({ outcome, ttft_secs, voice_to_voice_secs }) {
    if (ttft_secs != null) this.firstTokens.push(ttft_secs);
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
    p95_secs: percentile(values, 0.95),
  };
}
