// -- two devices, backends, precisions or trainers are compared: A and B -------------------------
// The filter picks them: of an axis with two ticks, those two. The page has every training and
// every explained gap once; pairs and ratios are made here, by the rules of the tables.

const COMPARED = ["device", "backend", "precision", "trainer"];
const MOST_WATERFALLS = 3;
const { trainings, gaps } = form ? JSON.parse(document.getElementById("compared-data").textContent) : {};

// Three digits, from 10 000 on in groups.
function significant(number) {
  const size = Math.abs(number);
  if (size === 0) return "0";
  const magnitude = Math.floor(Math.log10(Number(size.toPrecision(3))));
  const text = number.toFixed(Math.max(2 - magnitude, 0)).replace("-", "−");
  return size >= 9999.5 ? text.replace(/\B(?=(\d{3})+$)/g, "\u202f") : text;
}

// Pairs [A, B] of trainings that do equal work, all else equal. Of several the first counts: the
// fastest, and one that other processes disturbed only where there is no other.
function pairsOf(name, sides, shown) {
  const pairs = new Map();
  for (const training of trainings) {
    const side = sides.indexOf(cells[training.of][AXES.indexOf(name)]);
    if (side < 0 || !shown[training.of]) continue;
    const alike = training[`alike_but_${name}`];
    if (!pairs.has(alike)) pairs.set(alike, []);
    pairs.get(alike)[side] ??= training;
  }
  return Array.from(pairs.values()).filter((pair) => pair[0] && pair[1]);
}

// 0 or 1 for A or B, -1 where intervals overlap; and that in words.
function faster(pair) {
  const winner = pair[0].step_ms <= pair[1].step_ms ? 0 : 1;
  const [fast, slow] = [pair[winner], pair[1 - winner]];
  if (slow.step_ms_low <= fast.step_ms_high) return [-1, "no difference beyond noise"];
  const ends = [slow.step_ms_low / fast.step_ms_high, slow.step_ms_high / fast.step_ms_low];
  const times = `${significant(slow.step_ms / fast.step_ms)} × [${ends.map(significant).join(", ")}]`;
  return [winner, `${"AB"[winner]} is ${times} faster than ${"BA"[winner]}`];
}

const doubt = (training) =>
  training?.disturbed ? [" ", make("span", { class: "badge hollow" }, "disturbed")] : [];
const prose = (text, ...more) => make("td", { class: "prose" }, text, ...more);
const small = (text) => (text ? [make("small", {}, text)] : []);
const figures = (text, sort, ...more) => make("td", { class: "num", "data-sort": sort }, text, ...more);

// A table that comes and goes with what is picked. Heads are [text, unit]; of a number if it has one.
function liveTable(id, name, look, caption, heads, rows) {
  const ths = heads.map(([text, unit]) =>
    unit === undefined
      ? make("th", { scope: "col" }, text)
      : make("th", { scope: "col", class: "num" }, text, make("span", { class: "unit" }, unit)),
  );
  const lines = rows.map((row) => make("tr", {}, ...row));
  for (const line of lines)
    heads.forEach(([text, unit], i) => (line.cells[i].dataset.head = unit ? `${text}, ${unit}` : text));
  const table = make("table", { "aria-label": name, class: look });
  table.append(make("thead", {}, make("tr", {}, ...ths)), make("tbody", {}, ...lines));
  const figure = make("figure", { class: "table", id });
  figure.append(make("figcaption", {}, make("b", {}, `${name}.`), ` ${caption}`));
  figure.append(make("div", { class: "scroll" }, table));
  savable(figure);
  return figure;
}

