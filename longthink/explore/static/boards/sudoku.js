// Sudoku: the network's digits are the paler the less sure it is; wrong ones are red, and cells whose digit occurs twice
// in a row, column or box have a corner.
import { mix } from "../colours.js";
import { squareSide } from "../dom.js";

export class SudokuBoard {
  constructor() {
    this.cursor = null;
  }

  size(width) {
    const side = squareSide(width, 540, this.beside);
    return [side, side];
  }

  draw(g, width, height, scene) {
    const { problem, frame, thought, colours } = scene;
    const cells = draftCells(scene) ?? problem.text;
    const drafted = cells !== problem.text;
    const cell = width / 9;
    const answer = frame ? thought.part(frame, "answer") : null;
    const chance = frame ? thought.part(frame, "chance") : null;
    // What somebody gave twice is the first thing to know; the answer is to the puzzle before.
    const twice = drafted ? conflicts(cells) : answer ? conflicts(answer) : new Set();
    g.fillStyle = colours.floor;
    g.fillRect(0, 0, width, height);
    g.textAlign = "center";
    g.textBaseline = "middle";
    for (let i = 0; i < 81; i += 1) {
      const [x, y] = [(i % 9) * cell, Math.floor(i / 9) * cell];
      const given = cells[i] !== ".";
      if (given) {
        g.fillStyle = colours.shade;
        g.fillRect(x, y, cell, cell);
      }
      const written = given && (drafted || !answer);
      const digit = written ? Number(cells[i]) : answer ? answer[i] + 1 : 0;
      if (!digit) continue;
      const wrong = written ? twice.has(i) : String(digit) !== problem.truth[i];
      if (wrong) {
        g.fillStyle = mix(colours.floor, colours.wrong, 0.14);
        g.fillRect(x, y, cell, cell);
      }
      const sure = chance && !written ? chance[answer[i] * 81 + i] / 255 : 1;
      const ink = wrong ? colours.wrong : given ? colours.ink : colours.path;
      g.fillStyle = mix(given ? colours.shade : colours.floor, ink, 0.25 + 0.75 * sure);
      g.font = `${given ? 700 : 500} ${Math.round(cell * 0.56)}px system-ui, sans-serif`;
      g.fillText(String(digit), x + cell / 2, y + cell * 0.54);
      if (twice.has(i)) {
        g.fillStyle = colours.stir;
        g.beginPath();
        g.moveTo(x + cell, y);
        g.lineTo(x + cell * 0.74, y);
        g.lineTo(x + cell, y + cell * 0.26);
        g.fill();
      }
    }
    this._lines(g, width, cell, colours);
  }

  _lines(g, width, cell, colours) {
    for (let line = 0; line <= 9; line += 1) {
      const thick = line % 3 === 0;
      g.strokeStyle = thick ? colours.ink : colours.faint;
      g.lineWidth = thick ? 2 : 0.7;
      const at = Math.min(width - 1, Math.max(1, line * cell));
      g.beginPath();
      g.moveTo(at, 0);
      g.lineTo(at, width);
      g.moveTo(0, at);
      g.lineTo(width, at);
      g.stroke();
    }
    if (this.cursor !== null) {
      g.strokeStyle = colours.stir;
      g.lineWidth = 3;
      g.strokeRect((this.cursor % 9) * cell + 2, Math.floor(this.cursor / 9) * cell + 2, cell - 4, cell - 4);
    }
  }

  describe({ problem, frame, thought }) {
    const givens = problem.text.replaceAll(".", "").length;
    if (!frame) return `A sudoku with ${givens} given cells.`;
    const answer = thought.part(frame, "answer");
    const wrong = wrongCells(answer, problem);
    const rows = Array.from({ length: 9 }, (_, y) => [...answer.slice(9 * y, 9 * y + 9)].map((d) => d + 1).join(""));
    return `A sudoku with ${givens} given cells. Answer by rows: ${rows.join(" ")}. ${wrong.length} cells are wrong.`;
  }

