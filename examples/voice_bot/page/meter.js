// Shows how loud a stream is as the width of a bar.

const FLOOR_DB = -60;
const FALL = 0.85; // of what is shown remains in the next picture, so that the bar does not flicker

export class Meter {
  constructor(stream, bar) {
    this.bar = bar;
    this.context = new AudioContext();
    this.analyser = this.context.createAnalyser();
    this.analyser.fftSize = 1024;
    this.context.createMediaStreamSource(stream).connect(this.analyser);
    this.samples = new Float32Array(this.analyser.fftSize);
    this.shown = 0;
    this.frame = requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.analyser.getFloatTimeDomainData(this.samples);
    const power = this.samples.reduce((sum, sample) => sum + sample * sample, 0);
    const db = 10 * Math.log10(power / this.samples.length + 1e-10);
    const level = Math.min(1, Math.max(0, 1 - db / FLOOR_DB));
    this.shown = Math.max(level, this.shown * FALL);
    this.bar.style.transform = `scaleX(${this.shown.toFixed(3)})`;
    this.frame = requestAnimationFrame(() => this.draw());
  }

  close() {
    cancelAnimationFrame(this.frame);
    this.context.close();
    this.bar.style.transform = "scaleX(0)";
  }
}