function comparison(pairs) {
  const rows = pairs.map((pair) => [
    prose(...pair[0].work_label.split(": ").map((text, i) => (i ? small(text)[0] : text))),
    ...pair.map((one) => {
      const range = `${significant(one.step_ms_low)}–${significant(one.step_ms_high)}`;
      const below = make("small", {}, `${range}, `, make("br", {}), one.setup);
      return figures(significant(one.step_ms), one.step_ms, ...doubt(one), below);
    }),
    ...pair.map(({ samples_per_s: samples, tokens_per_s: tokens }) => {
      const below = small(tokens && `${significant(tokens)} tokens/s`);
      return figures(samples ? significant(samples) : "–", samples ?? "", ...below);
    }),
    prose(faster(pair)[1]),
  ]);
  const sound = pairs.filter((pair) => !pair.some((training) => training.disturbed));
  const count = (who) => sound.filter((pair) => faster(pair)[0] === who).length;
  const caption =
    `Equal work, all else equal: medians of a step, 95 % intervals. Of ${sound.length} undisturbed pairs ` +
    `A is faster in ${count(0)}, B in ${count(1)}; no difference beyond noise in ${count(-1)}.`;
  const speeds = ["A", "B"].map((side) => [`${side}, speed`, "samples/s"]);
  const steps = ["A", "B"].map((side) => [`${side}, a step`, "ms"]);
  const heads = [["Training"], ...steps, ...speeds, ["Which is faster"]];
  return liveTable("compared-steps", "Comparison", "cards", caption, heads, rows);
}

const gapOf = (pair) => gaps.find(({ of }) => of.every((at) => pair.includes(trainings[at])));

// From the faster step to the slower one, part by part.
function waterfall(pair, index) {
  const gap = gapOf(pair);
  const [slow, fast] = gap.of.map((at) => trainings[at]);
  const letter = (training) => "AB"[pair.indexOf(training)];
  const bars = [[`step of ${letter(fast)}`, 0, fast.step_ms, fast]];
  let reached = fast.step_ms;
  for (const [part, part_ms] of gap.parts) bars.push([part, reached, (reached += part_ms)]);
  bars.push([`step of ${letter(slow)}`, 0, slow.step_ms, slow]);
  const most = Math.max(...bars.map(([, from, to]) => Math.max(from, to)));
  const rows = bars.map(([name, from, to, training]) => {
    const classes = training
      ? ["step", training.disturbed && "hollow"]
      : [from > to && "less", name === "unexplained" && "unknown"];
    const bar = make("i", { class: classes.filter(Boolean).join(" ") });
    bar.style.marginLeft = `${(100 * Math.max(Math.min(from, to), 0)) / most}%`;
    bar.style.width = `${(100 * Math.abs(to - from)) / most}%`;
    const sign = !training && to > from ? "+" : "";
    return [
      make("td", {}, name, ...doubt(training)),
      figures(sign + significant(to - from), to - from),
      make("td", { class: "bar" }, bar),
    ];
  });
  const sides = [fast, slow].map((training) => `${letter(training)} (${training.setup})`);
  const caption = `${fast.work_label.split(":")[0]}: ${sides.join(" is faster than ")}, ${gap.how}.`;
  const heads = [["Part"], ["time", "ms"], ["as a bar"]];
  return liveTable(`compared-why-${index + 1}`, `Gap ${index + 1}`, "fall", caption, heads, rows);
}

// Called by the filter.
function compareTwo(ticks, shown) {
  all("#compared, #to-compared").forEach((part) => part.remove());
  const name = COMPARED.find((axis) => ticks[AXES.indexOf(axis)].size === 2);
  if (!name) return;
  const sides = Array.from(ticks[AXES.indexOf(name)]);
  const pairs = pairsOf(name, sides, shown);
  const explained = pairs.filter(gapOf).slice(0, MOST_WATERFALLS).map(waterfall);
  const note = (text) => make("p", { class: "note" }, text);
  const chosen = sides.map((i) => boxes[AXES.indexOf(name)][i].parentElement);
  const [a, b] = chosen.map((label) => label.querySelector(".name").textContent);
  const section = make(
    "section",
    { id: "compared" },
    make("h2", {}, `A: ${a} against B: ${b}`),
    pairs.length ? comparison(pairs) : note("No two trainings do equal work here, all else equal."),
    ...(explained.length ? explained : [note("No gap between these two was explained.")]),
  );
  document.querySelector("main > header").after(section);
  document.getElementById("clear").after(make("a", { id: "to-compared", href: "#compared" }, "Comparison"));
}