  // Below the board, in words.
  remark(scene) {
    const { problem, frame, thought } = scene;
    const given = conflicts(draftCells(scene) ?? "");
    if (given.size) return `Given twice: ${[...given].sort((a, b) => a - b).map(place).join(", ")}.`;
    if (!frame) return "";
    const answer = thought.part(frame, "answer");
    const wrong = wrongCells(answer, problem);
    if (!wrong.length) return "No cell is wrong.";
    const named = wrong.slice(0, 8).map((i) => `${place(i)} (${answer[i] + 1}, not ${problem.truth[i]})`);
    const twice = conflicts(answer).size;
    return `${twice} cells are in conflict. Wrong: ${named.join(", ")}${wrong.length > 8 ? ` and ${wrong.length - 8} more` : ""}.`;
  }

  hit(x, y, width, { problem, frame, thought }) {
    const i = this._cell(x, y, width);
    if (i === null || !frame) return null;
    const chance = thought.part(frame, "chance");
    const digits = Array.from({ length: 9 }, (_, d) => [chance[d * 81 + i] / 255, d + 1]).sort((a, b) => b[0] - a[0]);
    const first = digits.slice(0, 3).map(([share, digit]) => `${digit}: ${Math.round(100 * share)}%`);
    return `row ${Math.floor(i / 9) + 1}, column ${(i % 9) + 1} — ${first.join(", ")} (right: ${problem.truth[i]})`;
  }

  _cell(x, y, width) {
    const [column, row] = [Math.floor((9 * x) / width), Math.floor((9 * y) / width)];
    return column >= 0 && row >= 0 && column < 9 && row < 9 ? row * 9 + column : null;
  }

  press(x, y, width) {
    this.cursor = this._cell(x, y, width);
    return this.cursor !== null;
  }

  drag() {}

  release() {}

  key(event, scene, edit, draft) {
    const given = draftCells(scene) ?? scene.problem.text;
    const moves = { ArrowUp: -9, ArrowDown: 9, ArrowLeft: -1, ArrowRight: 1 };
    this.cursor ??= 0;
    if (event.key in moves) {
      this.cursor = Math.max(0, Math.min(80, this.cursor + moves[event.key]));
      return `Row ${Math.floor(this.cursor / 9) + 1}, column ${(this.cursor % 9) + 1}: ${given[this.cursor] === "." ? "blank" : given[this.cursor]}.`;
    }
    const digit = /^[1-9]$/.test(event.key) ? event.key : ["0", ".", "Delete", "Backspace"].includes(event.key) ? "." : null;
    if (digit === null) return null;
    const cells = (draft?.() ?? given).replace(/\s/g, "").padEnd(81, ".");
    edit(cells.slice(0, this.cursor) + digit + cells.slice(this.cursor + 1), false);
    return digit === "." ? "Cleared." : `${digit}.`;
  }
}

const wrongCells = (answer, problem) => [...answer.keys()].filter((i) => String(answer[i] + 1) !== problem.truth[i]);

const place = (i) => `row ${Math.floor(i / 9) + 1} column ${(i % 9) + 1}`;

// 81 cells as somebody has typed them so far, where they are that many.
function draftCells({ draft }) {
  const cells = draft?.replace(/[\s|+-]/g, "").replaceAll("0", ".");
  return /^[1-9.]{81}$/.test(cells) ? cells : null;
}

// The cells whose digit occurs twice in a row, column or box; digits or classes, blank cells are dots.
function conflicts(digits) {
  const found = new Set();
  const unit = (cells) => {
    const filled = cells.filter((i) => digits[i] !== undefined && digits[i] !== ".");
    for (const a of filled) for (const b of filled) if (a !== b && digits[a] === digits[b]) found.add(a);
  };
  for (let i = 0; i < 9; i += 1) {
    const nine = [...Array(9).keys()];
    unit(nine.map((j) => 9 * i + j));
    unit(nine.map((j) => 9 * j + i));
    unit(nine.map((j) => 9 * (3 * Math.floor(i / 3) + Math.floor(j / 3)) + 3 * (i % 3) + (j % 3)));
  }
  return found;
}
