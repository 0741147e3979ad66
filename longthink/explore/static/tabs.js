// What the tabs differ in: the picture, the controls of the problem, and their words.
import { BitsBoard } from "./boards/bits.js";
import { ChessBoard } from "./boards/chess.js";
import { ExpressionBoard } from "./boards/expression.js";
import { MazeBoard } from "./boards/maze.js";
import { SudokuBoard } from "./boards/sudoku.js";
import { el, field } from "./dom.js";

const share = (what) => (value) => `${(100 * value).toFixed(value > 0.9995 || value < 0.1 ? 0 : 1)}% of ${what} right`;

// A text that is sent with a button or the Enter key.
function typed(view, label, options, many = false) {
  view.typed = el(many ? "textarea" : "input", { class: "code", spellcheck: false, autocapitalize: "off", ...options });
  const go = () => view.pose({ text: view.typed.value });
  view.typed.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      go();
    }
  });
  return [field(label, view.typed), el("div", { class: "row" }, el("button", { type: "button", onclick: go }, "Think about this"))];
}

function number(view, label, low, high, value, step = 1) {
  view.sizes = el("input", { type: "number", min: low, max: high, step, value, onchange: () => view.another() });
  return field(label, view.sizes);
}

const STYLES = {
  depth_first: "depth first",
  kruskal: "Kruskal",
  wilson: "Wilson",
  percolation: "percolation",
  rooms: "halls",
  loops: "with loops",
};

const maze = {
  id: "maze",
  title: "Maze",
  tasks: ["mazes"],
  board: () => new MazeBoard(),
  heading: "Find the way from S to G",
  lead: "The shipped network was trained on depth-first mazes of 9 by 9 cells alone; with more steps it solves larger ones. It has never seen the other styles. Drag S or G while it thinks: it looks again and keeps its thoughts.",
  ramp: "how likely a cell is on the path",
  correct: "free cells that are right",
  share: share("the free cells"),
  another: "New maze",
  swapped: "Another maze’s thoughts",
  first: () => ({ size: 21, seed: 3 }),
  controls(view) {
    view.styles = el(
      "select",
      { onchange: () => view.another() },
      ...view.catalogue.styles.map((style) => el("option", { value: style }, STYLES[style] ?? style)),
    );
    const size = number(view, "Cells a side (odd)", 3, view.catalogue.limits.mazes, 21, 2);
    return [el("div", { class: "row" }, size, field("Style", view.styles))];
  },
  more(view) {
    const toggle = el("button", {
      type: "button",
      "aria-pressed": "false",
      onclick: () => {
        view.board.drawing = !view.board.drawing;
        toggle.setAttribute("aria-pressed", String(view.board.drawing));
        view.frameBox.classList.toggle("drawing", view.board.drawing);
      },
    }, "Draw walls");
    return [toggle, el("button", { type: "button", onclick: () => view.pose({ text: openField(Number(view.sizes.value)) }, false) }, "No walls")];
  },
  ready(view) {
    view.sizes.value = view.thought.about.problems[0].size;
    if (!view.thought.script.problem.text) view.styles.value = view.thought.script.problem.style ?? "depth_first";
  },
};

// A field to draw on: S and G in opposite corners.
function openField(size) {
  const side = Math.max(3, Math.min(101, size || 9));
  const row = ".".repeat(side);
  const edge = "#".repeat(side + 2);
  const rows = Array.from({ length: side }, (_, y) => (y === 0 ? `S${row.slice(1)}` : y === side - 1 ? `${row.slice(1)}G` : row));
  return [edge, ...rows.map((one) => `#${one}#`), edge].join("\n");
}

const bits = {
  id: "bits",
  title: "Prefix sums",
  tasks: ["prefix_sums"],
  board: () => new BitsBoard(),
  heading: "Is the number of ones so far odd?",
  lead: "Below each bit stands the parity of all bits up to it. Click a bit to flip it while the network thinks, and watch the change travel through the string.",
  solved: "Right",
  correct: "bits that are right",
  share: share("the bits"),
  another: "New bits",
  swapped: "Another string’s thoughts",
  first: () => ({ size: 128, seed: 1 }),
  controls: (view) => [
    el("div", { class: "row" }, number(view, "How many bits", 4, view.catalogue.limits.prefix_sums, 128)),
    ...typed(view, "Or type them", {
      placeholder: "1011001110",
      inputMode: "numeric",
      // As long as it has the same length, the string changes while the network thinks.
      oninput: () => {
        const text = view.typed.value.replace(/\s/g, "");
        if (/^[01]+$/.test(text) && text.length === view.thought.about?.problems[0].text.length) view.edit(text);
      },
    }),
  ],
  ready(view) {
    view.sizes.value = view.thought.about.problems[0].size;
    if (document.activeElement !== view.typed) view.typed.value = view.thought.about.problems.at(-1).text;
  },
};

const inRows = (cells) => cells.replace(/(.{9})(?=.)/g, "$1\n");

