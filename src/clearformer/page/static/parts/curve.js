// Curves by step, with steps and levels marked on them; a click picks a step.
import { useDark } from "../core/colours.js";
import { html, useEffect, useRef, useState } from "../core/html.js";

const HEIGHT = 180;
const DOUBLE_CLICK = 250; // milliseconds between its clicks, at most
const MOST_DIGITS = 7; // of a label
const LEGEND_DIGITS = 5; // significant ones: a learning rate is far below one
const MOST_POINTS = 2; // of a series that is drawn as points, too: one makes no line
const WHOLE = Array.from({ length: 27 }, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3)); // possible distances of labels

/**
 * @typedef {object} Mark
 * @property {number} step
 * @property {string} label
 * @property {boolean} [dashed]
 */

/**
 * @param {object} props
 * @param {string} props.title
 * @param {{name: string, label: string, colour: string, dashed?: boolean}[]} props.series `colour` is a colour, or the name of a variable of the style sheet
 * @param {any[]} props.lines sorted by step; lines without any of the series are left out
 * @param {Mark[]} [props.marks] steps
 * @param {{value: number, label: string}[]} [props.levels]
 * @param {boolean} [props.log] whether the vertical axis is logarithmic; values of zero and below are then left out
 * @param {boolean} [props.points]
 * @param {(step: number) => void} [props.onPick]
 */
export function Curve({ title, series, lines, marks = [], levels = [], log = false, points = false, onPick }) {
  const place = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  const plot = /** @type {{current: any}} */ (useRef(null));
  const told = useRef({ marks, levels, onPick });
  told.current = { marks, levels, onPick };
  const shows = (/** @type {any} */ value) => Number.isFinite(value) && (!log || value > 0);
  const rows = lines.filter((line) => series.some(({ name }) => shows(line[name])));
  const data = [rows.map((line) => line.step), ...series.map(({ name }) => rows.map((line) => (shows(line[name]) ? line[name] : null)))];
  const names = series.map(({ name }) => name).join();
  const uPlot = useLibrary();
  const dark = useDark();
  const part = /** @type {{current: {min: number, max: number} | null}} */ (useRef(null)); // of the steps, chosen with the mouse
  const show = () => {
    plot.current?.setData(data);
    if (part.current) plot.current?.setScale("x", part.current);
  };
  useEffect(() => {
    const element = place.current;
    if (!element || !uPlot) return undefined;
    const style = getComputedStyle(element);
    const hue = (/** @type {string} */ colour) => (colour.startsWith("--") ? style.getPropertyValue(colour) : colour);
    const axis = { stroke: hue("--quiet"), grid: { stroke: hue("--line"), width: 1 }, ticks: { show: false } };
    const lineOf = (/** @type {any} */ { label, colour, dashed }) => ({ label, value: inLegend, dash: dashed ? [6, 4] : undefined, stroke: hue(colour), width: series.length > 2 ? 1.5 : 2, spanGaps: true, points: { show: (/** @type {any} */ chart, /** @type {number} */ i) => points || chart.data[i].filter(Number.isFinite).length <= MOST_POINTS, size: 5 } });
    plot.current = new uPlot({
      width: element.clientWidth,
      height: HEIGHT,
      scales: { x: { time: false, range: whole }, y: { distr: log ? 3 : 1, range: log ? undefined : (/** @type {any} */ _, /** @type {number} */ low, /** @type {number} */ high) => withLevels(low, high, told.current.levels) } },
      axes: [{ ...axis, size: 32, incrs: WHOLE }, { ...axis, size: 56, values: (/** @type {any} */ _, /** @type {number[]} */ splits) => shortly(splits), ...(log ? { splits: powersOfTen } : {}) }],
      series: [{ label: "step" }, ...series.map(lineOf)],
      legend: { markers: { dash: (/** @type {any} */ chart, /** @type {number} */ i) => (chart.series[i].dash ? "dashed" : "solid") } },
      hooks: { setSelect: [(/** @type {any} */ { select, posToVal }) => {
        if (select.width) part.current = { min: posToVal(select.left, "x"), max: posToVal(select.left + select.width, "x") };
      }], draw: [(/** @type {any} */ chart) => paintMarks(chart, told.current, { ink: hue("--ink"), quiet: hue("--quiet"), paper: hue("--sheet") })] },
    }, data, element);
    if (part.current) plot.current.setScale("x", part.current); // drawn anew, in other colours
    let picking = 0; // a click may be the first of two, which pick nothing
    plot.current.over.addEventListener("click", (/** @type {MouseEvent} */ event) => {
      if (event.detail > 1) return clearTimeout(picking);
      if (plot.current.cursor.left < 0) return;
      const step = plot.current.posToVal(plot.current.cursor.left, "x");
      picking = setTimeout(() => told.current.onPick?.(step), DOUBLE_CLICK);
    });
    plot.current.over.addEventListener("dblclick", () => (part.current = null));
    const sizes = new ResizeObserver(() => plot.current.setSize({ width: element.clientWidth, height: HEIGHT }));
    sizes.observe(element);
    return () => {
      sizes.disconnect();
      plot.current.destroy();
    };
  }, [names, uPlot, dark]);
  useEffect(show, [lines]);
  useEffect(show, [JSON.stringify([marks, levels])]);
  return html`<figure class=${onPick ? "curve can-pick" : "curve"}><figcaption>${title}</figcaption><div ref=${place} role="img" aria-label=${`${title} by step`}></div></figure>`;
}

