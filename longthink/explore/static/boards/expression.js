// An expression: its tokens with their gates, what each attends to, the gates of all steps, and the chance of each answer.
import { mix, ramp } from "../colours.js";

const BARS = 96;
const TOKENS = 46;
const GAP = 34;

export class ExpressionBoard {
  constructor() {
    this.head = "max";
    this.cursor = null; // a cell of the attention matrix: [to, from]
  }

  size(width, problem, thought) {
    const wide = Math.min(width, 760);
    const columns = problem.columns.length;
    let high = BARS + GAP + TOKENS;
    if (thought.shape("attention")) high += GAP + this._matrix(wide, columns);
    if (thought.shape("gate")) high += GAP + this._strip(columns);
    return [wide, high + 6];
  }

  _matrix(width, columns) {
    return Math.min(width - 34, Math.max(150, columns * 22), 420) + 24;
  }

  _strip(columns) {
    return columns ? 120 : 0;
  }

  draw(g, width, height, scene) {
    const { problem, thought } = scene;
    const columns = problem.columns;
    this.areas = [];
    let top = 0;
    this._answers(g, width, top, scene);
    top += BARS + GAP;
    this._tokens(g, width, top, scene);
    top += TOKENS;
    if (thought.shape("gate")) {
      this._gates(g, width, top + GAP, this._strip(columns.length), scene);
      top += GAP + this._strip(columns.length);
    }
    if (thought.shape("attention")) this._attention(g, width, top + GAP, this._matrix(width, columns.length) - 24, scene);
  }

  _title(g, text, y, colours) {
    g.fillStyle = colours.soft;
    g.font = "12.5px system-ui, sans-serif";
    g.textAlign = "left";
    g.textBaseline = "alphabetic";
    g.fillText(text, 0, y - 9);
  }

  _answers(g, width, top, { problem, frame, thought, colours }) {
    const chance = frame ? thought.part(frame, "chance") : null;
    const best = frame ? thought.part(frame, "answer")[0] : -1;
    const wide = Math.min(58, width / problem.answers.length);
    const room = BARS - 22;
    problem.answers.forEach((name, i) => {
      const share = chance ? chance[i] / 255 : 0;
      const right = name === problem.truth;
      const colour = right ? colours.right : i === best ? colours.wrong : colours.faint;
      const x = i * wide;
      g.fillStyle = colours.shade;
      g.fillRect(x, top, wide - 5, room);
      g.fillStyle = colour;
      g.fillRect(x, top + room * (1 - share), wide - 5, room * share);
      if (i === best) {
        g.strokeStyle = colour;
        g.lineWidth = 2;
        g.strokeRect(x + 1, top + 1, wide - 7, room - 2);
      }
      g.fillStyle = i === best ? colour : colours.soft;
      g.font = `${i === best ? 700 : 500} 13px ui-monospace, monospace`;
      g.textAlign = "center";
      g.textBaseline = "alphabetic";
      g.fillText(name, x + (wide - 5) / 2, top + BARS - 5);
      this.areas.push([x, top, wide, BARS, () => `${name}: ${Math.round(100 * share)}%${right ? ", the right answer" : ""}`]);
    });
  }

  _tokens(g, width, top, { problem, frame, thought, colours }) {
    const columns = problem.columns.length ? problem.columns : problem.words;
    const gate = frame ? thought.part(frame, "gate") : null;
    this._title(g, gate ? "Gates now: the bluer, the wider open" : "Tokens", top, colours);
    const wide = width / columns.length;
    columns.forEach((word, i) => {
      const share = gate ? gate[i] / 255 : 0;
      g.fillStyle = mix(colours.shade, colours.path, share);
      g.fillRect(i * wide, top, Math.max(2, wide - 2), TOKENS - 8);
      this._word(g, word, i * wide + wide / 2 - 1, top + TOKENS / 2 - 4, wide, share > 0.55 ? colours.paper : colours.ink);
      this.areas.push([i * wide, top, wide, TOKENS - 8, () => `${word}${gate ? `: gate ${share.toFixed(2)}` : ""}`]);
    });
  }

  _word(g, word, x, y, room, ink) {
    const size = Math.min(14, (room - 1) / Math.max(1, word.length * 0.64));
    if (size < 5) return;
    g.font = `600 ${size}px ui-monospace, monospace`;
    g.textAlign = "center";
    g.textBaseline = "middle";
    g.fillStyle = ink;
    g.fillText(word, x, y);
  }

