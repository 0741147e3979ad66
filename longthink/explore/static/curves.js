// Under the picture: how right the answer is (0 to 1) and how much the state changes (logarithmic) at every step.
import { prepare } from "./dom.js";

const HIGH = 132;
const LEFT = 40;
const RIGHT = 44;
const TOP = 8;
const BOTTOM = 20;
const DECADES = [-6, 0.5]; // of the change

export class Curves {
  constructor(canvas, player) {
    this.canvas = canvas;
    this.player = player;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this._scrub(event);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (event.buttons) this._scrub(event);
    });
  }

  _scrub(event) {
    const box = this.canvas.getBoundingClientRect();
    const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    this.player.show(Math.min(this.player.last, Math.round(share * this.span)));
  }

  get span() {
    return Math.max(30, this.player.last);
  }

  draw(colours, lines) {
    const width = this.canvas.parentElement.clientWidth;
    if (!width) return;
    this.paint(prepare(this.canvas, width, HIGH), width, HIGH, colours, lines);
  }

  // lines: one [thought, colour] for each network.
  paint(g, width, height, colours, lines) {
    const inner = { x: LEFT, y: TOP, w: width - LEFT - RIGHT, h: height - TOP - BOTTOM };
    const x = (step) => inner.x + (inner.w * step) / this.span;
    g.clearRect(0, 0, width, height);
    const trained = Math.min(this.span, lines[0][0].about?.trained_steps ?? 0);
    g.fillStyle = colours.shade;
    g.fillRect(inner.x, inner.y, x(trained) - inner.x, inner.h);
    this._axes(g, inner, x, colours, trained);
    for (const [thought, colour] of lines) this._happenings(g, inner, x, thought, colours);
    for (const [thought, colour] of lines) {
      this._line(g, thought, colours, colour ?? colours.soft, [4, 4], 1.4, x, (frame) => inner.y + inner.h * (1 - level(frame.change)), (frame) => frame.change > 0);
      this._line(g, thought, colours, colour ?? colours.right, [], 2.4, x, (frame) => inner.y + inner.h * (1 - frame.correct), (frame) => !Number.isNaN(frame.correct));
    }
    g.strokeStyle = colours.ink;
    g.lineWidth = 1.5;
    g.beginPath();
    g.moveTo(x(this.player.shown), inner.y - 4);
    g.lineTo(x(this.player.shown), inner.y + inner.h + 3);
    g.stroke();
  }

  _axes(g, inner, x, colours, trained) {
    g.font = "11px system-ui, sans-serif";
    g.textBaseline = "middle";
    g.lineWidth = 1;
    for (const share of [0, 0.5, 1]) {
      const y = inner.y + inner.h * (1 - share);
      g.strokeStyle = colours.line;
      g.beginPath();
      g.moveTo(inner.x, y);
      g.lineTo(inner.x + inner.w, y);
      g.stroke();
      g.fillStyle = colours.soft;
      g.textAlign = "right";
      g.fillText(`${100 * share}%`, inner.x - 6, y);
    }
    g.textAlign = "left";
    for (const power of [-6, -3, 0]) {
      g.fillText(power ? `10${superscript(power)}` : "1", inner.x + inner.w + 6, inner.y + inner.h * (1 - level(10 ** power)));
    }
    g.textBaseline = "alphabetic";
    g.textAlign = "center";
    const gap = nice(this.span / 6);
    for (let step = 0; step <= this.span; step += gap) g.fillText(String(step), x(step), inner.y + inner.h + 15);
    if (trained > 0 && x(trained) - inner.x > 74) {
      g.fillStyle = colours.faint;
      g.textAlign = "left";
      g.fillText("as trained", inner.x + 5, inner.y + inner.h - 6);
    }
  }

  _happenings(g, inner, x, thought, colours) {
    g.strokeStyle = colours.stir;
    g.fillStyle = colours.stir;
    g.lineWidth = 1.2;
    for (const change of thought.script?.changes ?? []) {
      const at = x(change.step);
      g.setLineDash([2, 3]);
      g.beginPath();
      g.moveTo(at, inner.y);
      g.lineTo(at, inner.y + inner.h);
      g.stroke();
      g.setLineDash([]);
      g.beginPath();
      g.moveTo(at - 4, inner.y - 5);
      g.lineTo(at + 4, inner.y - 5);
      g.lineTo(at, inner.y + 2);
      g.fill();
    }
  }

  _line(g, thought, colours, colour, dash, thick, x, y, there) {
    g.strokeStyle = colour;
    g.lineWidth = thick;
    g.lineJoin = "round";
    g.setLineDash(dash);
    g.beginPath();
    let open = false;
    for (const frame of thought.frames) {
      if (!there(frame)) {
        open = false;
        continue;
      }
      if (open) g.lineTo(x(frame.step), y(frame));
      else g.moveTo(x(frame.step), y(frame));
      open = true;
    }
    g.stroke();
    g.setLineDash([]);
  }
}

function level(change) {
  const share = (Math.log10(change) - DECADES[0]) / (DECADES[1] - DECADES[0]);
  return Math.max(0, Math.min(1, share));
}

function nice(gap) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, gap)));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= gap);
}

const superscript = (n) => [...String(n)].map((c) => ({ "-": "⁻", 3: "³", 6: "⁶" })[c] ?? c).join("");
