// -- two devices, backends, precisions or trainers are compared: A and B -------------------------
// The filter picks them: of an axis with two ticks, those two. The page has every training and
// every explained gap once; pairs and ratios are made here, by the rules of the tables.

const COMPARED = ["device", "backend", "precision", "trainer"].map((name) => AXES.indexOf(name));
const [DEVICE, BACKEND] = COMPARED;
const MOST_WATERFALLS = 3;
const { trainings = [], gaps = [] } = form
  ? JSON.parse(document.getElementById("trainings").textContent)
  : {};

// Three digits, from 10 000 on in groups.
function significant(number) {
  const size = Math.abs(number);
  if (size === 0) return "0";
  const magnitude = Math.floor(Math.log10(Number(size.toPrecision(3))));
  const text = number.toFixed(Math.max(2 - magnitude, 0)).replace("-", "−");
  return size >= 9999.5 ? text.replace(/\B(?=(\d{3})+$)/g, "\u2009") : text;
}
const ms = (seconds) => significant(seconds * 1e3);

const valueOf = (training, axis) => boxes[axis][cells[training.of][axis]].value;
// What a pair has in common; devices have backends of their own, so of each the fastest counts.
const shared = (axis) => COMPARED.filter((i) => i !== axis && !(axis === DEVICE && i === BACKEND));
const wayOf = (training, axes) => axes.map((axis) => valueOf(training, axis)).join(" · ");

// Pairs [A, B] of trainings that do equal work, all else equal. Of several ways the fastest
// counts; one that other processes disturbed only where there is no other.
function pairsOf(axis, sides, shown) {
  const pairs = new Map();
  for (const training of trainings) {
    const side = sides.indexOf(cells[training.of][axis]);
    if (side < 0 || !shown[training.of]) continue;
    const place = axis === DEVICE ? [] : [training.host, training.threads];
    const key = JSON.stringify([training.work, wayOf(training, shared(axis)), place]);
    const pair = pairs.get(key) ?? [];
    pairs.set(key, pair);
    const other = pair[side];
    const sounder = other && Number(other.disturbed) - Number(training.disturbed);
    if (!other || sounder > 0 || (sounder === 0 && training.step[0] < other.step[0]))
      pair[side] = training;
  }
  return Array.from(pairs.values()).filter((pair) => pair[0] && pair[1]);
}

// 0 or 1 for A or B, -1 where intervals overlap; and that in words.
function faster(pair) {
  const winner = pair[0].step[0] <= pair[1].step[0] ? 0 : 1;
  const [fast, slow] = [pair[winner].step, pair[1 - winner].step];
  if (slow[1] <= fast[2]) return [-1, "no difference beyond noise"];
  const [times, low, high] = [slow[0] / fast[0], slow[1] / fast[2], slow[2] / fast[1]];
  const range = [low, high].map(significant).join(", ");
  return [winner, `${"AB"[winner]} is ${significant(times)} × [${range}] faster than ${"BA"[winner]}`];
}

const doubt = (training) =>
  training.disturbed ? [" ", make("span", { class: "badge hollow" }, "disturbed")] : [];
const prose = (text, ...more) => make("td", { class: "prose" }, text, ...more);
function figures(text, sort, below, ...more) {
  const small = below ? [make("small", {}, below)] : [];
  return make("td", { class: "num", "data-sort": sort }, text, ...more, ...small);
}

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
  const figure = make("figure", { class: "table live", id });
  figure.append(make("figcaption", {}, make("b", {}, `${name}.`), ` ${caption}`));
  figure.append(make("div", { class: "scroll" }, table));
  savable(figure);
  return figure;
}

