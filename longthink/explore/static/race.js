// The same problem, two networks side by side, one clock.
import { colours } from "./colours.js";
import { Curves } from "./curves.js";
import { announce, busySign, el, field, group, prepare } from "./dom.js";
import { Player, speedControl } from "./player.js";
import { saveButtons } from "./save.js";
import { TABS, TASK_NAMES } from "./tabs.js";
import { Thought } from "./thought.js";
import { copyAddress, disturbance, HAPPENINGS, limitSizes, noSuchWeights, press, randomSeed, short, trainedOn, validationWords, verdictWords } from "./view.js";

const COLOURS = [
  ["--accent", "path"],
  ["--stir", "second"],
];
const BESIDE_A_BOARD_THAT_RACES = 560; // more is above it, and what it costs stands below
const FIRST_SIZE = { mazes: 21, prefix_sums: 64, sudoku: 40, chess: 1, listops: 3, arithmetic: 3, ctl: 4 };

export class Race {
  constructor(root, catalogue, wish, onlink) {
    Object.assign(this, { root, catalogue, onlink });
    this.thoughts = [new Thought(), new Thought()];
    this.player = new Player(this.thoughts);
    this.asked = this.taken = null; // the scripts of both: as they were asked for, and as they were taken up
    this.open = new Set(); // whose answer is awaited
    this._build();
    this._listen();
    this._start(wish);
  }

  close() {
    this.player.pause();
    this.thoughts.forEach((thought) => thought.close());
    this.watcher.disconnect();
  }

  state() {
    const [mine, other] = this.taken ?? this.asked;
    return {
      tab: "race",
      weights: mine.weights,
      rival: other.weights,
      problem: mine.problem,
      changes: mine.changes,
      step: this.player.goal ?? this.player.shown,
    };
  }

  get lanes() {
    return this.thoughts.map((thought, i) => ({ thought, board: this.racers[i].board, colour: COLOURS[i][1] }));
  }

  verdict() {
    return this.racers.map((racer, i) => `${"AB"[i]}: ${racer.headline.textContent}`).join("   ");
  }

  fileName() {
    return `longthink-race-step-${this.player.shown}`;
  }

  shortcut(key) {
    return press(this, key);
  }

  async copyLink() {
    await copyAddress(this.linkButton, this.onlink);
  }

  // The same disturbance, with the same seed, for both.
  disturb(kind) {
    if (!this.taken || !this.thoughts.every((thought) => thought.settled)) return;
    const step = Math.max(0, Math.min(this.player.shown, ...this.thoughts.map((thought) => thought.last)));
    const change = disturbance(kind);
    this._ask((thought) => thought.happen(step, change), true);
    announce(`${HAPPENINGS[kind]} at step ${step}.`);
  }

  another() {
    this.run({ size: Number(this.sizes.value), seed: randomSeed() });
  }

  run(problem, changes = [], step = null) {
    this.player.pause();
    this.player.goal = step;
    const weights = this.choices.map((choice) => choice.value);
    this._ask((thought, i) => thought.begin({ weights: weights[i], problem, changes }, step ?? 2), step === null);
  }

  // Something new for both: it counts when both have taken it up.
  _ask(send, play) {
    this.playWhenReady = play;
    this.refusal = null;
    this.open = new Set(this.thoughts);
    this.thoughts.forEach(send);
    this.asked = this.thoughts.map((thought) => thought.pending.script);
  }

  _answered(thought, refusal = null) {
    if (thought.pending || !this.open.delete(thought)) {
      if (refusal) this.say(refusal); // something that was taken up went wrong later
      return;
    }
    this.refusal ??= refusal;
    if (this.open.size) return;
    if (this.refusal) this._goBack();
    else {
      this.taken = this.thoughts.map((one) => one.script);
      limitSizes(this.sizes, thought.about);
      if (this.playWhenReady && !this.player.playing) this.player.play();
    }
    this.say(this.refusal ?? this.notice);
    this.paint();
  }

  // One of them refused, so both stay with what they had; whoever has begun already must return to it.
  _goBack() {
    if (!this.taken) return;
    this.thoughts.forEach((thought, i) => {
      if (thought.script !== this.taken[i]) thought.begin(this.taken[i], Math.max(2, this.player.shown));
    });
    this.taken = this.thoughts.map((thought) => thought.pending?.script ?? thought.script);
    const [first, second] = this.taken.map((script) => script.weights);
    this._setUp(this.catalogue.weights.find((one) => one.name === first).task, [first, second]);
  }

