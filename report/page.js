// Sortable tables, a theme switch, and folded parts that open for print. The page works without.
"use strict";

document.querySelectorAll("table").forEach((table) => {
  const body = table.tBodies[0];
  table.querySelectorAll("th").forEach((head, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") === "ascending";
      const key = (row) => {
        const cell = row.cells[index];
        if (cell.classList.contains("missing")) return null;
        const text = cell.dataset.sort ?? cell.textContent.trim();
        return head.classList.contains("num") && text !== "" && !isNaN(text) ? Number(text) : text;
      };
      const compare = (a, b) =>
        typeof a === "number" && typeof b === "number"
          ? a - b
          : String(a).localeCompare(String(b), "en", { numeric: true });
      const rows = Array.from(body.rows, (row) => [key(row), row]);
      rows.sort(([a], [b]) => {
        if (a === null || b === null) return (a === null) - (b === null); // dashes stay last
        return falling ? compare(b, a) : compare(a, b);
      });
      table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      body.append(...rows.map(([, row]) => row));
    });
  });
});

const root = document.documentElement;
const theme = document.getElementById("theme");
const store = (value) => {
  try {
    return value ? localStorage.setItem("theme", value) : localStorage.getItem("theme");
  } catch {
    return null; // files opened from disk may have no storage
  }
};
const dark = () =>
  (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) ===
  "dark";
const label = () => (theme.textContent = dark() ? "Light" : "Dark");
const kept = store();
if (kept === "dark" || kept === "light") root.dataset.theme = kept;
theme.hidden = false;
label();
theme.addEventListener("click", () => {
  root.dataset.theme = dark() ? "light" : "dark";
  store(root.dataset.theme);
  label();
});

const links = new Map(
  Array.from(document.querySelectorAll("nav a"), (link) => [link.hash.slice(1), link]),
);
const seen = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      links.forEach((link) => link.removeAttribute("aria-current"));
      links.get(entry.target.id)?.setAttribute("aria-current", "true");
    }
  },
  { rootMargin: "-10% 0px -80% 0px" },
);
document.querySelectorAll("main > section").forEach((section) => seen.observe(section));

addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach((details) => (details.open = true));
});
