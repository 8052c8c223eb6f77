// The loss of a run, live while it trains: lines come from a cursor on, never the whole file again.
import { html, render, useEffect, useRef, useState } from "../core/html.js";
import { number, thousands } from "../core/words.js";
import uPlot from "../vendor/uplot.js";

const CURVES = [
  { title: "loss, nats per token", names: [["loss", "--loss"], ["val_loss", "--query"]] },
  { title: "learning rate", names: [["lr", "--value"]] },
  { title: "gradient norm", names: [["grad_norm", "--key"]] },
];

/** @param {{model: import("../core/html.js").Model}} props */
function Training({ model }) {
  const [lines, setLines] = useState(/** @type {any[]} */ ([]));
  const run = model.get("selection").run;
  useEffect(() => {
    setLines([]);
    return model.follow(run, (news) => setLines((lines) => (news.restarted ? news.lines : [...lines, ...news.lines])));
  }, [run]);
  if (!lines.length) return html`<p class="note">this run has written no metrics (an imported model has none)</p>`;
  const last = lines[lines.length - 1];
  return html`<div class="training">
    <p class="sum">step <b>${thousands(last.step)}</b>, loss <b>${number(latest(lines, "loss"))}</b>, held-out loss <b>${number(latest(lines, "val_loss"))}</b></p>
    ${CURVES.map((curve) => html`<${Curve} key=${curve.title} ...${curve} lines=${lines} />`)}
  </div>`;
}

/** @param {{title: string, names: string[][], lines: any[]}} props */
function Curve({ title, names, lines }) {
  const place = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  const plot = /** @type {{current: any}} */ (useRef(null));
  const rows = lines.filter((line) => names.some(([name]) => Number.isFinite(line[name])));
  const data = [rows.map((line) => line.step), ...names.map(([name]) => rows.map((line) => line[name] ?? null))];
  useEffect(() => {
    const element = place.current;
    if (!element) return undefined;
    const style = getComputedStyle(element);
    const axis = { stroke: style.getPropertyValue("--quiet"), grid: { stroke: style.getPropertyValue("--line"), width: 1 }, ticks: { show: false } };
    const series = names.map(([name, hue]) => ({ label: name, stroke: style.getPropertyValue(hue), width: 2, spanGaps: true, points: { show: false } }));
    plot.current = new uPlot({ width: element.clientWidth, height: 180, scales: { x: { time: false } }, axes: [axis, { ...axis, size: 64 }], series: [{ label: "step" }, ...series] }, data, element);
    const sizes = new ResizeObserver(() => plot.current.setSize({ width: element.clientWidth, height: 180 }));
    sizes.observe(element);
    return () => {
      sizes.disconnect();
      plot.current.destroy();
    };
  }, []);
  useEffect(() => plot.current?.setData(data), [lines]);
  return html`<figure class="curve"><figcaption>${title}</figcaption><div ref=${place} role="img" aria-label=${`${title} by step`}></div></figure>`;
}

/** @param {any[]} lines @param {string} name */
function latest(lines, name) {
  return lines.findLast((line) => Number.isFinite(line[name]))?.[name];
}

export default {
  /** @param {{model: any, el: HTMLElement}} props */
  render({ model, el }) {
    render(html`<${Training} model=${model} />`, el);
    return () => render(null, el);
  },
};
