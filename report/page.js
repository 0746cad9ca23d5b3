// What the page does beyond being read: tables sort and search, one filter acts on tables and
// charts together, marks tell their values. Without this script the page is whole, only still.
// Text reaches the page as text nodes alone, so that no name in the data can become markup.
"use strict";

const root = document.documentElement;
const all = (selector, within = document) => Array.from(within.querySelectorAll(selector));
const make = (name, attributes, ...children) => {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};

// What a figure or table is called.
const nameOf = (figure) =>
  figure.querySelector("figcaption b")?.textContent.replace(/\.$/, "") ??
  figure.querySelector("table").getAttribute("aria-label");

// On a phone each row of the answer is a card, whose lines begin with the heads of the columns.
all("main table.cards").forEach((table) => {
  const heads = all("thead th", table).map((head) => {
    const unit = head.querySelector(".unit")?.textContent;
    return unit ? `${head.firstChild.textContent}, ${unit}` : head.textContent;
  });
  for (const row of table.tBodies[0].rows)
    Array.from(row.cells, (cell, index) => (cell.dataset.head = heads[index]));
});

// -- tables sort: one way, the other, and back to the order of the page --------------------------

// By the number that a cell begins with, so that 1.24 × is more than 1.195 ×.
const compare = (a, b) =>
  parseFloat(a) - parseFloat(b) || a.localeCompare(b, "en", { numeric: true });

all("main table").forEach((table) => {
  const body = table.tBodies[0];
  const written = Array.from(body.rows);
  const heads = all("thead th", table);
  heads.forEach((head, index) => {
    const first = head.dataset.first ?? "ascending";
    const second = first === "ascending" ? "descending" : "ascending";
    const next = { null: first, [first]: second, [second]: null };
    const key = (row) => {
      const cell = row.cells[index];
      if (cell.classList.contains("missing")) return null;
      return cell.dataset.sort ?? cell.textContent.trim();
    };
    const button = make("button", { type: "button", tabindex: index ? -1 : 0 }, ...head.childNodes);
    head.append(button);
    // One stop of the Tab key for each table: arrows lead from column to column.
    button.addEventListener("keydown", ({ key: pressed }) => {
      const to = heads[index + ({ ArrowLeft: -1, ArrowRight: 1 }[pressed] ?? heads.length)];
      to?.querySelector("button").focus();
    });
    button.addEventListener("click", () => {
      const order = next[head.getAttribute("aria-sort")];
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      if (order === null) return body.append(...written);
      head.setAttribute("aria-sort", order);
      const rows = written.map((row) => [key(row), row]);
      rows.sort(([a], [b]) => {
        if (a === null || b === null) return (a === null) - (b === null); // dashes stay last
        return order === "descending" ? compare(b, a) : compare(a, b);
      });
      body.append(...rows.map(([, row]) => row));
    });
  });
});

// -- a table wider than the page shows its first columns, the rest on request ---------------------

const FIRST_COLUMNS = 7; // as in style.css
const desk = matchMedia("(min-width: 72rem)"); // as in style.css: there the contents lie beside

function cutWide() {
  const tables = desk.matches ? all("main .scroll > table:not(.cut, .uncut)") : [];
  const wide = () => tables.filter(({ parentElement: box }) => box.scrollWidth > box.clientWidth);
  wide().forEach((table) => table.classList.add("tight")); // its words wrap
  for (const table of wide()) {
    const more = table.tHead.rows[0].cells.length - FIRST_COLUMNS;
    if (more <= 0) continue;
    const button = make("button", { type: "button", class: "columns" }, `Show ${more} more columns`);
    button.addEventListener("click", () => {
      table.classList.replace("cut", "uncut");
      button.remove();
      stop();
    });
    table.classList.add("cut");
    table.parentElement.before(button);
  }
  stop();
}

// The Tab key stops at what scrolls, to move it with arrows, and passes what shows all.
function stop() {
  for (const box of all("main .scroll")) {
    const whole = box.scrollWidth <= box.clientWidth && box.scrollHeight <= box.clientHeight;
    box.tabIndex = whole ? -1 : 0;
  }
}
cutWide();
addEventListener("toggle", cutWide, true); // what was folded away had no width
addEventListener("resize", stop);

// -- words are found in tables ------------------------------------------------------------------

const SEARCHED_ROWS = 8; // more than these do not show at one glance
const counters = []; // say how many rows of a table are left; the filter calls them too