function comparison(axis, pairs) {
  const rows = pairs.map((pair) => [
    prose(`${pair[0].name} · ${wayOf(pair[0], shared(axis))}`, make("small", {}, pair[0].size)),
    ...pair.map((one) => {
      const path = axis === DEVICE ? `, ${valueOf(one, BACKEND)}` : "";
      const range = one.step.slice(1).map(ms).join("–");
      return figures(ms(one.step[0]), one.step[0] * 1e3, range + path, ...doubt(one));
    }),
    ...pair.map(({ rates: [samples, tokens] }) => {
      const below = tokens ? `${significant(tokens)} tokens/s` : "";
      return figures(samples ? significant(samples) : "–", samples ?? "", below);
    }),
    prose(faster(pair)[1]),
  ]);
  const sound = pairs.filter((pair) => !pair.some((training) => training.disturbed));
  const count = (who) => sound.filter((pair) => faster(pair)[0] === who).length;
  const caption =
    `Equal work, all else equal: medians of a step, 95 % intervals. Of ${sound.length} undisturbed pairs ` +
    `A is faster in ${count(0)}, B in ${count(1)}; no difference beyond noise in ${count(-1)}.`;
  const heads = [
    ["Training"],
    ["A, a step", "ms"],
    ["B, a step", "ms"],
    ["A, speed", "samples/s"],
    ["B, speed", "samples/s"],
    ["Which is faster"],
  ];
  return liveTable("compared-steps", "Comparison", "cards", caption, heads, rows);
}

// From the faster step to the slower one, part by part.
function waterfall(pair, index) {
  const gap = gapOf(pair);
  const [slow, fast] = gap.of.map((at) => trainings[at]);
  const letter = (training) => "AB"[pair.indexOf(training)];
  const bars = [[`step of ${letter(fast)}`, 0, fast.step[0], fast]];
  let reached = fast.step[0];
  for (const [part, seconds] of gap.parts) {
    bars.push([part, reached, reached + seconds]);
    reached += seconds;
  }
  bars.push([`step of ${letter(slow)}`, 0, slow.step[0], slow]);
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
      make("td", {}, name, ...(training ? doubt(training) : [])),
      figures(sign + ms(to - from), (to - from) * 1e3),
      make("td", { class: "bar" }, bar),
    ];
  });
  const by = gap.phases ? "by phase alone, as operators were not timed" : "part by part";
  const caption = `${fast.name}: ${wayOf(fast, COMPARED)} is faster than ${wayOf(slow, COMPARED)}, ${by}.`;
  const heads = [["Part"], ["time", "ms"], ["as a bar"]];
  return liveTable(`compared-why-${index + 1}`, `Gap ${index + 1}`, "fall", caption, heads, rows);
}
const gapOf = (pair) => gaps.find(({ of }) => of.every((at) => pair.includes(trainings[at])));

// A row, a label or a mark that is of one side alone has its letter.
function setLetters(axis, sides) {
  all("main tspan.side").forEach((part) => part.remove());
  for (const { element, of } of tagged) {
    const letters = new Set(of.map((index) => "AB"[sides.indexOf(cells[index][axis])]));
    const [letter] = letters.size === 1 ? letters : [];
    if (!letter) {
      delete element.dataset.side;
      continue;
    }
    element.dataset.side = letter;
    const text = element.matches("text") ? element : element.querySelector("text");
    if (!text) continue;
    const part = document.createElementNS(text.namespaceURI, "tspan");
    part.setAttribute("class", "side");
    part.append(`${letter} `);
    text.prepend(part);
  }
}

// Called by the filter. Returns the axis that is compared, or -1.
function compareTwo(ticks, shown) {
  const axis = COMPARED.find((i) => ticks[i].size === 2) ?? -1;
  const sides = axis < 0 ? [] : Array.from(ticks[axis]);
  all(".live").forEach((part) => part.remove());
  setLetters(axis, sides);
  root.classList.toggle("comparing", axis >= 0);
  if (axis < 0) return axis;

  const say = (text) => make("p", { class: "note live" }, text);
  const pairs = pairsOf(axis, sides, shown);
  const names = sides.map((i) => boxes[axis][i].parentElement.querySelector(".name").textContent);
  const section = make("section", { class: "live", id: "compared" });
  section.append(make("h2", {}, `A: ${names[0]} against B: ${names[1]}`));
  section.append(
    pairs.length ? comparison(axis, pairs) : say("No two trainings do equal work here, all else equal."),
  );
  document.querySelector("main > header").after(section);
  const link = make("a", { class: "live", id: "to-compared", href: "#compared" }, "Comparison");
  document.getElementById("clear").after(link);

  const why = section.lastElementChild;
  const explained = pairs.filter(gapOf).slice(0, MOST_WATERFALLS).map(waterfall);
  why.after(...(explained.length ? explained : [say("No gap between these two was explained.")]));
  return axis;
}