const sudoku = {
  id: "sudoku",
  title: "Sudoku",
  tasks: ["sudoku"],
  board: () => new SudokuBoard(),
  heading: "Fill every row, column and box",
  lead: "The paler a digit, the less sure the network is. Wrong digits are red; a corner marks those that occur twice in a row, column or box. Choose a cell and type a digit to change the puzzle.",
  correct: "cells that are right",
  share: share("the cells"),
  another: "New puzzle",
  swapped: "Another puzzle’s thoughts",
  first: () => ({ size: 40, seed: 1 }),
  controls: (view) => [
    el("div", { class: "row" }, number(view, "Given cells", 22, 80, 40)),
    ...typed(view, "Or type 81 cells, . for a blank one", {}, true),
  ],
  draft: (view) => view.typed.value,
  edited: (view, text) => (view.typed.value = inRows(text)), // kept though it may be refused: it may be half a puzzle
  ready: (view) => (view.typed.value = inRows(view.thought.about.problems.at(-1).text)),
};

const chess = {
  id: "chess",
  title: "Chess",
  tasks: ["chess"],
  board: () => new ChessBoard(),
  heading: "Where does the best move begin and end?",
  lead: "The hotter a square, the likelier the network holds it to be one of the two squares of the best move. It was shown puzzles and their first moves, never the rules.",
  ramp: "how likely a square belongs to the move",
  rampColour: "heat",
  solved: "Found",
  correct: "squares of the move found",
  share: share("the two squares"),
  another: "New puzzle",
  swapped: "Another puzzle’s thoughts",
  first: () => ({ text: "r1bqkb1r/pppp1ppp/2n2n2/4p2Q/2B1P3/8/PPPP1PPP/RNB1K1NR w KQkq - 0 1" }),
  controls: (view) => [
    el("div", { class: "row" }, number(view, "Tenth by rating (1 is the easiest)", 1, 10, 1)),
    ...typed(view, "Or type a position (FEN)", {}, true),
  ],
  more(view) {
    if (!view.catalogue.engine) return [];
    const button = el("button", {
      type: "button",
      onclick: async () => {
        button.disabled = true;
        const fen = view.scene().problem.text;
        const answer = await fetch(`api/engine?fen=${encodeURIComponent(fen)}`).then((reply) => reply.json());
        button.disabled = false;
        if (answer.error) view.say(answer.error);
        else view.say(`Stockfish plays ${answer.move} (${answer.from}–${answer.to}); dotted on the board.`);
        view.board.engine = answer.error ? null : [answer.from, answer.to];
        view.paint();
      },
    }, "Ask Stockfish");
    return [button];
  },
  ready(view) {
    view.board.engine = null;
    view.typed.value = view.thought.about.problems.at(-1).text;
  },
};

const EXAMPLES = { listops: "[SM [MAX 2 9] 3 [MED 1 4 8]]", arithmetic: "((4*7)+(2*(3+5)))", ctl: "101 d a b e" };

const expressions = {
  id: "expressions",
  title: "Expressions",
  tasks: ["listops", "arithmetic", "ctl"],
  board: () => new ExpressionBoard(),
  heading: "Work out a nested expression",
  lead: "At every step each token may look at others and open its gate to change. A network that routes well opens the innermost operations first and works its way out. Point at anything for its value.",
  solved: "Right",
  correct: "chance of the right answer",
  share: (value) => `${(100 * value).toFixed(0)}% on the right answer`,
  another: "New expression",
  swapped: "Another’s thoughts",
  first: (view) => ({ text: example(view) }),
  controls(view) {
    view.heads = el("select", {
      onchange: () => {
        view.board.head = view.heads.value === "max" ? "max" : Number(view.heads.value);
        view.paint();
      },
    });
    return [
      ...typed(view, "Type one", {}, true),
      el("div", { class: "row" }, number(view, "Depth", 1, 60, 3), field("Attention of", view.heads)),
    ];
  },
  taskChanged(view) {
    view.typed.placeholder = example(view);
    view.sizes.value = view.catalogue.depths[view.task] ?? 3;
  },
  ready(view) {
    const heads = view.thought.shape("attention")?.[0] ?? 0;
    if (view.board.head !== "max" && view.board.head >= heads) view.board.head = "max";
    const options = [["max", "all heads"], ...Array.from({ length: heads }, (_, i) => [String(i), `head ${i}`])];
    view.heads.replaceChildren(...options.map(([value, text]) => el("option", { value }, text)));
    view.heads.value = String(view.board.head);
    if (document.activeElement !== view.typed) view.typed.value = view.thought.about.problems.at(-1).text;
  },
};

function example(view) {
  const backward = view.task === "ctl" && /backward/.test(view.weights.find((one) => one.name === view.choice.value)?.recipe ?? "");
  return backward ? "e b a d 101" : EXAMPLES[view.task];
}

export const TABS = [maze, bits, sudoku, chess, expressions];
export const TASK_NAMES = { mazes: "Maze", prefix_sums: "Prefix sums", sudoku: "Sudoku", chess: "Chess", listops: "ListOps", arithmetic: "Arithmetic", ctl: "CTL" };
