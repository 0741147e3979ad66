// One network and one problem: the picture, the player, the curves, and what people may do to them.
import { colours } from "./colours.js";
import { Curves } from "./curves.js";
import { announce, busySign, el, field, group, prepare } from "./dom.js";
import { Player, speedControl } from "./player.js";
import { saveButtons } from "./save.js";
import { Thought } from "./thought.js";

export const HAPPENINGS = { noise: "noise", zeros: "zeros", swapped: "another's thoughts", problem: "new problem" };
export const randomSeed = () => Math.floor(Math.random() * 1e6);

export class View {
  constructor(root, tab, catalogue, wish, onlink) {
    Object.assign(this, { root, tab, catalogue, onlink });
    this.thought = new Thought();
    this.player = new Player([this.thought]);
    this.board = tab.board();
    this.draft = null; // what was drawn or typed and has not been taken up as a problem
    if (wish?.head !== undefined && "head" in this.board) this.board.head = wish.head;
    this.weights = catalogue.weights.filter((one) => tab.tasks.includes(one.task));
    this._build();
    this._listen();
    this._start(wish);
  }

  close() {
    this.player.pause();
    this.thought.close();
    this.watcher.disconnect();
  }

  get task() {
    return this.weights.find((one) => one.name === this.choice.value)?.task;
  }

  // What is on the screen, for a link.
  state() {
    const script = this.thought.script ?? this.thought.pending?.script;
    return {
      tab: this.tab.id,
      weights: script?.weights ?? this.choice.value,
      problem: script?.problem,
      changes: script?.changes,
      step: this.player.goal ?? this.player.shown,
      head: this.board.head,
    };
  }

  get lanes() {
    return [{ board: this.board, thought: this.thought, colour: null }];
  }

  scene() {
    const step = this.player.shown;
    const problem = this.thought.problemAt(step);
    return { problem, draft: this.draft, frame: this.thought.at(step), thought: this.thought, colours: colours(), step };
  }

  // Actions ----------------------------------------------------------------------------------------------------------

  pose(problem, play = true) {
    this.playWhenReady = play;
    this.player.pause();
    this.player.goal = null;
    this.notice = null;
    this.say(null);
    this.draft = problem.text ?? null;
    this.thought.begin({ weights: this.choice.value, problem, changes: [] });
  }

  another() {
    const made = { size: this.sizes ? Number(this.sizes.value) : undefined, seed: randomSeed() };
    if (this.styles && this.styles.value !== "depth_first") made.style = this.styles.value;
    this.pose(made);
  }

  edit(text) {
    if (!this.thought.settled) return;
    this.tab.edited?.(this, text);
    const now = this.thought.pending?.script.changes.at(-1)?.problem?.text ?? this.scene().problem.text;
    if (now.replaceAll(" ", ".") === text) {
      if (!this.thought.pending) this._undraft();
      return;
    }
    this.draft = text;
    this.playWhenReady = this.player.playing || this.player.shown > 0;
    this.thought.happen(this.player.shown, { kind: "problem", problem: { text } });
  }

  disturb(kind) {
    if (!this.thought.settled) return;
    this.playWhenReady = true;
    this.thought.happen(this.player.shown, disturbance(kind));
    announce(`${HAPPENINGS[kind]} at step ${this.player.shown}.`);
  }

  // Back at what the network thinks about.
  _undraft() {
    this.draft = null;
    this.say(this.notice);
    this.paint();
  }

  say(sentence) {
    this.message.hidden = !sentence;
    this.message.textContent = sentence ?? "";
  }

  verdict() {
    const { frame } = this.scene();
    if (!frame) return "…";
    return `${verdictWords(frame, this.tab)} · step ${frame.step}`;
  }

  fileName() {
    return `longthink-${this.tab.id}-step-${this.player.shown}`;
  }

  shortcut(key) {
    return press(this, key);
  }

  async copyLink() {
    await copyAddress(this.linkButton, this.onlink);
  }

  // Building ---------------------------------------------------------------------------------------------------------

