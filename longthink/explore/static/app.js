// The page: tabs, theme, keys and the address. What a tab shows is in view.js and race.js.
import { isDark } from "./colours.js";
import { el } from "./dom.js";
import { fromLink, toLink } from "./link.js";
import { Race } from "./race.js";
import { TABS } from "./tabs.js";
import { View } from "./view.js";

const stage = document.getElementById("stage");
const tablist = document.getElementById("tabs");
const titles = [...TABS.map(({ id, title }) => ({ id, title })), { id: "race", title: "Race" }];

let catalogue = null;
let view = null;
let current = null;
let written = "";

const KEYS = [
  ["Space", "play or pause"],
  ["← →", "one step back or on"],
  ["Home End", "first or last step"],
  ["N Z T", "noise, zeros, another problem’s thoughts"],
  ["R", "a new problem"],
  ["L", "copy the link"],
  ["1 – 6", "the tabs"],
  ["D", "light or dark"],
  ["Tab", "to the picture; there the arrows move a mark, and"],
  ["W S G", "in a maze: wall, start, goal at the mark"],
  ["F", "in prefix sums: flip the bit at the mark"],
  ["1 – 9, .", "in a sudoku: the digit at the mark, or none"],
];

for (const [i, { id, title }] of titles.entries()) {
  tablist.append(el("button", { type: "button", role: "tab", id: `tab-${id}`, "aria-controls": "stage", title: `${i + 1}`, onclick: () => choose(id) }, title));
}

// A tab that somebody chose: Back leads to what was there before.
function choose(id) {
  if (id !== current) {
    if (view) remember(view.state());
    written = toLink({ tab: id });
    history.pushState(null, "", written);
  }
  open(id);
}

tablist.addEventListener("keydown", (event) => {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!by) return;
  event.preventDefault();
  event.stopPropagation();
  const next = titles[(titles.findIndex(({ id }) => id === current) + by + titles.length) % titles.length].id;
  choose(next);
  document.getElementById(`tab-${next}`).focus();
});

async function open(id, wish = null) {
  const known = titles.some((one) => one.id === id) ? id : "maze";
  current = known;
  view?.close();
  view = null;
  delete stage.dataset.shown;
  for (const { id: other } of titles) {
    const tab = document.getElementById(`tab-${other}`);
    tab.setAttribute("aria-selected", String(other === known));
    tab.tabIndex = other === known ? 0 : -1;
  }
  stage.setAttribute("aria-labelledby", `tab-${known}`);
  document.title = `${titles.find((one) => one.id === known).title} · longthink explore`;
  document.getElementById(`tab-${known}`).scrollIntoView({ block: "nearest", inline: "nearest" });
  try {
    // Asked again for each tab: a run that has just ended is there.
    catalogue = await fetch("api/catalogue").then((reply) => reply.json());
  } catch {
    stage.replaceChildren(el("p", { class: "waiting" }, "The server has gone; start longthink explore again, then reload this page."));
    return;
  }
  if (current !== known) return; // somebody was quicker
  if (wish) wish.step = Math.min(wish.step, catalogue.limits.steps);
  const tab = TABS.find((one) => one.id === known);
  if (tab && !catalogue.weights.some((one) => tab.tasks.includes(one.task))) {
    nothing(tab);
    remember({ tab: known });
    return;
  }
  stage.dataset.shown = known;
  view = tab ? new View(stage, tab, catalogue, wish, link) : new Race(stage, catalogue, wish, link);
}

function nothing(tab) {
  const recipes = tab.tasks.map((task) => catalogue.train[task]);
  stage.replaceChildren(
    el(
      "div",
      { class: "card none" },
      el("h2", {}, tab.heading),
      el("p", {}, `No weights for ${tab.title.toLowerCase()} are here yet; train them, and they appear in this tab:`),
      ...recipes.map((recipe) => el("p", {}, el("code", {}, `longthink train ${recipe}`))),
      el("p", { class: "note" }, catalogue.runs ? `Runs are looked for below the folder ${catalogue.runs}.` : ""),
      el("p", {}, el("button", { type: "button", onclick: () => open(tab.id) }, "Look again")),
    ),
  );
}

// The address always holds what is on the screen; while it plays, it is written now and then.
let due = null;
function link(now = false) {
  if (now && view) remember(view.state());
  if (due) return;
  due = setTimeout(() => {
    due = null;
    if (view) remember(view.state());
  }, 300);
}

function remember(state) {
  const hash = toLink(state);
  if (hash === written) return;
  written = hash;
  history.replaceState(null, "", hash);
}

// Followed as a link, it would take the place of the address that holds what is on the screen.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  stage.focus();
});

window.addEventListener("hashchange", () => {
  if (location.hash === written) return;
  written = location.hash;
  const wish = fromLink(location.hash);
  open(wish.tab, wish);
});

// Theme and keys --------------------------------------------------------------------------------------------------------

const themeButton = document.getElementById("theme");

function showTheme() {
  themeButton.textContent = isDark() ? "Light" : "Dark";
  view?.paint();
}

function otherTheme() {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("longthink-theme", theme);
  } catch {
    // then it lasts until the page is closed
  }
  showTheme();
}

themeButton.addEventListener("click", otherTheme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);

const dialog = document.getElementById("keys");
dialog.append(
  el("h2", { id: "keys-title" }, "Keys"),
  el("dl", {}, ...KEYS.flatMap(([keys, what]) => [el("dt", {}, ...keys.split(" ").map((key) => (key === "–" || key === ".," ? key : el("kbd", {}, key.replace(",", ""))))), el("dd", {}, what)])),
  el("button", { type: "button", class: "main", onclick: () => dialog.close() }, "Close"),
);
document.getElementById("help").addEventListener("click", () => dialog.showModal());

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
  const { target } = event;
  if (target.closest("input, select, textarea")) return;
  if (event.key === " " && target.closest("button, a")) return; // there it presses the button
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (key === "?") dialog.showModal();
  else if (key === "d") otherTheme();
  else if (/^[1-6]$/.test(key)) choose(titles[Number(key) - 1].id);
  else if (!view?.shortcut(key)) return;
  event.preventDefault();
});

showTheme();
const wish = fromLink(location.hash);
open(wish.tab, wish.weights || wish.problem ? wish : null);
