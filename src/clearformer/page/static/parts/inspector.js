// The number inspector: one number of a model with its formula, operands and terms, and the line that computes it.
import { html, select, useEffect, useMemo, useState, useTrait } from "../core/html.js";
import { keyOf } from "../core/selection.js";
import { number, signed, tiny, visible } from "../core/words.js";
import { Bars } from "./bars.js";
import { HeatMap } from "./heatmap.js";
import { Snippet } from "./taking.js";

const USES = ["run", "checkpoint", "text", "output", "masked", "layer", "head", "part", "matrix", "row", "column"];
const WIDTH = 336; // pixels of an operand
const MASKED = 1e30;

/** @typedef {(name: string, row: number, column: number) => void} Open */

/** @param {{model: any, selection: any, arrays: any[], open: Open}} props */
export function Inspector({ model, selection, arrays, open }) {
  const cell = useMemo(() => model.beside("cell"), [model]);
  const found = useTrait(cell, "found");
  const error = useTrait(cell, "error");
  const busy = useTrait(cell, "busy");
  useEffect(() => cell.ask(selection), [keyOf(selection, USES)]);
  return html`<aside class="inspector" aria-label="number inspector">
    <header><h3>Number inspector</h3><button type="button" aria-label="close the number inspector" onClick=${() => select(model, { matrix: "" })}>Close</button></header>
    ${selection.versus && html`<p class="note">of ${selection.run} only: a number is explained for one run</p>`}
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${!found && !error && html`<p class="state" role="status">computing</p>`}
    ${found && !error && html`<div class=${busy ? "is-busy" : ""}><${Explained} found=${found} arrays=${arrays} open=${open} /></div>`}
  </aside>`;
}

/** @param {{found: any, arrays: any[], open: Open}} props */
function Explained({ found, arrays, open }) {
  const known = found.recomputed !== null;
  return html`
    <p class="inspected" aria-live="polite"><code>${found.symbol}[${found.row}, ${found.column}]</code> = <b>${plain(found.value)}</b>
      ${known && html`<span class="badge" title="the number recomputed from the operands below, minus the model's own">recomputed − own = ${tiny(found.error)}</span>`}</p>
    <p class="note">${found.title}${found.row_label && html`; row ${found.row} <code>${visible(found.row_label)}</code>`}${found.column_label && html`, column ${found.column} <code>${visible(found.column_label)}</code>`}</p>
    <p class="formula">${found.formula}</p>
    ${known && html`<${Operands} operands=${found.operands} arrays=${arrays} open=${open} />`}
    ${found.terms.length > 0 && html`<${Terms} found=${found} arrays=${arrays} open=${open} />`}
    <dl class="card"><dt>recomputed</dt><dd>${known ? plain(found.recomputed, 6) : "–"}</dd><dt>the model's own</dt><dd>${plain(found.value, 6)}</dd>
      <dt>taught in</dt><dd>${found.section}</dd>
      ${found.code && html`<dt>computed in</dt><dd><code>${found.code.file}:${found.code.line}</code> <small>${found.code.function}</small></dd>`}</dl>
    ${found.code && html`<pre class="line" tabindex="0" aria-label="the line of code">${found.code.text}</pre>`}
    ${found.snippet && html`<${Snippet} title="as Python" text=${found.snippet} />`}
  `;
}

/** @param {{operands: any[], arrays: any[], open: Open}} props */
function Operands({ operands, arrays, open }) {
  return html`<h4>computed from</h4><ul class="operands">${operands.map((operand) => html`<${Operand} key=${operand.symbol} operand=${operand} place=${placeOf(operand, arrays)} open=${open} />`)}</ul>`;
}

/** @param {{operand: any, place: [number, number | null] | null, open: Open}} props */
function Operand({ operand, place, open }) {
  const { symbol, name, index, values } = operand;
  const [chosen, setChosen] = useState(0);
  const n = values.data.length;
  const line = html`<code>${symbol}</code> <span>${name}${index}</span>`;
  if (n === 1) {
    const column = place?.[1];
    const opens = place && column !== null && column !== undefined ? () => open(name, place[0], column) : null;
    return html`<li>${opens ? html`<button type="button" title="inspect this number" onClick=${opens}>${line}</button>` : html`<div>${line}</div>`}<b>${plain(values.data[0])}</b></li>`;
  }
  const wide = Math.max(1, Math.min(16, Math.floor(WIDTH / n)));
  const finite = { data: values.data.map((/** @type {number} */ value) => (Math.abs(value) > MASKED ? NaN : value)), shape: [1, n] };
  const inspect = place ? (/** @type {number} */ _, /** @type {number} */ i) => open(name, place[0], i) : undefined;
  const choose = (/** @type {number} */ _, /** @type {number} */ i) => setChosen(i);
  return html`<li class="is-vector"><div>${line} <small>${n} numbers</small></div>
    <${HeatMap} values=${finite} name=${`${symbol}, ${n} numbers`} signed cell=${16} wide=${wide} chosen=${[0, chosen]} onChoose=${choose} onOpen=${inspect} say=${(/** @type {number} */ _, /** @type {number} */ i) => `${symbol}[${i}]`} /></li>`;
}

/** @param {{found: any, arrays: any[], open: Open}} props */
function Terms({ found, arrays, open }) {
  const [first] = found.operands;
  const place = first && placeOf(first, arrays);
  const bars = found.terms.map((/** @type {any} */ term) => {
    const index = /^\w=(\d+)$/.exec(term.label);
    const opens = index && place && place[1] === null ? () => open(first.name, place[0], Number(index[1])) : undefined;
    const factors = term.left !== null && term.right !== null ? `  ${plain(term.left, 3)} × ${plain(term.right, 3)}` : "";
    return { name: `${term.label}${factors}`, value: Math.abs(term.value) > MASKED ? Math.sign(term.value) : term.value, said: plain(term.value), open: opens };
  });
  if (found.n_rest) bars.push({ name: `${found.n_rest} others`, value: found.rest, said: plain(found.rest), open: undefined });
  return html`<h4>terms, largest first${found.n_rest ? `, of ${found.terms.length + found.n_rest}` : ""}</h4>
    <${Bars} bars=${bars} name="terms of the sum" say=${(/** @type {number} */ value) => bars.find((/** @type {any} */ bar) => bar.value === value)?.said ?? plain(value)} />
    <p class="sum">their sum <b>${plain(found.sum, 6)}</b></p>`;
}

/**
 * The place of an operand in a matrix of the block: its row, and its column if it is a single number.
 * @param {{name: string, index: string}} operand
 * @param {any[]} arrays
 * @returns {[number, number | null] | null}
 */
function placeOf({ name, index }, arrays) {
  if (!arrays.some((array) => array.name === name)) return null;
  const numbers = /^\[(\d+), (\d+|:)\]$/.exec(index);
  return numbers && [Number(numbers[1]), numbers[2] === ":" ? null : Number(numbers[2])];
}

/** @param {number} value @param {number} [digits] */
function plain(value, digits = 4) {
  return Math.abs(value) > MASKED ? `${value < 0 ? "−" : ""}masked` : value < 0 ? signed(value, digits) : number(value, digits);
}
