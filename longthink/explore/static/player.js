// Play, pause, step and scrub: one clock for one thought, or for two that race.
import { el } from "./dom.js";

const SPEEDS = [1, 2, 4, 8, 15, 30, 60];
const AHEAD = 1.2; // seconds of frames that may wait to be shown

export class Player extends EventTarget {
  constructor(thoughts) {
    super();
    this.thoughts = thoughts;
    this.shown = 0;
    this.playing = false;
    this.speed = 15;
    this.stopAt = null; // after so many steps it pauses by itself
    this.goal = null; // the step of a link, to be reached before anything else
    this.due = 0;
    this.before = 0;
    for (const thought of thoughts) {
      thought.addEventListener("frame", () => this._arrived());
      thought.addEventListener("ready", () => this._ready());
    }
    this.tick = this.tick.bind(this);
  }

  get last() {
    return Math.max(0, ...this.thoughts.map((thought) => thought.last));
  }

  get most() {
    return Math.max(0, ...this.thoughts.map((thought) => thought.about?.most_steps ?? 0));
  }

  play() {
    if (this.shown >= this.stopAt) this.stopAt = null; // decided when the thought has begun
    this.goal = null;
    this.playing = true;
    this.resting = this.shown; // whoever presses play at rest wants to see some more
    this.before = performance.now();
    this.due = this.shown;
    this._want();
    requestAnimationFrame(this.tick);
    this._changed();
  }

  pause() {
    this.playing = false;
    this._changed();
  }

  toggle() {
    if (this.playing) this.pause();
    else this.play();
  }

  show(step) {
    this.playing = false;
    this.goal = null;
    if (step > this.last) this.reach(Math.min(step, this.most));
    else this._go(step);
  }

  // Where a link leads: the frames before it are computed first.
  reach(step) {
    this.goal = step;
    for (const thought of this.thoughts) thought.wantUntil(step);
    this._arrived();
  }

  tick(now) {
    if (!this.playing) return;
    if (!this.most) {
      this.before = now; // it has not begun yet
      requestAnimationFrame(this.tick);
      return;
    }
    this.stopAt ??= this.shown + Math.max(1, ...this.thoughts.map((thought) => thought.about?.steps ?? 1));
    this.due = Math.min(this.due + ((now - this.before) / 1000) * this.speed, this._readyUntil() + 0.999);
    this.before = now;
    if (Math.floor(this.due) > this.shown) this._go(Math.floor(this.due));
    const frames = this.thoughts.map((thought) => thought.at(this.shown));
    const rested = frames.every((frame) => frame?.atRest) && this.shown > this.resting + 1;
    if (rested || this.shown >= Math.min(this.stopAt, this.most)) {
      this.pause();
      return;
    }
    requestAnimationFrame(this.tick);
  }

  _readyUntil() {
    // A network that has no more steps waits at its last one.
    const ends = this.thoughts.map((thought) => (thought.last >= (thought.about?.most_steps ?? 0) ? Infinity : thought.last));
    return Math.min(...ends, this.last);
  }

  _go(step) {
    this.shown = Math.max(0, Math.min(step, this.last));
    this._want();
    this._changed();
  }

  _want() {
    const ahead = this.playing ? Math.max(4, Math.ceil(this.speed * AHEAD)) : 2;
    for (const thought of this.thoughts) thought.wantUntil(this.shown + ahead);
  }

  // A script has been taken up, new or changed: the network gets all its steps again from here.
  _ready() {
    // Where something happened, though its frame is on its way; a new problem has none yet and is seen from its beginning.
    this.shown = Math.min(this.shown, Math.max(...this.thoughts.map((thought) => thought.frames.length)));
    this.stopAt = null;
    this.resting = this.shown;
    if (this.playing) {
      this.due = this.shown;
      this._want();
    }
    if (this.goal !== null) this.reach(this.goal);
    this._changed();
  }

  _arrived() {
    if (this.goal !== null) {
      this.shown = Math.min(this.goal, this._readyUntil());
      if (this.shown >= Math.min(this.goal, this.most)) this.goal = null;
    }
    this._changed();
  }

  _changed() {
    this.dispatchEvent(new Event("change"));
  }
}

export function speedControl(player) {
  const words = () => `${player.speed} a second`;
  const shown = el("span", {}, words());
  const slider = el("input", {
    type: "range",
    min: 0,
    max: SPEEDS.length - 1,
    value: SPEEDS.indexOf(player.speed),
    "aria-valuetext": words(),
    oninput: () => {
      player.speed = SPEEDS[Number(slider.value)];
      shown.textContent = words();
      slider.setAttribute("aria-valuetext", words());
    },
  });
  return el("label", { class: "speed" }, "Speed", slider, shown);
}