/** @type {any} */
let library = null;

/** The plotting library, loaded only when the first curve is drawn: it is large, and most views have no curves. */
function useLibrary() {
  const [has, setHas] = useState(library !== null);
  useEffect(() => {
    if (has) return;
    import("../vendor/uplot.js").then((loaded) => {
      library = loaded.default;
      setHas(true);
    });
  }, []);
  return has ? library : null;
}

/** The range of the vertical axis: all numbers and levels, with a margin. @param {number} low @param {number} high @param {{value: number}[]} levels */
function withLevels(low, high, levels) {
  const values = [low, high, ...levels.map((level) => level.value)].filter(Number.isFinite);
  if (!values.length) return [0, 1];
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const room = 0.06 * (most - least) || 0.5 * Math.abs(most) || 0.5;
  return [least - room, most + room];
}

/** The range of the steps: from 0, unless a part was chosen with the mouse. @param {any} chart @param {number | null} low @param {number | null} high */
function whole(chart, low, high) {
  return [low === null ? 0 : low === chart.data[0][0] ? Math.min(0, low) : low, high ?? 1];
}

/** A series' value at the cursor. @param {any} _ @param {number | null} value */
function inLegend(_, value) {
  return value === null ? "–" : String(Number(value.toPrecision(LEGEND_DIGITS)));
}

/** Labels of ticks, with as many digits as tell them apart; none for ticks that lie too close. @param {(number | null)[]} splits @returns {string[]} */
function shortly(splits) {
  for (let digits = 3; ; digits++) {
    const labels = splits.map((value) => (value === null ? "" : String(Number(value.toPrecision(digits)))));
    const named = labels.filter(Boolean);
    if (digits === MOST_DIGITS || new Set(named).size === named.length) return labels;
  }
}

/** The ticks of a logarithmic axis. @param {any} _ @param {number} __ @param {number} low @param {number} high */
function powersOfTen(_, __, low, high) {
  const first = Math.ceil(Math.log10(low) - 1e-9);
  const last = Math.floor(Math.log10(high) + 1e-9);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_each, i) => 10 ** (first + i));
}

/** Draw marked steps as vertical lines with names, and levels as horizontal ones. @param {any} chart @param {{marks: Mark[], levels: {value: number, label: string}[]}} told @param {{ink: string, quiet: string, paper: string}} hues */
function paintMarks(chart, { marks, levels }, hues) {
  const { ctx, bbox } = chart;
  const ratio = devicePixelRatio || 1;
  ctx.save();
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  ctx.lineWidth = ratio;
  ctx.textAlign = "left";
  ctx.textBaseline = "alphabetic";
  for (const { value, label } of levels) {
    const y = chart.valToPos(value, "y", true);
    if (y < bbox.top || y > bbox.top + bbox.height) continue;
    stroke(ctx, hues.quiet, [4 * ratio, 4 * ratio], bbox.left, y, bbox.left + bbox.width, y);
    write(ctx, label, bbox.left + bbox.width - ctx.measureText(label).width - 4 * ratio, y - 4 * ratio, hues.quiet, hues.paper, ratio);
  }
  marks.forEach(({ step, label, dashed }, i) => {
    const x = chart.valToPos(step, "x", true);
    if (x < bbox.left - 1 || x > bbox.left + bbox.width + 1) return;
    const hue = dashed ? hues.quiet : hues.ink;
    stroke(ctx, hue, dashed ? [2 * ratio, 3 * ratio] : [], x, bbox.top, x, bbox.top + bbox.height);
    const wide = ctx.measureText(label).width;
    const fits = x + wide + 8 * ratio < bbox.left + bbox.width;
    write(ctx, label, fits ? x + 4 * ratio : x - wide - 4 * ratio, bbox.top + (11 + 14 * i) * ratio, hue, hues.paper, ratio);
  });
  ctx.restore();
}

/** @param {CanvasRenderingContext2D} ctx @param {string} hue @param {number[]} dash @param {number} x @param {number} y @param {number} toX @param {number} toY */
function stroke(ctx, hue, dash, x, y, toX, toY) {
  ctx.strokeStyle = hue;
  ctx.setLineDash(dash);
  ctx.beginPath();
  ctx.moveTo(x, y);
  ctx.lineTo(toX, toY);
  ctx.stroke();
}

/** Draw text that is readable on top of curves. @param {CanvasRenderingContext2D} ctx @param {string} words @param {number} x @param {number} y @param {string} hue @param {string} paper @param {number} ratio */
function write(ctx, words, x, y, hue, paper, ratio) {
  ctx.setLineDash([]);
  ctx.strokeStyle = paper;
  ctx.lineWidth = 3 * ratio;
  ctx.strokeText(words, x, y);
  ctx.lineWidth = ratio;
  ctx.fillStyle = hue;
  ctx.fillText(words, x, y);
}
