// Elements in one line each: el("button", { class: "main", onclick: go }, "Go").
export function el(name, options = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "class") made.className = value;
    else if (key in made && key !== "list" && !key.startsWith("aria")) made[key] = value;
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function field(label, control) {
  return el("label", { class: "field" }, el("span", {}, label), control);
}

export function group(title, ...children) {
  return el("section", {}, el("h3", {}, title), ...children);
}

// Said to those who listen to the page rather than look at it; never more than once in 700 ms. What answers a key comes
// before what is said meanwhile, and not in its place.
let waiting = null;
let answer = "";
export function announce(sentence, answersKey = false) {
  clearTimeout(waiting);
  if (answersKey) answer = sentence;
  const whole = answersKey || !answer ? sentence : `${answer} ${sentence}`;
  waiting = setTimeout(() => {
    answer = "";
    document.getElementById("announce").textContent = whole;
  }, 700);
}

// Shown while a thought waits for the server for longer than people notice: some problems take seconds to check.
export function busySign(thoughts) {
  const sign = el("span", { class: "busy", role: "status", hidden: true }, "working …");
  const look = () => (sign.hidden = !thoughts.some((thought) => thought.pending));
  for (const thought of thoughts) {
    thought.addEventListener("asked", () => setTimeout(look, 400));
    thought.addEventListener("ready", look);
    thought.addEventListener("refused", look);
  }
  return sign;
}

// A canvas that is sharp on every screen; drawing is in CSS pixels.
export function prepare(canvas, width, height) {
  const scale = Math.min(3, window.devicePixelRatio || 1);
  const wide = Math.round(width * scale);
  const high = Math.round(height * scale);
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const g = canvas.getContext("2d");
  g.setTransform(scale, 0, 0, scale, 0, 0);
  return g;
}

// The side of a square picture: it and what stands above and below it should fit on the screen together.
export function squareSide(width, most, beside = 320) {
  return Math.min(width, most, Math.max(300, window.innerHeight - beside));
}
