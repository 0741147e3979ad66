// What is on the screen as the part of the address after #, and back. A link that somebody mangled gives what can be read.
export function toLink({ tab, weights, rival, problem, changes, step, head }) {
  const parts = new URLSearchParams();
  parts.set("tab", tab);
  if (weights) parts.set("weights", weights);
  if (rival) parts.set("rival", rival);
  for (const [key, value] of Object.entries(problem ?? {})) {
    if (value !== null && value !== undefined) parts.set(key, key === "text" ? packed(value) : value);
  }
  if (changes?.length) parts.set("changes", JSON.stringify(changes.map(pack)));
  if (step) parts.set("step", step);
  if (head !== undefined && head !== "max") parts.set("head", head);
  return `#${parts}`;
}

export function fromLink(hash) {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  const whole = (name) => (/^\d{1,10}$/.test(parts.get(name) ?? "") ? Number(parts.get(name)) : undefined);
  const problem = {};
  if (parts.has("text")) problem.text = unpacked(parts.get("text"));
  else {
    for (const name of ["size", "seed"]) if (whole(name) !== undefined) problem[name] = whole(name);
    if (parts.has("style")) problem.style = parts.get("style");
  }
  let changes = [];
  try {
    const read = JSON.parse(parts.get("changes") ?? "[]");
    if (Array.isArray(read)) changes = read.map((one) => unpack(Object(one)));
  } catch {
    changes = [];
  }
  return {
    tab: parts.get("tab"),
    weights: parts.get("weights"),
    rival: parts.get("rival"),
    problem: Object.keys(problem).length ? problem : null,
    changes,
    step: whole("step") ?? 0,
    head: whole("head") ?? "max",
  };
}

// Lines become strokes, so that a maze stays legible in an address.
const packed = (text) => text.replaceAll("\n", "~").replaceAll("#", "X");
const unpacked = (text) => (text.includes("~") ? text.replaceAll("~", "\n").replaceAll("X", "#") : text);
const pack = (change) => (change.problem?.text ? { ...change, problem: { text: packed(change.problem.text) } } : change);
const unpack = (change) => (change.problem?.text ? { ...change, problem: { text: unpacked(String(change.problem.text)) } } : change);
