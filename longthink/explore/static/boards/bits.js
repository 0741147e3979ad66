// Prefix sums: each box has a bit above and the network's answer below. Under them every step so far as a row of
// pixels: right answers spread through the string like a wave.
import { mix, ramp } from "../colours.js";

const WAVE = 150;

export class BitsBoard {
  constructor() {
    this.cursor = null;
  }

  size(width, problem) {
    this.fit(Math.min(width, 760), problem.text.length);
    return [Math.min(width, 760), Math.ceil(problem.text.length / this.columns) * this.high + WAVE + 24];
  }

  fit(width, bits) {
    const most = Math.max(8, Math.floor(width / (bits > 512 ? 11 : bits > 128 ? 16 : 24)));
    this.columns = Math.min(bits, most - (most % 8));
    this.wide = width / this.columns;
    this.high = Math.min(46, Math.max(22, this.wide * 1.9)) + 4;
  }

  draw(g, width, height, { problem, frame, thought, colours, step }) {
    const bits = problem.text;
    this.fit(width, bits.length);
    const chance = frame ? thought.part(frame, "chance") : null;
    const half = (this.high - 4) / 2;
    g.textAlign = "center";
    g.textBaseline = "middle";
    g.font = `600 ${Math.round(Math.min(half * 0.72, this.wide * 0.62))}px ui-monospace, monospace`;
    for (let i = 0; i < bits.length; i += 1) {
      const x = (i % this.columns) * this.wide;
      const y = Math.floor(i / this.columns) * this.high;
      const wide = Math.max(2, this.wide - 2);
      g.fillStyle = bits[i] === "1" ? colours.wall : colours.shade;
      g.fillRect(x, y, wide, half);
      const share = chance ? chance[i] / 255 : 0;
      g.fillStyle = mix(colours.floor, colours.path, share);
      g.fillRect(x, y + half, wide, half);
      if (this.wide > 12) {
        g.fillStyle = bits[i] === "1" ? "#ffffff" : colours.soft;
        g.fillText(bits[i], x + wide / 2, y + half * 0.54);
        g.fillStyle = share > 0.55 ? (colours.floor === "#ffffff" ? "#ffffff" : "#0d1626") : colours.soft;
        if (chance) g.fillText(chance[i] >= 128 ? "1" : "0", x + wide / 2, y + half * 1.54);
      }
      if (chance && String(Number(chance[i] >= 128)) !== problem.truth[i]) {
        g.fillStyle = colours.wrong;
        g.fillRect(x, y + 2 * half - 3, wide, 3);
      }
      if (this.cursor === i) {
        g.strokeStyle = colours.stir;
        g.lineWidth = 2.5;
        g.strokeRect(x + 1, y + 1, wide - 2, 2 * half - 2);
      }
    }
    this._wave(g, width, Math.ceil(bits.length / this.columns) * this.high + 20, { thought, colours, step });
  }

  // Blue where the right answer is held likely, red where the wrong one is.
  _wave(g, width, top, { thought, colours, step }) {
    const frames = thought.frames.slice(0, step + 1);
    const bits = thought.about.problems[0].text.length;
    const steps = Math.max(30, frames.length);
    const [wrong, right] = [ramp(colours.floor, colours.miss), ramp(colours.floor, colours.hit)];
    const pixels = new ImageData(bits, steps);
    frames.forEach((frame, t) => {
      const chance = thought.part(frame, "chance");
      const truth = thought.problemAt(t).truth;
      for (let i = 0; i < bits; i += 1) {
        const level = truth[i] === "1" ? chance[i] : 255 - chance[i];
        const colour = level >= 128 ? right[2 * (level - 128)] : wrong[2 * (127 - level)];
        pixels.data.set([...colour, 255], 4 * (t * bits + i));
      }
    });
    const small = new OffscreenCanvas(bits, steps);
    small.getContext("2d").putImageData(pixels, 0, 0);
    g.imageSmoothingEnabled = false;
    g.fillStyle = colours.shade;
    g.fillRect(0, top, width, WAVE);
    g.drawImage(small, 0, top, width, WAVE);
    g.fillStyle = colours.soft;
    g.font = "12px system-ui, sans-serif";
    g.textAlign = "left";
    g.fillText(`${steps} steps down: blue is right, red is wrong`, 0, top - 9);
  }

  describe({ problem, frame, thought }) {
    if (!frame) return `${problem.text.length} bits: ${problem.text.slice(0, 64)}.`;
    const chance = thought.part(frame, "chance");
    const answer = [...chance].map((level) => (level >= 128 ? "1" : "0")).join("");
    const wrong = [...answer].filter((bit, i) => bit !== problem.truth[i]).length;
    return `${problem.text.length} bits. The network answers ${answer.slice(0, 64)}${answer.length > 64 ? "…" : ""}; ${wrong} are wrong.`;
  }

  hit(x, y, width, { problem, frame, thought }) {
    const i = this._bit(x, y, problem);
    if (i === null || !frame) return null;
    const share = Math.round((100 * thought.part(frame, "chance")[i]) / 255);
    return `bit ${i + 1} is ${problem.text[i]}; its answer is 1 with ${share}%, and should be ${problem.truth[i]}`;
  }

  _bit(x, y, problem) {
    const row = Math.floor(y / this.high);
    const column = Math.floor(x / this.wide);
    const i = row * this.columns + column;
    return column >= 0 && column < this.columns && i >= 0 && i < problem.text.length ? i : null;
  }

  press(x, y, width, { problem }) {
    this.pressed = this._bit(x, y, problem);
    this.before = problem.text;
    return this.pressed !== null;
  }

  drag() {}

  release(edit) {
    if (this.pressed === null || this.pressed === undefined) return;
    edit(flipped(this.before, this.pressed), false);
    this.pressed = null;
  }

  key(event, { problem }, edit) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns };
    this.cursor ??= 0;
    if (event.key in moves) {
      this.cursor = Math.max(0, Math.min(problem.text.length - 1, this.cursor + moves[event.key]));
      return `Bit ${this.cursor + 1} is ${problem.text[this.cursor]}.`;
    }
    const wanted = { f: "flip", 0: "0", 1: "1" }[event.key.toLowerCase()];
    if (wanted === undefined) return null;
    if (wanted !== problem.text[this.cursor]) edit(flipped(problem.text, this.cursor), false);
    return `Bit ${this.cursor + 1} changed.`;
  }
}

const flipped = (bits, at) => bits.slice(0, at) + (bits[at] === "1" ? "0" : "1") + bits.slice(at + 1);
