// The page: what its controls hold, what it asks the server for, what its buttons do. See sound.js for the sound.

import { Player, SAMPLE_RATE, SampleReader, Waveform, wavFile } from "./sound.js";

/** What the server, or the way to it, has against a request. `field` is the id of the control at fault, or null. */
class Refusal extends Error {
  constructor(message, field) {
    super(message);
    this.field = field;
  }
}

const FIELDS = ["input", "voice", "response_format", "seed", "speed", "key"];
const REDUCED_MOTION_FRAME_MS = 500;
const REVOKE_MS = 60_000;
const NAME_WORDS = 5; // Of the text, in the name of a file.

const element = (id) => document.getElementById(id);
const seconds = (value_s) => `${value_s.toFixed(2)} s`;
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
const player = new Player();
const waveform = new Waveform(element("waveform"));

let model = ""; // What requests give as `model`.
let running = null; // The AbortController of what is made or heard now.
let saving = null; // That of a file that the server makes.
let speech = null; // The last answer that came to its end: { request, samples }.

// --- What the server offers ---

async function list(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Refusal(`The server answers ${path} with ${response.status}.`, null);
  return response.json();
}

async function showOffer() {
  const [models, { voices }, openapi] = await Promise.all(
    ["v1/models", "v1/audio/voices", "openapi.json"].map(list),
  );
  model = models.data[0].id;
  element("model").textContent = model;
  showVoices(voices);
  const fields = openapi.components.schemas.SpeechRequest.properties;
  const formats = fields.response_format;
  element("response_format").replaceChildren(...formats.enum.map((format) => new Option(format)));
  element("response_format").value = formats.default;
  showSpeed(fields.speed);
}

/** The model's own voices, then the other names that it answers to. */
function showVoices(voices) {
  const isOwn = ({ id, voice }) => voice === null || id === voice;
  const names = document.createElement("optgroup");
  names.label = "Other names";
  names.append(...voices.filter((card) => !isOwn(card)).map(({ id, voice }) => new Option(`${id} (${voice})`, id)));
  const own = voices.filter(isOwn).map(({ id, name }) => new Option(name, id));
  element("voice").replaceChildren(...own, ...(names.childElementCount ? [names] : []));
}

/** The speed stays hidden from a server whose document allows one value only. */
function showSpeed(schema) {
  const { minimum, maximum } = schema;
  Object.assign(element("speed"), { min: minimum, max: maximum, value: schema.default });
  element("speed-field").hidden = "const" in schema || minimum === maximum;
  showChosenSpeed();
}

function showChosenSpeed() {
  element("speed-shown").textContent = `${Number(element("speed").value)} ×`;
}

// --- What is asked of it ---

function chosen() {
  const seed = element("seed").value.trim();
  return {
    model,
    input: element("input").value,
    voice: element("voice").value,
    speed: Number(element("speed").value),
    // A seed of our own, so that the same speech can be had once more. What is no number is the server's to refuse.
    seed: seed === "" ? crypto.getRandomValues(new Uint32Array(1))[0] : /^\d+$/.test(seed) ? Number(seed) : seed,
  };
}

async function ask(request, signal) {
  const headers = { "Content-Type": "application/json" };
  if (element("key").value) headers.Authorization = `Bearer ${element("key").value}`;
  const response = await fetch("v1/audio/speech", {
    method: "POST",
    headers,
    body: JSON.stringify(request),
    signal,
  }).catch(() => {
    throw new Refusal("The server cannot be reached.", null);
  });
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const answer = await response.json().catch(() => null);
  const error = answer?.error ?? { message: `The server answers with status ${response.status}.`, param: null };
  return new Refusal(error.message, response.status === 401 ? "key" : error.param);
}

/** Every piece of an answer's samples as it arrives. */
async function* arriving(response) {
  const [bytes, samples] = [response.body.getReader(), new SampleReader()];
  for (;;) {
    const { done, value } = await bytes.read().catch(() => {
      throw new Refusal("The answer broke off before its end.", null);
    });
    if (done) return;
    const piece = samples.read(value);
    if (piece.length) yield piece;
  }
}

// --- What the buttons do ---

async function speak() {
  const clicked_ms = performance.now();
  const run = begin("Waiting for the first sound");
  speech = null;
  for (const id of ["first-sound", "duration", "made-in", "seed-used"]) element(id).textContent = "–";
  waveform.clear();
  await during(run, async () => {
    if (!model) await showOffer(); // It is not here yet, or could not be had when the page was opened.
    const request = chosen();
    const response = await ask({ ...request, response_format: "pcm" }, run.signal);
    const pieces = [];
    let samples = 0;
    for await (const piece of arriving(response)) {
      const lead_s = player.play(piece);
      if (!samples) heardFirst((performance.now() - clicked_ms) / 1000 + lead_s, request.seed);
      waveform.add(piece);
      pieces.push(piece);
      samples += piece.length;
      showDuration(samples);
    }
    element("made-in").textContent = seconds((performance.now() - clicked_ms) / 1000);
    speech = { request, samples: joined(pieces, samples) };
    waveform.complete();
    showButtons();
    await player.drained();
  });
}

