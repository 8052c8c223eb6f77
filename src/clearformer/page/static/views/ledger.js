// A logit as the sum of what every part wrote, with how exactly the parts sum to it.
import { html, select, view } from "../core/html.js";
import { signed, visible } from "../core/words.js";
import { Bars } from "../parts/bars.js";

const MOST = 24;

/** @param {{model: any, found: any, selection: any}} props */
function Ledger({ model, found, selection }) {
  const parts = [...found.parts].sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const bars = parts.slice(0, MOST).map((part) => ({
    name: label(part),
    value: part.value,
    chosen: part.head !== null && part.layer === selection.layer && part.head === selection.head,
    open: part.head === null ? undefined : () => select(model, { layer: part.layer, head: part.head, part: part.name.includes("cross_attn") ? "cross_attn" : "attn" }),
  }));
  const rest = parts.slice(MOST).reduce((sum, part) => sum + part.value, 0);
  if (parts.length > MOST) bars.push({ name: `${parts.length - MOST} others`, value: rest, chosen: false, open: undefined });
  const foil = found.foil ? ` − ${visible(found.foil)}` : "";
  return html`<div class="ledger">
    <p class="sum">logit of <code>${visible(found.target)}${foil}</code> after <code>${visible(found.token)}</code>: <b>${signed(found.logit)}</b>
      <span class="badge" title="the sum of the parts less the logit">sum − logit = ${(found.sum - found.logit).toExponential(1)}</span>
      ${found.capped !== null && html`<span class="badge">after the soft cap of ${found.soft_cap}: ${signed(found.capped)}</span>`}</p>
    <${ByLayer} parts=${found.parts} />
    <${Bars} bars=${bars} name="parts of the logit" />
  </div>`;
}

/** The sum after each layer, from left to right. @param {{parts: any[]}} props */
function ByLayer({ parts }) {
  /** @type {Map<string, number>} */
  const layers = new Map();
  for (const part of parts) {
    const name = part.layer === null ? (layers.size && [...layers.keys()].some((key) => key !== "in") ? "out" : "in") : String(part.layer);
    layers.set(name, (layers.get(name) ?? 0) + part.value);
  }
  let sum = 0;
  const steps = [...layers].map(([name, value]) => ({ name, from: sum, to: (sum += value) }));
  const low = Math.min(0, ...steps.flatMap((step) => [step.from, step.to]));
  const span = Math.max(0, ...steps.flatMap((step) => [step.from, step.to])) - low || 1;
  return html`<ol class="waterfall" aria-label="the logit after each layer">
    ${steps.map(({ name, from, to }) => html`<li key=${name} title=${`${name}: ${signed(to - from)}, so far ${signed(to)}`}>
      <span><i class=${to < from ? "is-negative" : "is-positive"} style=${{ bottom: `${(100 * (Math.min(from, to) - low)) / span}%`, height: `${(100 * Math.abs(to - from)) / span}%` }}></i></span>
      <b>${signed(to - from, 2)}</b><small>${name}</small></li>`)}
  </ol>`;
}

/** @param {{name: string, head: number | null}} part */
function label(part) {
  const name = part.name.replace("blocks.", "").replace(".hook_", " ").replace("hook_", "");
  return part.head === null ? name : `${name.replace(" z", "").replace(".attn", " head")} ${part.head}`;
}

export default view(Ledger);
