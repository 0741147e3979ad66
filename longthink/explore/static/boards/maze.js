// A maze: the bluer a cell, the likelier the network holds it to be on the path. Drag S and G, draw walls.
import { ramp, rgb } from "../colours.js";
import { squareSide } from "../dom.js";

export class MazeBoard {
  constructor() {
    this.grabs = true; // what is dragged here must not scroll the page
    this.cursor = null;
    this.drawing = false;
    this.held = null;
    this.preview = null;
  }

  size(width, problem) {
    const cells = problem.rows.length + 2;
    const cell = Math.max(2, Math.min(40, Math.floor(squareSide(width, 660, this.beside) / cells)));
    return [cell * cells, cell * cells];
  }

  draw(g, width, height, scene) {
    const { frame, thought, colours } = scene;
    const rows = this.preview ?? drawn(scene);
    const side = rows.length;
    const cell = width / (side + 2);
    const chance = frame ? thought.part(frame, "chance") : null;
    const levels = ramp(colours.floor, colours.path);
    const wall = rgb(colours.wall);
    // Two pixels a cell, as the network sees it, then enlarged without smoothing.
    const small = new OffscreenCanvas(2 * side + 4, 2 * side + 4);
    const pixels = new ImageData(2 * side + 4, 2 * side + 4);
    for (let y = 0; y < 2 * side + 4; y += 1) {
      for (let x = 0; x < 2 * side + 4; x += 1) {
        const letter = rows[(y >> 1) - 1]?.[(x >> 1) - 1] ?? "#";
        const level = chance ? chance[(y - 2) * 2 * side + (x - 2)] : 0;
        const colour = letter === "#" ? wall : levels[level];
        pixels.data.set([...colour, 255], 4 * (y * (2 * side + 4) + x));
      }
    }
    small.getContext("2d").putImageData(pixels, 0, 0);
    g.imageSmoothingEnabled = false;
    g.drawImage(small, 0, 0, width, height);
    this._ends(g, rows, cell, colours);
    if (this.cursor) {
      g.lineWidth = 2.5;
      g.strokeStyle = colours.stir;
      g.strokeRect((this.cursor[1] + 1) * cell, (this.cursor[0] + 1) * cell, cell, cell);
    }
  }

  _ends(g, rows, cell, colours) {
    for (const [letter, colour] of [
      ["S", colours.start],
      ["G", colours.goal],
    ]) {
      const [y, x] = find(rows, letter);
      const radius = Math.max(5, Math.min(18, cell * 0.62));
      g.beginPath();
      g.arc((x + 1.5) * cell, (y + 1.5) * cell, radius, 0, 7);
      g.fillStyle = colour;
      g.fill();
      g.lineWidth = Math.max(1.5, radius * 0.16);
      g.strokeStyle = "#ffffff";
      g.stroke();
      g.fillStyle = "#ffffff";
      g.font = `700 ${Math.round(radius * 1.15)}px system-ui, sans-serif`;
      g.textAlign = "center";
      g.textBaseline = "middle";
      g.fillText(letter, (x + 1.5) * cell, (y + 1.56) * cell);
    }
  }

  describe({ problem, frame, thought }) {
    const side = problem.rows.length;
    const where = (letter) => find(problem.rows, letter).map((n) => n + 1).join(", column ");
    const length = problem.rows.join("").replace(/[^*SG]/g, "").length;
    const start = `A maze of ${side} by ${side} cells; start at row ${where("S")}, goal at row ${where("G")}.`;
    if (!frame) return start;
    return `${start} The shortest path has ${length} cells; the network marks ${marked(thought.part(frame, "chance"), problem.rows)}.`;
  }

  remark({ problem }) {
    return problem.several ? "Several paths are shortest here; one of them alone, or every cell of all of them, counts as solved." : "";
  }

  hit(x, y, width, { problem, frame, thought }) {
    const place = this._place(x, y, width, problem);
    if (!place || !frame) return null;
    const [row, column] = place;
    const letter = problem.rows[row][column];
    if (letter === "#") return `row ${row + 1}, column ${column + 1}: wall`;
    const chance = thought.part(frame, "chance");
    const wide = 2 * problem.rows.length;
    const mean = [0, 1, wide, wide + 1].reduce((sum, d) => sum + chance[2 * row * wide + 2 * column + d], 0) / 4;
    return `row ${row + 1}, column ${column + 1}: ${Math.round((100 * mean) / 255)}% on the path`;
  }

