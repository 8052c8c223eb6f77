// One block by its numbers: every matrix inside it, in the order of computation, next to the inspector.
import { html, select, useEffect, useMemo, useState, useTrait, view } from "../core/html.js";
import { visible } from "../core/words.js";
import { HeatMap } from "../parts/heatmap.js";
import { Inspector } from "../parts/inspector.js";
import { PagedIn } from "../parts/paged.js";

const HIGHEST = 160; // height of a matrix in pixels
const WIDEST = 256;
const MASKED = 1e30; // larger absolute values come from the mask
const HUES = { q: "query", q_rot: "query", phi_q: "query", k: "key", k_rot: "key", phi_k: "key", v: "value", logits: "loss", uncapped: "loss" };
const STAGES = { embedding: "Embeddings", attention: "Attention", "cross-attention": "Cross-attention", "feed-forward": "Feed-forward network", output: "Output" };
const PARTS = { encoder: "encoder", attn: "decoder, itself", cross_attn: "decoder, the source" };

/** @typedef {{name: string, symbol: string, title: string, equation: string, stage: string, rows: number[], columns: number[], row_axis: string, column_axis: string, column_labels: string[], size: [number, number], values: import("../core/wire.js").NDArray}} NamedArray */

/** @param {{model: any, found: any, both: any, selection: any}} props */
function Block({ model, found, both, selection }) {
  /** @type {NamedArray[]} */
  const arrays = found.arrays;
  const stages = [...new Set(arrays.map((array) => array.stage))];
  const shown = inLayer(selection.matrix, found.layer);
  const inspected = arrays.some((array) => array.name === shown) ? { ...selection, matrix: inLayer(selection.matrix, selection.layer) } : null;
  const open = (/** @type {string} */ name, /** @type {number} */ row, /** @type {number} */ column) => select(model, { matrix: name, row, column });
  return html`<div class=${inspected ? "by-numbers is-inspected" : "by-numbers"}>
    <div class="way">
      ${found.source.length > 0 && html`<${Parts} model=${model} chosen=${found.part} />`}
      ${stages.map((stage) => html`<section class="stage" key=${stage} aria-label=${title(stage, found)}>
        <h3>${title(stage, found)}</h3>
        <div class="matrices">${arrays.filter((array) => array.stage === stage).map((array) => html`<${Matrix} key=${array.name} model=${model} selection=${selection} whole=${array} found=${found} both=${both} inspected=${inspected} open=${open} />`)}</div>
      </section>`)}
    </div>
    ${inspected && html`<${Inspector} model=${model} selection=${inspected} arrays=${arrays} open=${open} />`}
  </div>`;
}

/** The same place in another layer. @param {string} name @param {number} layer */
function inLayer(name, layer) {
  return name.replace(/blocks\.\d+/, `blocks.${layer}`);
}

/** @param {string} stage @param {any} found */
function title(stage, found) {
  const own = stage === (found.part === "cross_attn" ? "cross-attention" : "attention");
  return `${/** @type {any} */ (STAGES)[stage]}${own ? ` of layer ${found.layer}, head ${found.head}` : ""}`;
}

/** @param {{model: any, chosen: string}} props */
function Parts({ model, chosen }) {
  return html`<p class="parts" role="group" aria-label="which attention">${Object.entries(PARTS).map(([part, words]) => html`<button key=${part} type="button" aria-pressed=${part === chosen} onClick=${() => select(model, { part })}>${words}</button>`)}</p>`;
}

/**
 * A matrix, or a part of it that fits a screen; other parts are requested.
 * @param {{model: any, selection: any, whole: NamedArray, found: any, both: any, inspected: any, open: (name: string, row: number, column: number) => void}} props
 */
function Matrix({ model, selection, whole, found, both, inspected, open }) {
  const [array, { go, busy, error }] = useParts(model, selection, whole, found, inspected);
  const { name, symbol, rows, columns } = array;
  const band = array.row_axis === "text" ? 0 : rows.indexOf(found.position);
  const [moved, setMoved] = useState(/** @type {[number, number] | null} */ (null));
  const values = useMemo(() => readable(array.values), [array.values]);
  const texts = useMemo(() => (array.column_labels.length ? [array.column_labels.map(visible)] : undefined), [array]);
  const own = inspected && inLayer(inspected.matrix, found.layer) === name ? inInspected(array, inspected) : null;
  useEffect(() => setMoved(null), [own?.[0], own?.[1]]);
  const chosen = moved ?? own ?? [Math.max(0, band), 0];
  const words = (/** @type {number} */ r, /** @type {number} */ c) => `${symbol}[${at(rows[r], array.row_axis, found)}, ${array.column_labels.length ? columns[c] : at(columns[c], array.column_axis, found)}]`;
  const opened = (/** @type {number} */ r, /** @type {number} */ c) => {
    setMoved(null);
    open(name, rows[r], columns[c]);
  };
  return html`<figure class=${`matrix hue-${hue(symbol)}${own ? " is-own" : ""}`}>
    <figcaption><code title=${name}>${array.equation}</code><span>${array.title}</span></figcaption>
    <${HeatMap} values=${values} name=${`${symbol}: ${array.title}`} signed=${both || !isShare(symbol)} limits=${isShare(symbol) && !both ? [0, 1] : undefined} ...${sizes(array, texts)}
      texts=${texts} chosen=${chosen} band=${band < 0 || array.row_axis === "text" ? undefined : band} say=${words} onChoose=${(/** @type {number} */ r, /** @type {number} */ c) => setMoved([r, c])} onOpen=${opened} onClick=${opened} />
    ${isPart(whole)
      ? html`<${PagedIn} name=${symbol} array=${array} rows=${plural(array.row_axis, array.size[0])} columns=${plural(array.column_axis, array.size[1])} busy=${busy} error=${error} go=${go} />`
      : html`<small>${rows.length} ${plural(array.row_axis, rows.length)} × ${columns.length} ${plural(array.column_axis, columns.length)}</small>`}
  </figure>`;
}

