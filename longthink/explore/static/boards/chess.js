// Chess: the hotter a square, the likelier the best move begins or ends there. The mover plays upwards.
import { squareSide } from "../dom.js";

const GLYPHS = { k: "♚", q: "♛", b: "♝", n: "♞", r: "♜", p: "♟" };

export class ChessBoard {
  constructor() {
    this.cursor = null;
    this.engine = null; // squares of the engine's move, as names
  }

  size(width) {
    const side = squareSide(width, 560, this.beside);
    return [side, side];
  }

  draw(g, width, height, { problem, frame, thought, colours }) {
    const cell = width / 8;
    const pieces = placed(problem.text);
    const chance = frame ? thought.part(frame, "chance") : null;
    const answer = frame ? thought.part(frame, "answer") : null;
    g.textAlign = "center";
    for (let row = 0; row < 8; row += 1) {
      for (let file = 0; file < 8; file += 1) {
        const [x, y] = this._corner(row, file, cell, problem);
        const name = square(row, file, problem);
        g.globalAlpha = 1;
        const dark = (file + Number(name[1])) % 2;
        g.fillStyle = dark ? colours.dark : colours.lit;
        g.fillRect(x, y, cell, cell);
        if (chance) {
          g.globalAlpha = (0.92 * chance[8 * row + file]) / 255;
          g.fillStyle = colours.heat;
          g.fillRect(x, y, cell, cell);
          g.globalAlpha = 1;
        }
        if (pieces[name]) this._piece(g, pieces[name], x, y, cell);
        g.fillStyle = dark ? colours.onDark : colours.onLit;
        g.font = `${Math.round(cell * 0.17)}px system-ui, sans-serif`;
        g.textBaseline = "alphabetic";
        if (row === 0) g.fillText(name[0], x + cell * 0.9, y + cell * 0.95);
        if (file === (problem.black ? 7 : 0)) g.fillText(name[1], x + cell * 0.1, y + cell * 0.2);
      }
    }
    if (answer) this._frames(g, answer, cell, problem, colours);
    if (this.cursor !== null) this._frame(g, this.cursor >> 3, this.cursor & 7, cell, problem, colours.stir, []);
  }

  _piece(g, letter, x, y, cell) {
    const white = letter === letter.toUpperCase();
    g.font = `${Math.round(cell * 0.76)}px "DejaVu Sans", "Segoe UI Symbol", "Noto Sans Symbols 2", "Apple Symbols", sans-serif`;
    g.textBaseline = "middle";
    g.lineJoin = "round";
    g.lineWidth = cell * 0.05;
    g.strokeStyle = white ? "#22303c" : "#f4f6f8";
    g.fillStyle = white ? "#ffffff" : "#1b242d";
    // The selector keeps phones from showing an emoji.
    const glyph = `${GLYPHS[letter.toLowerCase()]}\uFE0E`;
    g.strokeText(glyph, x + cell / 2, y + cell * 0.54);
    g.fillText(glyph, x + cell / 2, y + cell * 0.54);
  }

  _frames(g, answer, cell, problem, colours) {
    const marked = [...answer.keys()].filter((i) => answer[i]);
    const truth = (problem.truth ?? []).map(([row, file]) => 8 * row + file);
    const right = truth.length === 2 && truth.every((i) => marked.includes(i));
    for (const i of marked) {
      this._frame(g, i >> 3, i & 7, cell, problem, !truth.length ? colours.path : right ? colours.right : colours.wrong, []);
    }
    if (!right) for (const i of truth) this._frame(g, i >> 3, i & 7, cell, problem, colours.right, [7, 5]);
    for (const name of this.engine ?? []) {
      const [row, file] = index(name, problem);
      this._frame(g, row, file, cell, problem, colours.stir, [2, 4]);
    }
  }

  _frame(g, row, file, cell, problem, colour, dash) {
    const [x, y] = this._corner(row, file, cell, problem);
    g.strokeStyle = colour;
    g.lineWidth = Math.max(2.5, cell * 0.06);
    g.setLineDash(dash);
    g.strokeRect(x + g.lineWidth / 2, y + g.lineWidth / 2, cell - g.lineWidth, cell - g.lineWidth);
    g.setLineDash([]);
  }

  // Row 0 is the mover's own, at the bottom; for Black the board is turned, as on a table.
  _corner(row, file, cell, problem) {
    return [(problem.black ? 7 - file : file) * cell, (7 - row) * cell];
  }

  move({ problem, frame, thought }) {
    const answer = thought.part(frame, "answer");
    const pieces = placed(problem.text);
    const names = [...answer.keys()].filter((i) => answer[i]).map((i) => square(i >> 3, i & 7, problem));
    const own = (name) => pieces[name] && (pieces[name] === pieces[name].toUpperCase()) !== problem.black;
    names.sort((a, b) => Number(Boolean(own(b))) - Number(Boolean(own(a))));
    return names.join("–");
  }

  describe(scene) {
    const side = scene.problem.black ? "Black" : "White";
    const start = `A chess position, ${side} to move: ${scene.problem.text}.`;
    return scene.frame ? `${start} The network marks ${this.move(scene)}.` : start;
  }

  remark(scene) {
    if (!scene.frame) return "";
    const { problem } = scene;
    const truth = problem.truth?.map(([row, file]) => square(row, file, problem)).join(" and ");
    const rating = problem.rating ? `, a puzzle rated ${problem.rating}` : "";
    return `${problem.black ? "Black" : "White"} to move${rating}. The network marks ${this.move(scene)}${truth ? `; the best move has ${truth}` : ""}.`;
  }

  hit(x, y, width, { problem, frame, thought }) {
    if (!frame) return null;
    const cell = width / 8;
    const [column, up] = [Math.floor(x / cell), 7 - Math.floor(y / cell)];
    if (column < 0 || column > 7 || up < 0 || up > 7) return null;
    const file = problem.black ? 7 - column : column;
    return `${square(up, file, problem)}: ${Math.round((100 * thought.part(frame, "chance")[8 * up + file]) / 255)}%`;
  }

  press() {
    return false;
  }

  drag() {}

  release() {}

  key(event, { problem, frame, thought }) {
    const turn = problem.black ? -1 : 1;
    const moves = { ArrowUp: 8, ArrowDown: -8, ArrowLeft: -turn, ArrowRight: turn };
    if (!(event.key in moves)) return null;
    const next = (this.cursor ?? 4) + moves[event.key];
    if (next >= 0 && next < 64) this.cursor = next;
    const name = square(this.cursor >> 3, this.cursor & 7, problem);
    const piece = placed(problem.text)[name];
    const heat = frame ? `, ${Math.round((100 * thought.part(frame, "chance")[this.cursor]) / 255)}%` : "";
    return `${name}${piece ? ` ${piece}` : ""}${heat}.`;
  }
}

// The network's row and file to a square's name, and back.
const square = (row, file, problem) => `${"abcdefgh"[file]}${problem.black ? 8 - row : row + 1}`;
const index = (name, problem) => [problem.black ? 8 - Number(name[1]) : Number(name[1]) - 1, "abcdefgh".indexOf(name[0])];

function placed(fen) {
  const pieces = {};
  fen.split(" ")[0].split("/").forEach((rank, down) => {
    let file = 0;
    for (const letter of rank) {
      if (/\d/.test(letter)) file += Number(letter);
      else {
        pieces[`${"abcdefgh"[file]}${8 - down}`] = letter;
        file += 1;
      }
    }
  });
  return pieces;
}