all("figure.table").forEach((figure) => {
  const rows = all("tbody tr", figure);
  if (rows.length <= SEARCHED_ROWS) return;
  const input = make("input", { type: "search", autocomplete: "off", spellcheck: "false" });
  const status = make("output", { "aria-live": "polite" });
  const where = make("span", { class: "unseen" }, ` in ${nameOf(figure)}`);
  const label = make("label", {}, make("span", {}, "Find"), where, input);
  figure.querySelector(".scroll").before(make("p", { class: "find" }, label, status));
  const plain = (text) => text.toLowerCase().replace(/\s+/g, " ");
  input.addEventListener("input", () => {
    const words = plain(input.value).split(" ").filter(Boolean);
    rows.forEach((row) => {
      const text = plain(row.textContent);
      row.classList.toggle("unfound", !words.every((word) => text.includes(word)));
    });
    count();
  });
  const count = () => {
    const left = rows.filter((row) => !row.hidden && !row.classList.contains("unfound"));
    status.value = left.length < rows.length ? `${left.length} of ${rows.length} rows` : "";
  };
  counters.push(count);
});

// -- one filter for tables and charts, kept in the address so that a view can be linked ----------

const AXES = ["device", "backend", "workload", "precision", "trainer"];
const form = document.getElementById("filter");
const cells = form ? JSON.parse(document.getElementById("cells").textContent) : [];
const boxes = AXES.map((axis) => (form ? all(`input[name=${axis}]`, form) : []));
const tagged = all("main [data-of]").map((element) => ({
  element,
  of: element.dataset.of.split(" ").map(Number),
  row: element.tagName === "TR",
}));

// Each axis that has a tick lets only its ticked values through; `free` leaves one axis open.
const passes = (cell, ticks, free = -1) =>
  ticks.every((set, axis) => axis === free || set.size === 0 || set.has(cell[axis]));

function filter() {
  const ticks = boxes.map((group) => new Set(group.flatMap((box, i) => (box.checked ? [i] : []))));
  const shown = cells.map((cell) => passes(cell, ticks));
  const on = ticks.some((set) => set.size > 0);
  for (const { element, of, row } of tagged) {
    const out = on && !of.some((index) => shown[index]);
    if (row) element.hidden = out;
    else element.classList.toggle("out", out);
  }
  all("main figure").forEach((figure) => {
    const parts = all("tbody tr, svg [data-of]", figure);
    const empty = parts.every((part) => part.hidden || part.classList.contains("out"));
    const gone = on && parts.length > 0 && empty;
    figure.classList.toggle("gone", gone);
    if (gone && !figure.querySelector(":scope > .none")) {
      figure.prepend(make("p", { class: "none" }, `${nameOf(figure)}: nothing of the chosen cells.`));
    }
  });
  counters.forEach((count) => count());
  compareTwo(ticks, shown);

  const total = cells.length;
  const left = on ? shown.filter(Boolean).length : total;
  const status = on ? `${left} of ${total} cells shown` : `${total} cells`;
  document.getElementById("shown").value = status;
  document.getElementById("clear").hidden = !on;
  const said = [];
  boxes.forEach((group, axis) => {
    const names = group
      .filter((box) => box.checked)
      .map((box) => box.parentElement.querySelector(".name").textContent);
    if (names.length) said.push(`${AXES[axis]} ${names.join(" or ")}`);
    const chosen = group[0].closest("details").querySelector(".chosen");
    chosen.textContent = names.length > 1 ? ` ${names.length} of ${group.length}` : names[0] ?? "";
    group.forEach((box, index) => {
      const many = cells.filter((cell) => cell[axis] === index && passes(cell, ticks, axis)).length;
      box.parentElement.querySelector(".count").textContent = many;
      box.parentElement.classList.toggle("empty", many === 0);
    });
  });
  document.getElementById("filtered").textContent = on
    ? `A filter was on: ${said.join("; ")}. ${left} of ${total} cells shown.`
    : "";
}

// The address holds `#section?backend=mlx&precision=fp32`.
const address = () => {
  const [, anchor, query] = /^#?([^?]*)\??(.*)$/s.exec(location.hash);
  return { anchor, query };
};

function keep() {
  const query = new URLSearchParams(new FormData(form)).toString();
  const hash = `#${address().anchor}${query && `?${query}`}`;
  history.replaceState(null, "", hash === "#" ? location.href.split("#")[0] : hash);
}

function arrive() {
  const { anchor, query } = address();
  if (!query) return keep(); // a link of the contents: the filter stays as it is
  const wanted = new URLSearchParams(query);
  boxes.flat().forEach((box) => (box.checked = wanted.getAll(box.name).includes(box.value)));
  filter();
  document.getElementById(anchor)?.scrollIntoView();
}

