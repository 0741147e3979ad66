// Keep what is on the screen: a picture, an animation, or the numbers.
import { colours } from "./colours.js";
import { el } from "./dom.js";
import { gif } from "./gif.js";

const MARGIN = 20;
const CURVES = 150;
const MOST_PICTURES = 90;

function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// A view has one lane, a race two: [{ board, thought, colour }].
// The boards of one step, side by side on a canvas of their own.
function picture(view, step, wide, scale) {
  const drawn = view.lanes.map(({ board, thought }) => {
    const at = Math.min(step, thought.last);
    const problem = thought.problemAt(at);
    const [width, height] = board.size(wide, problem, thought);
    return { board, thought, at, problem, width, height };
  });
  const width = drawn.reduce((sum, one) => sum + one.width + MARGIN, -MARGIN);
  const height = Math.max(...drawn.map((one) => one.height));
  const canvas = new OffscreenCanvas(Math.round(width * scale), Math.round(height * scale));
  const g = canvas.getContext("2d", { willReadFrequently: true });
  g.scale(scale, scale);
  g.fillStyle = colours().paper;
  g.fillRect(0, 0, width, height);
  for (const { board, thought, at, problem, ...size } of drawn) {
    board.draw(g, size.width, size.height, { problem, frame: thought.at(at), thought, colours: colours(), step: at });
    g.translate(size.width + MARGIN, 0);
  }
  return { canvas, width, height };
}

async function savePicture(view) {
  const ink = colours();
  const { canvas: drawn, width, height } = picture(view, view.player.shown, view.lanes.length > 1 ? 420 : 640, 2);
  const wide = Math.max(width, 480) + 2 * MARGIN;
  const high = height + CURVES + 2 * MARGIN + 56;
  const canvas = new OffscreenCanvas(2 * wide, 2 * high);
  const g = canvas.getContext("2d");
  g.scale(2, 2);
  g.fillStyle = ink.paper;
  g.fillRect(0, 0, wide, high);
  g.drawImage(drawn, (wide - width) / 2, MARGIN + 30, width, height);
  g.fillStyle = ink.ink;
  g.font = "600 16px system-ui, sans-serif";
  g.fillText(view.verdict(), MARGIN, MARGIN + 12);
  g.fillStyle = ink.soft;
  g.font = "12px system-ui, sans-serif";
  g.textAlign = "right";
  g.fillText(`longthink · ${view.lanes.map(({ thought }) => thought.script.weights).join(" against ")}`, wide - MARGIN, MARGIN + 12);
  g.translate(MARGIN, height + MARGIN + 46);
  view.curves.paint(g, wide - 2 * MARGIN, CURVES, ink, view.lanes.map(({ thought, colour }) => [thought, colour && ink[colour]]));
  download(await canvas.convertToBlob({ type: "image/png" }), `${view.fileName()}.png`);
}

async function saveGif(view) {
  const until = Math.max(1, view.player.shown);
  const gap = Math.max(1, Math.ceil(until / MOST_PICTURES));
  const steps = [];
  for (let step = 0; step <= Math.min(until, view.player.last); step += gap) steps.push(step);
  const pictures = [];
  for (const step of steps) {
    const { canvas } = picture(view, step, view.lanes.length > 1 ? 300 : 420, 1);
    pictures.push(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height));
    if (pictures.length % 10 === 0) await new Promise((resume) => setTimeout(resume)); // let the page breathe
  }
  // A thought whose problem changes its drawing keeps the size of the first picture.
  const same = pictures.filter((one) => one.width === pictures[0].width && one.height === pictures[0].height);
  download(gif(same, Math.max(40, (1000 * gap) / view.player.speed)), `${view.fileName()}.gif`);
}

function saveTrace(view) {
  const trace = {
    longthink: view.catalogue.version,
    link: location.href,
    shown: view.player.shown,
    about: "steps[].bytes is base64: one byte a number, the sections in their order, probabilities as (level + 1) / 256",
    networks: view.lanes.map(({ thought }) => numbers(thought)),
  };
  download(new Blob([JSON.stringify(trace)], { type: "application/json" }), `${view.fileName()}.json`);
}

function numbers(thought) {
  const { sections, problems, parameters, flops } = thought.about;
  const base64 = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  const number = (value) => (Number.isNaN(value) ? null : Number(value.toPrecision(6)));
  return {
    script: thought.script,
    parameters,
    flops_a_step: flops,
    problems,
    sections,
    steps: thought.frames.map((frame) => ({
      step: frame.step,
      right: frame.right,
      correct: number(frame.correct),
      confidence: number(frame.confidence),
      change: number(frame.change),
      milliseconds: number(frame.milliseconds),
      bytes: base64(frame.bytes),
    })),
  };
}

export function saveButtons(view) {
  const button = (text, save) => el("button", { type: "button", onclick: () => view.lanes.every(({ thought }) => thought.about) && save(view) }, text);
  return [button("Picture", savePicture), button("GIF", saveGif), button("Trace", saveTrace)];
}