/** Whether a matrix has more numbers than were sent; of logits, the largest count as all. @param {NamedArray} array */
function isPart({ rows, columns, size, column_labels: labels }) {
  return rows.length < size[0] || (!labels.length && columns.length < size[1]);
}

/**
 * The part of a matrix to show: the one sent with the block, or one requested since.
 * @param {any} model @param {any} selection @param {NamedArray} whole @param {any} found @param {any} inspected
 * @returns {[NamedArray, {go: (row: number, column: number) => void, busy: boolean, error: string}]}
 */
function useParts(model, selection, whole, found, inspected) {
  const part = useMemo(() => model.beside("matrix"), [model, whole]); // parts of another text's or head's matrix are not of this one
  const other = useTrait(part, "found");
  const [busy, error] = [useTrait(part, "busy"), useTrait(part, "error")];
  const [asked, setAsked] = useState(/** @type {NamedArray | null} */ (null)); // the matrix for which a part was requested
  const go = (/** @type {number} */ row, /** @type {number} */ column) => {
    setAsked(whole);
    part.ask({ ...selection, layer: found.layer, head: found.head, matrix: whole.name, row, column });
  };
  const own = inspected && inLayer(inspected.matrix, found.layer) === whole.name ? inspected : null;
  useEffect(() => {
    if (own && isPart(whole) && !inInspected(whole, own)) go(own.row, own.column);
  }, [whole, own?.row, own?.column]);
  const isHere = asked === whole && other;
  return [isHere ? other.array : whole, { go, busy: busy && asked === whole, error: asked === whole ? error : "" }];
}

/** The place of the inspected number in the part shown of its matrix. @param {NamedArray} array @param {any} inspected @returns {[number, number] | null} */
function inInspected(array, inspected) {
  const row = array.rows.indexOf(inspected.row < 0 ? array.rows.length + inspected.row : inspected.row);
  const column = array.columns.indexOf(inspected.column);
  return row < 0 || column < 0 ? null : [row, column];
}

/** @param {NamedArray} array @param {string[][] | undefined} texts */
function sizes(array, texts) {
  if (texts) return { cell: 24, wide: 56 };
  const cell = Math.max(1, Math.min(12, Math.floor(HIGHEST / array.rows.length)));
  if (array.columns.length === 1) return { cell, wide: 16 };
  const wide = Math.max(1, Math.min(cell, Math.floor(WIDEST / array.columns.length)));
  return { cell, wide: array.column_axis === "dimensions" ? Math.max(wide, Math.min(8, Math.floor(WIDEST / array.columns.length))) : wide };
}

/** Replace the mask's values by NaN, so that the colours are scaled to the others. @param {import("../core/wire.js").NDArray} values */
function readable({ data, shape }) {
  return { data: data.map((value) => (Math.abs(value) > MASKED ? NaN : value)), shape };
}

/** @param {number} index @param {string} axis @param {any} found */
function at(index, axis, found) {
  const tokens = axis === "tokens" ? found.tokens : axis === "source" ? found.source : null;
  return tokens ? `${index} “${visible(tokens[index])}”` : String(index);
}

/** @param {string} symbol */
function isShare(symbol) {
  return symbol === "pattern" || symbol === "may_read";
}

/** @param {string} symbol */
function hue(symbol) {
  return /** @type {any} */ (HUES)[symbol] ?? (/^(embed|pos_embed|resid|final)/.test(symbol) ? "stream" : "plain");
}

/** @param {string} axis @param {number} n */
function plural(axis, n) {
  const words = { tokens: "positions", source: "source positions", text: "text", dimensions: "dimensions", vocabulary: "likeliest tokens", classes: "classes" };
  return n === 1 && axis !== "text" ? /** @type {any} */ (words)[axis].replace(/s$/, "") : /** @type {any} */ (words)[axis];
}

export default view(Block);
