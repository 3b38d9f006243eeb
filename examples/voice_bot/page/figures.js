// Percentiles of the call so far. Pure: nothing here touches the page.

// Nearest rank: the smallest measured value that at least this share of the values does not exceed.
// The p95 of a few values is therefore the largest.
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

  // A race without an answer has no first token. A turn whose answer did not play has no
  // voice-to-voice time, and neither has a fallback text.
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