// Once the whole script has been read.
addEventListener("DOMContentLoaded", () => {
  if (!form) return;
  form.hidden = false;
  root.classList.add("filterable");
  form.addEventListener("change", () => (filter(), keep()));
  form.addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("clear").addEventListener("click", () => {
    boxes.flat().forEach((box) => (box.checked = false));
    filter();
    keep();
    form.querySelector("summary").focus(); // the button that had the focus is gone
  });
  addEventListener("hashchange", arrive);
  filter();
  if (address().query) arrive();
});

// What lies over the page closes with Escape and with a press elsewhere.
const contents = document.querySelector("nav details");
const over = () => [
  ...all("#filter details[open], .save[open]"),
  ...(desk.matches || !contents.open ? [] : [contents]),
];
addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  over().forEach((details) => {
    if (details.contains(document.activeElement)) details.querySelector("summary").focus();
    details.open = false;
  });
  hush();
});
// Not before the click is over: what closes moves the page under the pointer.
addEventListener("click", (event) => {
  over().forEach((details) => (details.open = details.contains(event.target)));
});

// -- the words of a mark, at the pointer or finger -----------------------------------------------

const tip = make("div", { id: "tip", role: "tooltip" });
tip.hidden = true;
document.body.append(tip);
const hush = () => (tip.hidden = true);

// Marks carry a <title>; it is taken out on the way, or the browser would show it a second time.
function words(mark) {
  const title = mark.querySelector(":scope > title");
  if (title) {
    mark.dataset.said = title.textContent;
    title.remove();
  }
  return mark.dataset.said;
}

// Lines are thin and dots are small, so the surroundings count as well, the nearest first.
const ROUND = [
  [0, 1], [0, -1], [1, 0], [-1, 0], [0.7, 0.7], [-0.7, 0.7], [0.7, -0.7], [-0.7, -0.7],
];
const around = (...reaches) => [
  [0, 0],
  ...reaches.flatMap((reach) => ROUND.map(([x, y]) => [x * reach, y * reach])),
];
const NEAR = { mouse: around(1, 3, 5), touch: around(2, 5, 9, 14) };
function tell(event) {
  if (!event.target.closest?.("figure svg")) return hush();
  const said = (NEAR[event.pointerType] ?? NEAR.mouse)
    .map(([x, y]) =>
      document.elementFromPoint(event.clientX + x, event.clientY + y)?.closest("svg .mark"),
    )
    .find((mark) => mark && words(mark));
  if (!said) return hush();
  tip.textContent = words(said);
  tip.hidden = false;
  const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  const above = event.clientY - tip.offsetHeight - 12;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${above > 8 ? above : event.clientY + 22}px`;
}
addEventListener("pointermove", (event) => event.pointerType === "mouse" && tell(event));
addEventListener("pointerdown", tell);
addEventListener("scroll", hush, { passive: true, capture: true });

// -- light and dark, contents, print ------------------------------------------------------------

const theme = document.getElementById("theme");
const dark = () =>
  root.dataset.theme === "dark" ||
  (root.dataset.theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
const label = () => (theme.textContent = dark() ? "Light" : "Dark");
theme.hidden = false;
label();
theme.addEventListener("click", () => {
  root.dataset.theme = dark() ? "light" : "dark";
  label();
  try {
    localStorage.setItem("theme", root.dataset.theme);
  } catch {
    // files opened from disk may have no storage
  }
});

const beside = () => (contents.open = desk.matches);
beside();
// On a phone the study's sections are closed; whatever leads into one opens it.
if (matchMedia("(max-width: 40rem)").matches)
  all("#study .part").forEach((part) => (part.open = false));
function reveal() {
  for (let at = document.getElementById(address().anchor); at; at = at.parentElement)
    if (at.tagName === "DETAILS") at.open = true;
}
addEventListener("hashchange", reveal);
reveal();
desk.addEventListener("change", beside);
contents.addEventListener("click", (event) => {
  if (event.target.closest("a") && !desk.matches) contents.open = false;
});

const nav = document.querySelector("nav");
const links = new Map(all("nav a[data-section]").map((link) => [link.dataset.section, link]));
const seen = new IntersectionObserver(
  (entries) => {
    const link = links.get(entries.find((entry) => entry.isIntersecting)?.target.id);
    if (!link) return;
    links.forEach((other) => other.removeAttribute("aria-current"));
    link.setAttribute("aria-current", "true");
    const { top, bottom } = link.getBoundingClientRect();
    if (desk.matches && (top < 0 || bottom > innerHeight)) nav.scrollTop += top - innerHeight / 2;
  },
  { rootMargin: "-10% 0px -80% 0px" },
);
all("main section").forEach((section) => seen.observe(section));