  // Pointer and keyboard; edit(text) hands the new maze over.
  press(x, y, width, scene) {
    const rows = drawn(scene);
    const place = this._place(x, y, width, scene.problem);
    if (!place) return false;
    const near = ["S", "G"].find((letter) => {
      const [row, column] = find(rows, letter);
      const reach = Math.max(0.75, 14 / (width / (rows.length + 2)));
      return Math.hypot(row - place[2], column - place[3]) <= reach;
    });
    if (!near && !this.drawing) return false;
    this.preview = [...rows];
    this.held = near ?? (this.preview[place[0]][place[1]] === "#" ? " " : "#");
    if (!near) this._put(place[0], place[1], this.held);
    return true;
  }

  drag(x, y, width, { problem }, edit) {
    const place = this._place(x, y, width, problem);
    if (!place || !this.held || !this.preview) return;
    if (this._put(place[0], place[1], this.held) && "SG".includes(this.held)) edit(text(this.preview), true);
  }

  release(edit) {
    if (this.preview) edit(text(this.preview), false);
    this.held = null;
    this.preview = null;
  }

  key(event, scene, edit) {
    const rows = drawn(scene);
    const side = rows.length;
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    this.cursor ??= find(rows, "G");
    if (event.key in moves) {
      const [dy, dx] = moves[event.key];
      this.cursor = [clamp(this.cursor[0] + dy, side), clamp(this.cursor[1] + dx, side)];
      const [y, x] = this.cursor;
      const meaning = { "#": "wall", S: "start", G: "goal" }[rows[y][x]] ?? "free";
      return `Row ${y + 1}, column ${x + 1}: ${meaning}.`;
    }
    const letter = { s: "S", g: "G", w: "w" }[event.key.toLowerCase()];
    if (!letter) return null;
    const [y, x] = this.cursor;
    this.preview = [...rows];
    const put = letter === "w" ? (this.preview[y][x] === "#" ? " " : "#") : letter;
    const done = this._put(y, x, put);
    const maze = text(this.preview);
    this.preview = null;
    if (done) edit(maze, false);
    return done ? { w: "Wall changed.", S: "Start moved.", G: "Goal moved." }[letter] : "Not here.";
  }

  _place(x, y, width, problem) {
    const cell = width / (problem.rows.length + 2);
    const [row, column] = [y / cell - 1, x / cell - 1];
    const [fullRow, fullColumn] = [Math.floor(row), Math.floor(column)];
    const inside = fullRow >= 0 && fullColumn >= 0 && fullRow < problem.rows.length && fullColumn < problem.rows.length;
    return inside ? [fullRow, fullColumn, row - 0.5, column - 0.5] : null;
  }

  _put(y, x, letter) {
    const now = this.preview[y][x];
    if (now === letter || "SG".includes(now) || ("SG".includes(letter) && now === "#")) return false;
    if ("SG".includes(letter)) {
      const [oldY, oldX] = find(this.preview, letter);
      this.preview[oldY] = replaced(this.preview[oldY], oldX, " ");
    }
    this.preview[y] = replaced(this.preview[y], x, letter);
    return true;
  }
}

const clamp = (n, side) => Math.max(0, Math.min(side - 1, n));
const replaced = (row, at, letter) => row.slice(0, at) + letter + row.slice(at + 1);

function find(rows, letter) {
  const y = rows.findIndex((row) => row.includes(letter));
  return [y, rows[y].indexOf(letter)];
}

// The cells as somebody has drawn them: a stroke that cuts S off from G may be half of a new maze.
function drawn({ problem, draft }) {
  const rows = draft?.split("\n").slice(1, -1).map((row) => row.slice(1, -1).replaceAll(".", " "));
  return rows?.length === problem.rows.length ? rows : problem.rows.map((row) => row.replaceAll("*", " "));
}

// As the server reads it: with a border, free cells as dots.
function text(rows) {
  const edge = "#".repeat(rows.length + 2);
  return [edge, ...rows.map((row) => `#${row.replace(/[ *]/g, ".")}#`), edge].join("\n");
}

function marked(chance, rows) {
  const wide = 2 * rows.length;
  let count = 0;
  rows.forEach((row, y) => {
    [...row].forEach((letter, x) => {
      const at = 2 * y * wide + 2 * x;
      if (letter !== "#" && [0, 1, wide, wide + 1].every((d) => chance[at + d] >= 128)) count += 1;
    });
  });
  return count;
}
