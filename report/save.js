// -- any table and figure as a file, made of what the page shows ---------------------------------

function save(name, kind, content) {
  const href = URL.createObjectURL(new Blob([content], { type: kind }));
  make("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000); // the browser reads it a little later
}

// What a head or cell says, without what stands below it.
function textOf(element) {
  const copy = element.cloneNode(true);
  all("small, .unit", copy).forEach((part) => part.remove());
  all("sup", copy).forEach((sup) => {
    const word = { P: "[published]", C: "[computed]" }[sup.textContent] ?? `(${sup.textContent})`;
    sup.replaceWith(` ${word} `);
  });
  all(".badge", copy).forEach((badge) => badge.replaceWith(` [${badge.textContent}] `));
  return copy.textContent.trim().replace(/ {2,}|\s*\n\s*/g, " ");
}

// A table as it stands: sorted, and with the rows alone that filter and search leave.
function tableOf(figure) {
  const heads = all("thead th", figure).map((head) => {
    const unit = head.querySelector(".unit")?.textContent;
    return { text: textOf(head) + (unit ? ` (${unit})` : ""), num: head.classList.contains("num") };
  });
  const rows = all("tbody tr", figure)
    .filter((row) => !row.hidden && !row.classList.contains("unfound"))
    .map((row) =>
      Array.from(row.cells, (cell, index) => ({
        text: textOf(cell),
        below: cell.querySelector("small")?.textContent ?? "",
        value: cell.classList.contains("missing") ? "" : heads[index].num ? cell.dataset.sort : undefined,
      })),
    );
  const notes = all(".footnotes span", figure).map(textOf);
  return { caption: figure.querySelector("figcaption") ? textOf(figure.querySelector("figcaption")) : nameOf(figure), heads, rows, notes };
}

const whole = ({ text, below }) => (below ? `${text} (${below})` : text);

function asCsv({ heads, rows }) {
  const below = heads.map((_, index) => rows.some((row) => row[index].below));
  // A spreadsheet takes a text that begins so for a formula (OWASP, "CSV Injection").
  const harmless = (text) => (/^[=+\-@\t\r]/.test(text) && isNaN(text) ? `'${text}` : text);
  const quoted = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const line = (values) => `${values.map((value) => quoted(harmless(value))).join(",")}\n`;
  const pairs = (values) => values.flatMap((pair, i) => (below[i] ? pair : pair.slice(0, 1)));
  return [
    line(pairs(heads.map(({ text }) => [text, `${text}: below`]))),
    ...rows.map((row) =>
      line(pairs(row.map(({ text, value, below: small }) => [value ?? text, small]))),
    ),
  ].join("");
}

function asMarkdown({ caption, heads, rows, notes }) {
  const entities = { "&": "&amp;", "<": "&lt;", ">": "&gt;" };
  const escaped = (text) =>
    text.replace(/[&<>\\`*|]/g, (c) => entities[c] ?? `\\${c}`).replaceAll("](", "]\\(");
  const line = (values) => `| ${values.join(" | ")} |`;
  return [
    escaped(caption),
    "",
    line(heads.map(({ text }) => escaped(text))),
    line(heads.map(({ num }) => (num ? "---:" : "---"))),
    ...rows.map((row) => line(row.map((cell) => escaped(whole(cell))))),
    ...notes.flatMap((note) => ["", escaped(note)]),
    "",
  ].join("\n");
}

function asLatex({ caption, heads, rows, notes }) {
  const commands = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}" };
  const escaped = (text) => text.replace(/[\\{}$&#_%~^]/g, (c) => commands[c] ?? `\\${c}`);
  const line = (values) => `${values.map(escaped).join(" & ")} \\\\`;
  return [
    "\\begin{table}",
    `\\caption{${escaped(caption)}}`,
    `\\begin{tabular}{${heads.map(({ num }) => (num ? "r" : "l")).join("")}}`,
    "\\toprule",
    line(heads.map(({ text }) => text)),
    "\\midrule",
    ...rows.map((row) => line(row.map(whole))),
    "\\bottomrule",
    "\\end{tabular}",
    ...notes.map((note) => `\n\\noindent ${escaped(note)}`),
    "\\end{table}",
    "",
  ].join("\n");
}

// Looks come from the page's style sheet: a drawing that leaves the page takes them along.
const LOOKS = [
  "fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "stroke-dasharray",
  "stroke-linecap", "stroke-linejoin", "font-family", "font-size", "font-style", "font-weight",
  "text-anchor", "opacity",
];
const MARGIN = 8;

function asSvg(figure) {
  const shown = all("svg", figure).find((svg) => svg.getClientRects().length);
  const copy = shown.cloneNode(true);
  const drawn = all("*", shown);
  all("*", copy).forEach((element, index) => {
    const look = getComputedStyle(drawn[index]);
    const above = getComputedStyle(drawn[index].parentElement);
    const own = LOOKS.filter((name) => {
      const [value, inherited] = [look, above].map((of) => of.getPropertyValue(name));
      return name === "opacity" ? value !== "1" : value !== inherited;
    });
    element.removeAttribute("class");
    element.setAttribute("style", own.map((name) => `${name}: ${look.getPropertyValue(name)}`).join("; "));
  });
  const look = getComputedStyle(shown);
  copy.setAttribute("style", LOOKS.map((name) => `${name}: ${look.getPropertyValue(name)}`).join("; "));
  const [width, height] = [shown.viewBox.baseVal.width, shown.viewBox.baseVal.height];
  const box = { width: width + 2 * MARGIN, height: height + 2 * MARGIN };
  for (const [name, value] of Object.entries(box)) copy.setAttribute(name, value);
  copy.setAttribute("viewBox", `${-MARGIN} ${-MARGIN} ${box.width} ${box.height}`);
  const ground = document.createElementNS(shown.namespaceURI, "rect");
  const fill = getComputedStyle(document.body).backgroundColor;
  for (const [name, value] of Object.entries({ x: -MARGIN, y: -MARGIN, ...box, fill }))
    ground.setAttribute(name, value);
  copy.prepend(ground);
  return { text: new XMLSerializer().serializeToString(copy), ...box };
}

function savePng(figure, name) {
  const { text, width, height } = asSvg(figure);
  const image = new Image();
  image.addEventListener("load", () => {
    const canvas = make("canvas", { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(name, "image/png", blob));
  });
  image.src = `data:image/svg+xml,${encodeURIComponent(text)}`;
}

const OF_TABLE = {
  CSV: (figure, name) => save(`${name}.csv`, "text/csv", asCsv(tableOf(figure))),
  Markdown: (figure, name) => save(`${name}.md`, "text/markdown", asMarkdown(tableOf(figure))),
  LaTeX: (figure, name) => save(`${name}.tex`, "application/x-tex", asLatex(tableOf(figure))),
};
const OF_DRAWING = {
  SVG: (figure, name) => save(`${name}.svg`, "image/svg+xml", asSvg(figure).text),
  PNG: (figure, name) => savePng(figure, `${name}.png`),
};

function savable(figure) {
  const kinds = figure.classList.contains("table") ? OF_TABLE : OF_DRAWING;
  const name = nameOf(figure);
  const summary = make("summary", {}, "Save", make("span", { class: "unseen" }, ` ${name}`));
  const menu = make("details", { class: "save", name: "save" }, summary);
  summary.addEventListener("click", () => {
    if (menu.children.length > 1) return;
    for (const [kind, write] of Object.entries(kinds)) {
      const button = make("button", { type: "button" }, kind);
      button.addEventListener("click", () => write(figure, figure.id));
      menu.append(button);
    }
  });
  figure.append(menu);
}
all("main figure").forEach(savable);