  _gates(g, width, top, height, { problem, thought, colours, step }) {
    const columns = problem.columns.length;
    const frames = thought.frames.slice(1, step + 1);
    const steps = Math.max(thought.about.trained_steps || 1, frames.length);
    this._title(g, `Gates at steps 1 to ${steps}, from top to bottom`, top, colours);
    const high = height - 6;
    const levels = ramp(colours.shade, colours.path);
    const pixels = new ImageData(columns, steps);
    for (let i = 0; i < columns * steps; i += 1) pixels.data.set([...levels[0], 255], 4 * i);
    frames.forEach((frame, t) => {
      thought.part(frame, "gate").forEach((level, i) => pixels.data.set([...levels[level], 255], 4 * (t * columns + i)));
    });
    this._enlarge(g, pixels, 0, top, width, high);
    this.areas.push([0, top, width, high, (x, y) => {
      const [column, t] = [Math.floor((x / width) * columns), Math.floor((y / high) * steps)];
      const frame = frames[t];
      return frame ? `step ${t + 1}, ${problem.columns[column]}: gate ${(thought.part(frame, "gate")[column] / 255).toFixed(2)}` : null;
    }]);
  }

  weights({ frame, thought }) {
    const [heads, n] = thought.shape("attention");
    const all = thought.part(frame, "attention");
    if (this.head !== "max") return all.subarray(this.head * n * n, (this.head + 1) * n * n);
    const most = new Uint8Array(n * n);
    for (let i = 0; i < heads * n * n; i += 1) most[i % (n * n)] = Math.max(most[i % (n * n)], all[i]);
    return most;
  }

  _attention(g, width, top, side, scene) {
    const { problem, frame, thought, colours } = scene;
    const n = thought.shape("attention")[1];
    const left = 34;
    const which = this.head === "max" ? "all heads" : `head ${this.head}`;
    this._title(g, `Attention of ${which}: each row looks at columns`, top, colours);
    if (!frame) return;
    const weights = this.weights(scene);
    const levels = ramp(colours.shade, colours.heat);
    const pixels = new ImageData(n, n);
    weights.forEach((level, i) => pixels.data.set([...levels[level], 255], 4 * i));
    this._enlarge(g, pixels, left, top, side, side);
    const cell = side / n;
    problem.columns.forEach((word, i) => {
      this._word(g, word, left / 2, top + (i + 0.5) * cell, Math.min(left, cell * 2.4), colours.soft);
      this._word(g, word, left + (i + 0.5) * cell, top + side + 11, cell, colours.soft);
    });
    if (this.cursor) {
      g.strokeStyle = colours.ink;
      g.lineWidth = 2;
      g.strokeRect(left + this.cursor[1] * cell, top + this.cursor[0] * cell, cell, cell);
    }
    this.areas.push([left, top, side, side, (x, y) => this._value(Math.floor(y / cell), Math.floor(x / cell), scene)]);
  }

  _value(to, from, scene) {
    const { problem } = scene;
    const n = problem.columns.length;
    const value = this.weights(scene)[to * n + from] / 255;
    return `${problem.columns[to]} (${to + 1}) looks at ${problem.columns[from]} (${from + 1}): ${value.toFixed(2)}`;
  }

  _enlarge(g, pixels, x, y, width, height) {
    const small = new OffscreenCanvas(pixels.width, pixels.height);
    small.getContext("2d").putImageData(pixels, 0, 0);
    g.imageSmoothingEnabled = false;
    g.drawImage(small, x, y, width, height);
  }

  describe({ problem, frame, thought }) {
    if (!frame) return `The expression ${problem.text}.`;
    const answer = problem.answers[thought.part(frame, "answer")[0]];
    return `The expression ${problem.text}. The network answers ${answer}; right is ${problem.truth}.`;
  }

  remark({ problem, frame, thought }) {
    if (!frame) return "";
    const answer = problem.answers[thought.part(frame, "answer")[0]];
    return `The network answers ${answer}; right is ${problem.truth}.`;
  }

  hit(x, y) {
    for (const [left, top, wide, high, say] of this.areas ?? []) {
      if (x >= left && x < left + wide && y >= top && y < top + high) return say(x - left, y - top);
    }
    return null;
  }

  press() {
    return false;
  }

  drag() {}

  release() {}

  key(event, scene) {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const n = scene.problem.columns.length;
    if (!(event.key in moves) || !scene.frame || !scene.thought.shape("attention")) return null;
    const [to, from] = this.cursor ?? [n - 1, -1];
    const [dy, dx] = moves[event.key];
    this.cursor = [Math.max(0, Math.min(n - 1, to + dy)), Math.max(0, Math.min(n - 1, from + dx))];
    return this._value(...this.cursor, scene);
  }
}
