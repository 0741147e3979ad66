// A thought: a script (weights, problem, what happens at which step) on its way to the server, and the frames that come
// back. Frames are kept, so that going back costs nothing; the server sends only as many as were asked for.
const HEADER = 28;
const UNKNOWN = 2;

export class Frame {
  constructor(buffer) {
    const view = new DataView(buffer);
    this.right = view.getUint8(1) === UNKNOWN ? null : view.getUint8(1) === 1;
    this.atRest = view.getUint16(2, true) === 1;
    this.id = view.getUint32(4, true);
    this.step = view.getUint32(8, true);
    this.change = view.getFloat32(12, true);
    this.correct = view.getFloat32(16, true);
    this.confidence = view.getFloat32(20, true);
    this.milliseconds = view.getFloat32(24, true);
    this.bytes = new Uint8Array(buffer, HEADER);
  }
}

export class Thought extends EventTarget {
  constructor() {
    super();
    this.frames = [];
    this.script = null;
    this.about = null;
    this.id = 0;
    this.asked = -1;
    this.pending = null;
    this.lastId = 0;
    this.socket = null;
    this.closed = false;
  }

  // Think about another problem, or the same one from the beginning.
  begin(script, until = 2) {
    this._ask({ weights: script.weights, problem: script.problem, changes: script.changes ?? [] }, 0, until);
    this.pending.begins = true;
  }

  // May something happen? Not while another problem is on its way: who acts now means the one on the screen.
  get settled() {
    return this.about !== null && !this.pending?.begins;
  }

  // Let something happen at a step; what came after it is thought again.
  happen(step, change) {
    const script = this.pending?.script ?? this.script;
    if (!script) return;
    const from = Math.min(step, this.pending?.from ?? step); // frames of a script that it replaces are not there yet
    const changes = script.changes.filter((one) => one.step <= step);
    const last = changes[changes.length - 1];
    // While somebody drags the goal, only where it ends matters.
    if (change.kind === "problem" && last?.kind === "problem" && last.step === step) changes.pop();
    if (change.kind === "problem" && step === 0 && changes.length === 0) {
      this._ask({ weights: script.weights, problem: change.problem, changes: [] }, 0, 2);
    } else {
      this._ask({ ...script, changes: [...changes, { step, ...change }] }, from, step + 2);
    }
  }

  // There is room for frames up to this step.
  wantUntil(step) {
    if (!this.about || this.pending) return;
    const until = Math.min(step, this.about.most_steps);
    if (until <= this.asked) return;
    if (this.socket?.readyState !== WebSocket.OPEN) {
      this._ask(this.script, this.frames.length, until); // a server that was started again knows nothing of it
      return;
    }
    this.asked = until;
    this._send({ type: "more", id: this.id, until });
  }

  get last() {
    return this.frames.length - 1;
  }

  // The frame of a step, or the last one before it.
  at(step) {
    return this.frames[Math.min(step, this.last)] ?? null;
  }

  // One part of a frame, as bytes.
  part(frame, name) {
    let offset = 0;
    for (const section of this.about.sections) {
      const length = section.shape.reduce((a, b) => a * b, 1);
      if (section.name === name) return frame.bytes.subarray(offset, offset + length);
      offset += length;
    }
    return null;
  }

  shape(name) {
    return this.about.sections.find((section) => section.name === name)?.shape ?? null;
  }

  // The problem as it was at a step.
  problemAt(step) {
    return this.about.problems.filter((problem) => problem.step <= step).at(-1) ?? this.about.problems[0];
  }

  close() {
    this.closed = true;
    this.socket?.close();
  }

  _ask(script, from, until) {
    this.lastId += 1;
    this.pending = { id: this.lastId, script, from, until };
    this._send({ type: "think", id: this.lastId, ...script, from, until });
    this._tell("asked");
  }

  _send(message) {
    const text = JSON.stringify(message);
    if (this.socket?.readyState === WebSocket.OPEN) {
      this.socket.send(text);
      return;
    }
    this.waiting = message.type === "think" ? [text] : [...(this.waiting ?? []), text];
    if (this.socket?.readyState !== WebSocket.CONNECTING) this._connect();
  }

  _connect() {
    const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/think`);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      for (const text of this.waiting ?? []) socket.send(text);
      this.waiting = [];
    };
    socket.onmessage = (event) => {
      if (typeof event.data === "string") this._told(JSON.parse(event.data));
      else this._seen(new Frame(event.data));
    };
    socket.onclose = () => {
      if (this.closed || this.socket !== socket) return;
      this.socket = null;
      this.pending = null;
      this._tell("refused", this.complaint ?? "The server has gone; start longthink explore again, then reload this page.");
    };
    this.socket = socket;
  }

  _told(message) {
    if (message.type === "error") {
      this.complaint = message.message;
      if (message.id === null || message.id === this.pending?.id || message.id === this.id) {
        if (message.id !== this.id) this.pending = null;
        this._tell("refused", message.message);
      }
      return;
    }
    if (message.id !== this.pending?.id) return; // a newer script is on its way
    const { script, from, until } = this.pending;
    this.pending = null;
    this.complaint = null;
    this.script = script;
    this.about = message;
    this.id = message.id;
    this.asked = until;
    this.frames.length = Math.min(this.frames.length, from);
    this._tell("ready", { from });
  }

  _seen(frame) {
    if (frame.id !== this.id || frame.step > this.frames.length) return;
    this.frames[frame.step] = frame;
    this._tell("frame", frame);
  }

  _tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}
