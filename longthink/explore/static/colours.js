// The colours of pictures, which a style sheet does not reach. Both themes have the same names.
const light = {
  paper: "#ffffff",
  ink: "#1e2a35",
  soft: "#586572",
  faint: "#9aa4ae",
  line: "#e2dfd8",
  wall: "#33414e",
  floor: "#ffffff",
  path: "#2f62e6",
  right: "#13784a",
  wrong: "#bf3327",
  stir: "#b85f06",
  start: "#13784a",
  goal: "#bf3327",
  shade: "#f1f0ec",
  dark: "#b9c3cf",
  lit: "#eceff3",
  onDark: "#1e2a35",
  onLit: "#1e2a35",
  heat: "#e2660c",
  second: "#b85f06",
  hit: "#6f93ee",
  miss: "#e08a7f",
};

const dark = {
  paper: "#191f26",
  ink: "#e7eaee",
  soft: "#9ba8b5",
  faint: "#697684",
  line: "#2b343e",
  wall: "#0a0d11",
  floor: "#2a333d",
  path: "#78a6ff",
  right: "#56c98f",
  wrong: "#ff8a7f",
  stir: "#f5ab5c",
  start: "#3fb37f",
  goal: "#f2685c",
  shade: "#212931",
  dark: "#4a5866",
  lit: "#73818f",
  onDark: "#e7eaee",
  onLit: "#0d1626",
  heat: "#ff9440",
  second: "#f5ab5c",
  hit: "#5580d6",
  miss: "#b0574f",
};

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

export const colours = () => (isDark() ? dark : light);

export function rgb(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

// A colour on the way from one to another, share from 0 to 1.
export function mix(from, to, share) {
  const a = rgb(from);
  const b = rgb(to);
  return `rgb(${a.map((value, i) => Math.round(value + share * (b[i] - value))).join(" ")})`;
}

// All 256 levels at once, as [red, green, blue] each.
export function ramp(from, to) {
  const a = rgb(from);
  const b = rgb(to);
  return Array.from({ length: 256 }, (_, level) => a.map((value, i) => Math.round(value + (level / 255) * (b[i] - value))));
}