  say(sentence) {
    this.message.hidden = !sentence;
    this.message.textContent = sentence ?? "";
  }

  _build() {
    const tasks = TABS.flatMap((tab) => tab.tasks).filter((task) => this._fitting(task).length);
    this.tasks = el(
      "select",
      { onchange: () => this._task(this.tasks.value) },
      ...tasks.map((task) => el("option", { value: task }, TASK_NAMES[task])),
    );
    this.choices = [0, 1].map((i) => el("select", { onchange: () => this.run((this.taken ?? this.asked)[0].problem), "aria-label": `Network ${"AB"[i]}` }));
    this.sizes = el("input", { type: "number", min: 1, max: 2048, value: 21, onchange: () => this.another() });
    this.message = el("div", { class: "message", role: "alert", hidden: true });
    this.racers = [0, 1].map((i) => this._racer(i));
    const curve = el("canvas", { role: "img", "aria-label": "Curves of both networks over the steps." });
    this.curves = new Curves(curve, this.player);
    this.playButton = el("button", { class: "main play", type: "button", onclick: () => this.player.toggle() }, "Play");
    this.slider = el("input", { type: "range", min: 0, max: 30, value: 0, "aria-label": "Step", oninput: (event) => this.player.show(Number(event.target.value)) });
    this.where = el("span", { class: "where" });
    const step = (sign, label, by) =>
      el("button", { type: "button", title: label, "aria-label": label, onclick: () => this.player.show(this.player.shown + by) }, sign);
    const controls = el("div", { class: "player" }, this.playButton, step("‹", "One step back", -1), step("›", "One step on", 1), this.slider, this.where);
    const legend = el(
      "div",
      { class: "legend" },
      ...["A", "B"].map((name, i) => el("span", {}, el("i", { style: `color: var(${COLOURS[i][0]})` }), `${name}: how right`)),
      el("span", {}, el("i", { class: "dashed", style: "color: var(--soft)" }), "change of the state in a step"),
    );
    const button = (text, act, kind = "") => el("button", { type: "button", class: kind, onclick: act }, text);
    const setup = el(
      "div",
      { class: "card" },
      el("div", { class: "row race-fields" }, field("Task", this.tasks), field("A", this.choices[0]), field("B", this.choices[1]), field("Size", this.sizes)),
      el("div", { class: "row" },
        button("New problem", () => this.another(), "main"),
        button("Noise into both", () => this.disturb("noise")),
        button("Zeros into both", () => this.disturb("zeros")),
        button("Another’s thoughts into both", () => this.disturb("swapped")),
        (this.linkButton = button("Copy link", () => this.copyLink())),
        ...saveButtons(this),
      ),
      (this.hint = el("p", { class: "note" })),
    );
    this.root.replaceChildren(
      el("h2", {}, "Race"),
      el("p", { class: "lead" }, "The same problem, the same steps, two networks: with recall against without, long training against short. What each costs stands below it."),
      el("div", { class: "panel" }, setup, this.message, busySign(this.thoughts), el("div", { class: "card steering" }, controls), el("div", { class: "racers" }, ...this.racers.map((racer) => racer.card)), el("div", { class: "card curves" }, curve, el("div", { class: "under" }, legend, speedControl(this.player)))),
    );
  }

  _racer(i) {
    const canvas = el("canvas", { role: "img", "aria-label": "The problem is on its way." });
    const headline = el("strong", {}, "…");
    const detail = el("span");
    const verdict = el("div", { class: "verdict" }, headline, detail);
    const box = el("div", { class: "board" }, canvas);
    const facts = el("dl", { class: "facts" });
    const card = el("div", { class: "card", style: `--colour: var(${COLOURS[i][0]})` }, group(`Network ${"AB"[i]}`, verdict, box, facts));
    return { canvas, headline, detail, verdict, box, facts, card, board: null };
  }

  _start(wish) {
    const mine = this.catalogue.weights.find((one) => one.name === wish?.weights);
    const tasks = [...this.tasks.options].map((one) => one.value);
    const task = mine?.task ?? tasks.find((one) => this._fitting(one).length > 1) ?? tasks[0];
    const fitting = this._fitting(task).map((one) => one.name);
    const missing = [wish?.weights, wish?.rival].find((name) => name && !fitting.includes(name));
    this.notice = missing ? noSuchWeights(missing) : null;
    this._task(task, wish);
  }

  _fitting(task) {
    return this.catalogue.weights.filter((one) => one.task === task);
  }