  _build() {
    this.canvas = el("canvas", { tabIndex: 0, role: "img", "aria-label": "The problem is on its way." });
    this.tip = el("div", { class: "tip", hidden: true });
    this.frameBox = el("div", { class: "board" }, this.canvas, this.tip);
    this.headline = el("strong", {}, "…");
    this.detail = el("span");
    this.status = el("div", { class: "verdict" }, this.headline, this.detail, busySign([this.thought]));
    this.message = el("div", { class: "message", role: "alert", hidden: true });
    this.remark = el("p", { class: "note" });
    const curve = el("canvas", { role: "img", "aria-label": "Curves of correctness and change over the steps." });
    this.curves = new Curves(curve, this.player);
    this.happened = el("ul", { class: "happened", "aria-label": "What happened" });
    const stage = el("div", { class: "card" }, this.status, this.frameBox, this.message, this.remark, this._player(), el("div", { class: "under" }, this._legend(), this._speed()));
    const below = el("div", { class: "card curves" }, curve, this._curveLegend(), this.happened);
    const left = el("div", { class: "panel" }, stage, below);
    const panel = el("aside", { class: "card panel" }, this._problem(), this._disturb(), this._network(), this._keep());
    this.root.replaceChildren(
      el("h2", {}, this.tab.heading),
      el("p", { class: "lead" }, this.tab.lead),
      el("div", { class: "split" }, left, panel),
    );
  }

  _player() {
    this.playButton = el("button", { class: "main play", type: "button", title: "Space", onclick: () => this.player.toggle() }, "Play");
    this.slider = el("input", {
      type: "range",
      min: 0,
      max: 30,
      value: 0,
      "aria-label": "Step",
      oninput: (event) => this.player.show(Number(event.target.value)),
    });
    this.where = el("span", { class: "where" });
    const button = (sign, label, act) => el("button", { type: "button", title: label, "aria-label": label, onclick: act }, sign);
    return el(
      "div",
      { class: "player" },
      this.playButton,
      button("‹", "One step back", () => this.player.show(this.player.shown - 1)),
      button("›", "One step on", () => this.player.show(this.player.shown + 1)),
      this.slider,
      this.where,
    );
  }

  _speed() {
    return speedControl(this.player);
  }

  _legend() {
    if (!this.tab.ramp) return el("span");
    this.rampBar = el("i", { class: "ramp" });
    return el("div", { class: "legend" }, el("span", {}, this.rampBar, this.tab.ramp));
  }

  _curveLegend() {
    const line = (style, text) => el("span", {}, el("i", style), text);
    return el(
      "div",
      { class: "legend" },
      line({ style: "color: var(--right)" }, this.tab.correct),
      line({ class: "dashed", style: "color: var(--soft)" }, "change of the state in a step"),
      line({ class: "dashed", style: "color: var(--stir)" }, "something happened"),
    );
  }

  _problem() {
    const another = el("button", { type: "button", class: "main", title: "R", onclick: () => this.another() }, this.tab.another);
    return group("Problem", ...this.tab.controls(this), el("div", { class: "row" }, another, ...(this.tab.more?.(this) ?? [])));
  }

  _disturb() {
    const button = (kind, text, key) =>
      el("button", { type: "button", title: `${key}`, onclick: () => this.disturb(kind) }, text);
    return group(
      "Disturb its thoughts",
      el("div", { class: "row" }, button("noise", "Noise", "N"), button("zeros", "Zeros", "Z"), button("swapped", this.tab.swapped, "T")),
      el("p", { class: "note" }, "At the step you see; the network thinks on from there."),
    );
  }

  _network() {
    this.choice = el(
      "select",
      { onchange: () => this._otherWeights() },
      ...this.weights.map((one) => el("option", { value: one.name }, one.shipped ? `${one.name} (shipped)` : one.name)),
    );
    this.facts = el("dl", { class: "facts" });
    return group("Network", field("Weights", this.choice), this.facts);
  }

  _keep() {
    this.linkButton = el("button", { type: "button", title: "L", onclick: () => this.copyLink() }, "Copy link");
    return group(
      "Keep",
      el(
        "div",
        { class: "row" },
        this.linkButton,
        ...saveButtons(this),
      ),
    );
  }

  _otherWeights() {
    const script = this.thought.script;
    const same = this.weights.find((one) => one.name === script?.weights)?.task === this.task;
    this.tab.taskChanged?.(this);
    if (same && script) this.pose(script.problem);
    else this.another();
  }

  // Listening --------------------------------------------------------------------------------------------------------

