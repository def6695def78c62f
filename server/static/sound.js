// Samples on their way through the page: s16le mono at SAMPLE_RATE, which is what the server's format `pcm` is.
//
// SampleReader  bytes of the network, however they were cut → samples
// Player        samples → the loudspeaker, without gaps
// Waveform      samples → a picture in two tones: what was heard, what is made
// wavFile       samples → a file

export const SAMPLE_RATE = 24_000;
const SAMPLE_BYTES = 2;
const FULL_SCALE = 32_768;
const LEAD_S = 0.04; // Between the arrival of samples after silence and their sound: room for the next to arrive.

export class SampleReader {
  #odd = new Uint8Array(0);

  /** Whole samples as an Int16Array (all that browsers run on is little-endian); an odd byte waits for the next call. */
  read(bytes) {
    const joined = new Uint8Array(this.#odd.length + bytes.length);
    joined.set(this.#odd);
    joined.set(bytes, this.#odd.length);
    const samples = Math.floor(joined.length / SAMPLE_BYTES);
    this.#odd = joined.slice(samples * SAMPLE_BYTES);
    return new Int16Array(joined.buffer, 0, samples);
  }
}

export class Player {
  #context = null;
  #sources = new Set();
  #endSample = 0; // Where the last scheduled sample ends, counted on the context's clock.
  #scheduledSamples = 0;
  #heardSamples = 0;

  /** Start the clock. Browsers want this to be called while a click or key press is handled. */
  open() {
    // At the samples' own rate, so that no chunk is resampled by itself, which would be heard at its borders.
    this.#context ??= new AudioContext({ sampleRate: SAMPLE_RATE, latencyHint: "interactive" });
    this.#context.resume();
    this.#scheduledSamples = this.#heardSamples = 0;
  }

  /** Schedule samples right behind the last ones; returns how many seconds from now they sound. */
  play(samples) {
    const buffer = this.#context.createBuffer(1, samples.length, SAMPLE_RATE);
    buffer.getChannelData(0).set(Float32Array.from(samples, (sample) => sample / FULL_SCALE));
    const now_s = this.#context.currentTime;
    if (this.#endSample < now_s * SAMPLE_RATE) this.#endSample = Math.ceil((now_s + LEAD_S) * SAMPLE_RATE);
    const start_s = this.#endSample / SAMPLE_RATE;
    const source = new AudioBufferSourceNode(this.#context, { buffer });
    source.connect(this.#context.destination);
    source.onended = () => this.#sources.delete(source);
    source.start(start_s);
    this.#sources.add(source);
    this.#endSample += samples.length;
    this.#scheduledSamples += samples.length;
    return start_s - now_s;
  }

  /** Resolves when all that is scheduled by now has sounded or was stopped. */
  async drained() {
    const last = [...this.#sources].at(-1);
    if (last) await new Promise((resolve) => last.addEventListener("ended", resolve));
  }

  /** Fall silent at once. */
  stop() {
    this.#scheduledSamples = this.heardSamples();
    for (const source of this.#sources) source.stop();
    this.#sources.clear();
    this.#endSample = 0;
  }

  /** How many of the samples since `open` were heard. */
  heardSamples() {
    const ahead = Math.max(0, this.#endSample - this.#context.currentTime * SAMPLE_RATE);
    // Ahead counts the lead after a silence too; what was heard stays heard.
    this.#heardSamples = Math.max(this.#heardSamples, this.#scheduledSamples - Math.ceil(ahead));
    return this.#heardSamples;
  }
}

export class Waveform {
  static #PEAK_SAMPLES = SAMPLE_RATE / 100;
  static #BAR_PX = 3;
  static #PITCH_PX = 5;
  static #SHORTEST_S = 4;

  #canvas;
  #peaks = []; // The largest magnitude of every 10 ms, 0 to 1.
  #samples = 0;
  #spanSamples = 0; // What the width stands for.
  #heardSamples = 0;

  constructor(canvas) {
    this.#canvas = canvas;
    new ResizeObserver(() => this.draw(this.#heardSamples)).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw(this.#heardSamples));
    this.clear();
  }

  clear() {
    this.#peaks = [];
    this.#samples = this.#heardSamples = 0;
    this.#spanSamples = Waveform.#SHORTEST_S * SAMPLE_RATE;
    this.draw(0);
  }

  add(samples) {
    for (const sample of samples) {
      const peak = Math.floor(this.#samples++ / Waveform.#PEAK_SAMPLES);
      this.#peaks[peak] = Math.max(this.#peaks[peak] ?? 0, Math.abs(sample) / FULL_SCALE);
    }
    // Grows in steps, so that bars stand still most of the time.
    while (this.#spanSamples < this.#samples) this.#spanSamples *= 1.5;
  }

  /** All samples are here: the width stands for just them. */
  complete() {
    this.#spanSamples = Math.max(this.#samples, 1);
  }

  draw(heardSamples) {
    this.#heardSamples = heardSamples;
    const { clientWidth: width_px, clientHeight: height_px } = this.#canvas;
    this.#canvas.width = width_px * devicePixelRatio;
    this.#canvas.height = height_px * devicePixelRatio;
    const pen = this.#canvas.getContext("2d");
    pen.scale(devicePixelRatio, devicePixelRatio);
    const colours = getComputedStyle(this.#canvas);
    const [heard, made, rest] = ["--heard", "--made", "--line"].map((name) => colours.getPropertyValue(name));
    const bars = Math.floor((width_px + Waveform.#PITCH_PX - Waveform.#BAR_PX) / Waveform.#PITCH_PX);
    for (let bar = 0; bar < bars; bar++) {
      const [from, to] = [bar, bar + 1].map((border) => (border / bars) * this.#spanSamples);
      // Speech is quiet most of the time: the square root shows it.
      const bar_px = Math.max(Waveform.#BAR_PX, Math.sqrt(this.#peak(from, to)) * height_px);
      pen.fillStyle = from >= this.#samples ? rest : from < heardSamples ? heard : made;
      pen.beginPath();
      pen.roundRect(bar * Waveform.#PITCH_PX, (height_px - bar_px) / 2, Waveform.#BAR_PX, bar_px, Waveform.#BAR_PX / 2);
      pen.fill();
    }
  }

  #peak(fromSample, toSample) {
    const first = Math.floor(fromSample / Waveform.#PEAK_SAMPLES);
    const end = Math.max(first + 1, Math.floor(toSample / Waveform.#PEAK_SAMPLES));
    return Math.max(0, ...this.#peaks.slice(first, end));
  }
}

/** The parts of a WAV file: 44 bytes of header, then the samples. */
export function wavFile(samples) {
  const audioBytes = samples.byteLength;
  const header = new DataView(new ArrayBuffer(44));
  const text = (at, letters) => [...letters].forEach((letter, i) => header.setUint8(at + i, letter.charCodeAt(0)));
  text(0, "RIFF");
  header.setUint32(4, 36 + audioBytes, true);
  text(8, "WAVEfmt ");
  header.setUint32(16, 16, true);
  header.setUint16(20, 1, true); // PCM
  header.setUint16(22, 1, true);
  header.setUint32(24, SAMPLE_RATE, true);
  header.setUint32(28, SAMPLE_RATE * SAMPLE_BYTES, true);
  header.setUint16(32, SAMPLE_BYTES, true);
  header.setUint16(34, 8 * SAMPLE_BYTES, true);
  text(36, "data");
  header.setUint32(40, audioBytes, true);
  return [header, samples];
}