  // The controls and boards of a task, with these networks where they are there.
  _setUp(task, wanted) {
    const fitting = this._fitting(task);
    this.tasks.value = task;
    this.choices.forEach((choice, i) => {
      choice.replaceChildren(...fitting.map((one) => el("option", { value: one.name }, one.shipped ? `${one.name} (shipped)` : one.name)));
      const there = fitting.some((one) => one.name === wanted[i]);
      choice.value = there ? wanted[i] : fitting[Math.min(i, fitting.length - 1)].name;
    });
    this.tab = TABS.find((tab) => tab.tasks.includes(task));
    this.racers.forEach((racer) => (racer.board = Object.assign(this.tab.board(), { beside: BESIDE_A_BOARD_THAT_RACES })));
    this.hint.replaceChildren(
      ...(fitting.length > 1 ? [] : ["There is only one network for this task, so it races itself; train a rival with ", el("code", {}, `longthink train ${this.catalogue.train[task]} --seed 1`), " and it appears here."]),
    );
  }

  _task(task, wish = null) {
    this._setUp(task, [wish?.weights, wish?.rival]);
    this.sizes.value = wish?.problem?.size ?? FIRST_SIZE[task];
    // Chess puzzles need a file that may not be there.
    const problem = wish?.problem ?? (task === "chess" ? this.tab.first() : { size: FIRST_SIZE[task], seed: 5 });
    this.run(problem, wish?.changes ?? [], wish?.problem ? wish.step : null);
  }

  _listen() {
    this.thoughts.forEach((thought) => {
      thought.addEventListener("ready", () => this._answered(thought));
      thought.addEventListener("refused", (event) => this._answered(thought, event.detail));
    });
    this.player.addEventListener("change", () => this.paint());
    this.watcher = new ResizeObserver(() => this.paint());
    this.watcher.observe(this.root);
  }

  paint() {
    if (this.painting) return;
    this.painting = requestAnimationFrame(() => {
      this.painting = 0;
      if (this.root.contains(this.racers[0].canvas)) this._paint();
    });
  }

  _paint() {
    const { player } = this;
    const ink = colours();
    this.thoughts.forEach((thought, i) => {
      if (thought.about && thought.about.task === this.tasks.value) this._draw(this.racers[i], thought, ink);
    });
    if (this.thoughts.every((thought) => thought.about)) {
      this.curves.draw(ink, this.thoughts.map((thought, i) => [thought, ink[COLOURS[i][1]]]));
    }
    this.playButton.textContent = player.playing ? "Pause" : "Play";
    this.slider.max = Math.max(30, player.last);
    this.slider.value = player.shown;
    this.where.textContent = `step ${player.shown}`;
    this.onlink();
  }

  _draw(racer, thought, ink) {
    const step = Math.min(this.player.shown, Math.max(0, thought.last));
    const problem = thought.problemAt(step);
    const scene = { problem, frame: thought.at(step), thought, colours: ink, step };
    const [width, height] = racer.board.size(racer.box.clientWidth, problem, thought);
    const g = prepare(racer.canvas, width, height);
    g.clearRect(0, 0, width, height);
    racer.board.draw(g, width, height, scene);
    racer.canvas.setAttribute("aria-label", racer.board.describe(scene));
    const { frame } = scene;
    const seen = thought.frames.slice(0, step + 1);
    const first = seen.findIndex((one) => one.right);
    racer.headline.textContent = frame ? verdictWords(frame, this.tab, first >= 0) + (first >= 0 ? `, first at step ${first}` : "") : "…";
    racer.verdict.classList.toggle("is-right", frame?.right === true);
    racer.detail.textContent = frame && !Number.isNaN(frame.correct) ? this.tab.share(frame.correct) : "";
    const card = this.catalogue.weights.find((one) => one.name === thought.about.weights);
    const spent = seen.reduce((sum, one) => sum + one.milliseconds, 0);
    const { about } = thought;
    const valid = card?.validation;
    const facts = [
      ["Accuracy in validation", valid?.accuracy ? validationWords(valid) : "not measured"],
      ["Trained on", trainedOn(card, about, this.catalogue)],
      ["Cost of a step", `${short(about.flops)} operations · ${(spent / Math.max(1, seen.length - 1)).toFixed(1)} ms`],
      ["Spent so far", `${short(about.flops * step)} operations · ${(spent / 1000).toFixed(2)} s`],
      ["Parameters", about.parameters.toLocaleString("en")],
    ];
    racer.facts.replaceChildren(...facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
    if (!this.player.playing) announce(`${racer.headline.textContent}. ${racer.detail.textContent}`);
  }
}