function heardFirst(after_s, seed) {
  element("first-sound").textContent = `${Math.round(after_s * 1000)} ms`;
  element("seed-used").textContent = seed;
  element("status").textContent = "Speaking";
}

function showDuration(samples) {
  element("duration").textContent = seconds(samples / SAMPLE_RATE);
  const seen = `Waveform: ${(samples / SAMPLE_RATE).toFixed(1)} seconds of speech`;
  element("waveform").setAttribute("aria-label", seen);
}

async function replay() {
  const run = begin("Speaking");
  await during(run, () => {
    player.play(speech.samples);
    return player.drained();
  });
}

/** Begin to make or hear something, in the place of what was. */
function begin(status) {
  stop();
  running = new AbortController();
  player.open();
  forgetProblems();
  element("status").textContent = status;
  showButtons();
  animate(running);
  return running;
}

/** Do the work of a run, then show how it ended, unless it was stopped. */
async function during(run, work) {
  let status = "";
  try {
    await work();
    status = "Finished";
  } catch (error) {
    if (!run.signal.aborted) showProblem(error);
  } finally {
    if (running === run) end(status);
  }
}

/** Stop what runs, here and in the server. */
function stop() {
  saving?.abort();
  if (!running) return;
  running.abort();
  end("Stopped");
}

function end(status) {
  running = null;
  player.stop();
  waveform.draw(player.heardSamples());
  element("status").textContent = status;
  if (document.activeElement === element("stop")) element("speak").focus(); // A disabled button loses the focus.
  showButtons();
}

async function download() {
  const run = (saving = new AbortController());
  const format = element("response_format").value;
  const words = speech.request.input.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? ["speech"];
  const name = `${words.slice(0, NAME_WORDS).join("-")}.${format}`;
  let status = "";
  forgetProblems();
  element("status").textContent = `Making ${name}`;
  showButtons();
  try {
    save(await file(speech, format, run.signal), name);
    status = `Saved ${name}`;
  } catch (error) {
    if (run.signal.aborted) status = "Stopped";
    else showProblem(error);
  }
  saving = null;
  element("status").textContent = status;
  showButtons();
}

/** The speech in a format: from the samples that are here, or made once more by the server with the same seed. */
async function file({ request, samples }, format, signal) {
  if (format === "pcm") return new Blob([samples]);
  if (format === "wav") return new Blob(wavFile(samples));
  const response = await ask({ ...request, response_format: format, stream: false }, signal);
  return response.blob();
}

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), REVOKE_MS); // Not at once: the browser reads it a little later.
}

function showButtons() {
  element("stop").disabled = !running && !saving;
  element("replay").disabled = !speech;
  element("download").disabled = !speech || Boolean(saving);
}

function animate(run) {
  if (running !== run) return;
  waveform.draw(player.heardSamples());
  if (reducedMotion.matches) setTimeout(animate, REDUCED_MOTION_FRAME_MS, run);
  else requestAnimationFrame(() => animate(run));
}

/** Tell what went wrong beside the control at fault, else below the waveform. A fault of our own goes to the console. */
function showProblem(error) {
  if (!(error instanceof Refusal)) console.error(error);
  const { message, field } = error;
  if (!FIELDS.includes(field)) {
    element("problem").textContent = message;
    return;
  }
  element(`${field}-problem`).textContent = message.replace(`${field}: `, "");
  element(`${field}-field`)?.removeAttribute("hidden");
  element(field).setAttribute("aria-invalid", "true");
  element(field).focus();
}

function forgetProblems() {
  element("problem").textContent = "";
  for (const field of FIELDS) {
    element(`${field}-problem`).textContent = "";
    element(field).removeAttribute("aria-invalid");
  }
}

function joined(pieces, samples) {
  const all = new Int16Array(samples);
  let at = 0;
  for (const piece of pieces) {
    all.set(piece, at);
    at += piece.length;
  }
  return all;
}

// --- Wires ---

element("speech").addEventListener("submit", (event) => {
  event.preventDefault();
  speak();
});
element("stop").addEventListener("click", stop);
element("replay").addEventListener("click", replay);
element("download").addEventListener("click", download);
element("speed").addEventListener("input", showChosenSpeed);
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    speak();
  } else if (event.key === "Escape") stop();
});
showOffer().catch(showProblem);