  _start(wish) {
    if (wish?.weights && this.weights.some((one) => one.name === wish.weights)) this.choice.value = wish.weights;
    else if (wish?.weights) this.notice = noSuchWeights(wish.weights);
    this.say(this.notice);
    this.tab.taskChanged?.(this);
    const problem = wish?.problem ?? this.tab.first(this);
    if (wish?.problem) {
      this.player.goal = wish.step;
      this.thought.begin({ weights: this.choice.value, problem, changes: wish.changes }, wish.step);
    } else {
      this.playWhenReady = !matchMedia("(prefers-reduced-motion: reduce)").matches;
      this.thought.begin({ weights: this.choice.value, problem, changes: [] });
    }
  }

  _listen() {
    this.thought.addEventListener("ready", () => {
      const last = this.thought.script.changes.at(-1);
      if (!last || last.kind === "problem" || !this.draft) this._undraft(); // noise leaves a draft as it is
      limitSizes(this.sizes, this.thought.about);
      const { size } = this.thought.script.problem;
      if (this.sizes && size !== undefined) this.sizes.value = size;
      this.tab.ready?.(this);
      if (this.playWhenReady && !this.player.playing) this.player.play();
      this.playWhenReady = false;
    });
    this.thought.addEventListener("refused", (event) => {
      this.playWhenReady = false;
      this.say(event.detail);
      this.paint();
    });
    this.player.addEventListener("change", () => this.paint());
    const edit = (text) => this.edit(text);
    const local = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top, box.width];
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      if (!this.thought.settled || !this.board.press(...local(event), this.scene())) return;
      event.preventDefault();
      this.canvas.focus({ preventScroll: true });
      this.canvas.setPointerCapture(event.pointerId);
      this.paint();
    });
    this.canvas.addEventListener("touchstart", (event) => {
      // Whoever drags something does not want to scroll the page.
      const touch = event.touches[0];
      if (this.board.grabs && this.thought.settled && this.board.press(...local(touch), this.scene())) event.preventDefault();
    }, { passive: false });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!this.thought.about) return;
      if (event.buttons) this.board.drag(...local(event), this.scene(), edit);
      this._hover(event.buttons ? null : local(event));
      if (event.buttons) this.paint();
    });
    this.canvas.addEventListener("pointerup", () => {
      this.board.release(edit);
      this.paint();
    });
    this.canvas.addEventListener("pointercancel", () => this.board.release(() => {}));
    this.canvas.addEventListener("pointerleave", () => this._hover(null));
    this.canvas.addEventListener("keydown", (event) => {
      if (!this.thought.settled || event.ctrlKey || event.metaKey || event.altKey) return;
      const said = this.board.key(event, this.scene(), edit, () => this.tab.draft?.(this));
      if (said === null) return;
      event.preventDefault();
      event.stopPropagation();
      announce(said, true);
      this.paint();
    });
    this.watcher = new ResizeObserver(() => this.paint());
    this.watcher.observe(this.frameBox);
  }

  _hover(place) {
    const text = place && this.board.hit(...place, this.scene());
    this.tip.hidden = !text;
    if (!text) return;
    this.tip.textContent = text;
    const left = this.canvas.offsetLeft + place[0] + 14;
    const most = this.frameBox.clientWidth - this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(left, most))}px`;
    this.tip.style.top = `${this.canvas.offsetTop + place[1] - 36}px`;
  }

  paint() {
    if (this.painting) return;
    this.painting = requestAnimationFrame(() => {
      this.painting = 0;
      if (this.thought.about && this.root.contains(this.canvas)) this._paint();
    });
  }

  _paint() {
    const scene = this.scene();
    const [width, height] = this.board.size(this.frameBox.clientWidth, scene.problem, this.thought);
    const g = prepare(this.canvas, width, height);
    g.clearRect(0, 0, width, height);
    this.board.draw(g, width, height, scene);
    this.curves.draw(scene.colours, [[this.thought, null]]);
    this.canvas.setAttribute("aria-label", this.board.describe(scene));
    this.remark.textContent = this.board.remark?.(scene) ?? "";
    if (this.rampBar) this.rampBar.style.background = `linear-gradient(90deg, ${scene.colours.floor}, ${scene.colours[this.tab.rampColour ?? "path"]})`;
    this._words(scene);
    this.onlink();
  }

  _words({ frame }) {
    const { player, thought } = this;
    this.headline.textContent = this.verdict();
    this.status.classList.toggle("is-right", frame?.right === true);
    this.status.dataset.right = String(frame?.right);
    this.status.dataset.step = String(frame?.step ?? -1);
    const parts = [];
    if (frame && !Number.isNaN(frame.correct)) parts.push(this.tab.share(frame.correct));
    if (frame?.atRest && frame.right !== false) parts.push("at rest");
    if (frame) parts.push(`${Math.round(100 * frame.confidence)}% sure`);
    this.detail.textContent = parts.join(" · ");
    this.playButton.textContent = player.playing ? "Pause" : "Play";
    this.slider.max = Math.max(30, player.last);
    this.slider.value = player.shown;
    this.slider.setAttribute("aria-valuetext", `step ${player.shown} of ${player.last}`);
    this.where.textContent = player.goal ? `${player.shown} of ${player.goal} …` : `step ${player.shown}`;
    const verdict = `${this.verdict()}. ${this.detail.textContent}.`;
    if (!player.playing && frame && verdict !== this.announced) announce((this.announced = verdict));
    this.happened.replaceChildren(
      ...(thought.script.changes ?? []).map((one) => el("li", {}, `${HAPPENINGS[one.kind]} at ${one.step}`)),
    );
    this._facts(frame);
  }

  _facts(frame) {
    const { about } = this.thought;
    const card = this.weights.find((one) => one.name === about.weights);
    const valid = card?.validation;
    const facts = [
      ["Trained on", trainedOn(card, about, this.catalogue)],
      ["Parameters", about.parameters.toLocaleString("en")],
      ["A step", `${short(about.flops)} operations${frame?.milliseconds ? ` · ${frame.milliseconds.toFixed(0)} ms` : ""}`],
    ];
    if (card?.recall !== null && card?.recall !== undefined) facts.push(["Recall", card.recall ? "yes" : "no"]);
    if (valid?.accuracy) facts.push(["Validation", validationWords(valid)]);
    const text = JSON.stringify(facts);
    if (text === this.factsNow) return;
    this.factsNow = text;
    this.facts.replaceChildren(...facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  }
}

// The keys of every view; false for a key that means nothing.
export function press(view, key) {
  const { player } = view;
  const actions = {
    " ": () => player.toggle(),
    k: () => player.toggle(),
    ArrowLeft: () => player.show(player.shown - 1),
    ArrowRight: () => player.show(player.shown + 1),
    Home: () => player.show(0),
    End: () => player.show(player.last),
    n: () => view.disturb("noise"),
    z: () => view.disturb("zeros"),
    t: () => view.disturb("swapped"),
    r: () => view.another(),
    l: () => view.copyLink(),
  };
  if (!(key in actions)) return false;
  actions[key]();
  return true;
}

export async function copyAddress(button, write) {
  write(true);
  try {
    await navigator.clipboard.writeText(location.href);
    button.textContent = "Copied";
  } catch {
    button.textContent = "It is in the address";
  }
  setTimeout(() => (button.textContent = "Copy link"), 1600);
}

export const short = (n) => (n >= 1e9 ? `${(n / 1e9).toFixed(1)} G` : n >= 1e6 ? `${(n / 1e6).toFixed(1)} M` : `${Math.round(n / 1e3)} k`);

export function trainedOn(card, about, catalogue) {
  const on = card?.trained_on ?? [];
  const sizes = on.length > 2 ? `${on[0]} to ${on.at(-1)}` : on.join(", ");
  return `${sizes} ${catalogue.units[about.task]}, ${about.trained_steps} steps`;
}

// After the steps of training, and after many more: some networks lose their answers.
export function validationWords(valid) {
  const parts = valid.steps.map((step, i) => `${(100 * valid.accuracy[i]).toFixed(1)}% after ${step}`);
  return `${[...new Set(parts)].join(", ")} steps (n\u00a0=\u00a0${valid.samples})`;
}

export function verdictWords({ right, atRest }, tab, before = false) {
  const solved = tab.solved ?? "Solved";
  if (right === null) return "Answer";
  if (right) return `✓ ${solved}`;
  return `Not ${solved.toLowerCase()}${before ? " any more" : atRest ? ", at rest" : " yet"}`;
}

export function disturbance(kind) {
  const seed = randomSeed();
  return { noise: { kind, seed, std: 1 }, zeros: { kind }, swapped: { kind, seed } }[kind];
}

// The sizes that the server makes problems of for these weights.
export function limitSizes(input, { sizes }) {
  if (input) [input.min, input.max] = sizes;
}

export const noSuchWeights = (name) => `There are no weights named ${name} for this here, so others were taken.`;
