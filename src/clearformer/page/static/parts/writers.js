// The contributions of the model's parts as bars, largest first; a head's bar leads to the score that explains it.
import { html, select, useState } from "../core/html.js";
import { Bars } from "./bars.js";
import { goTo } from "./going.js";

export const HEAD = /^(encoder_|decoder_)?blocks\.(\d+)\.(attn|cross_attn)\.hook_z$/;

/** @typedef {{name: string, layer: number | null, head: number | null, value: number}} Part */

/**
 * @param {object} props
 * @param {Part[]} props.parts
 * @param {string} props.name what they are parts of
 * @param {number} props.atFirst the number of parts shown at first
 * @param {(part: Part) => boolean} [props.isChosen]
 * @param {(part: Part) => void} props.open called with a head
 */
export function Writers({ parts, name, atFirst, isChosen = () => false, open }) {
  const [all, setAll] = useState(false);
  const largest = [...parts].sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const shown = all ? largest : largest.slice(0, atFirst);
  const bars = shown.map((part) => ({ name: label(part), value: part.value, chosen: isChosen(part), open: HEAD.test(part.name) ? () => open(part) : undefined }));
  return html`<${Bars} bars=${bars} name=${name} />
    ${shown.length < largest.length && html`<button type="button" onClick=${() => setAll(true)}>show ${largest.length - shown.length} more</button>`}`;
}

/** The fields that select a head. @param {Part} part */
export function headOf(part) {
  const [, stack, , sublayer] = /** @type {RegExpMatchArray} */ (part.name.match(HEAD));
  return { layer: /** @type {number} */ (part.layer), head: /** @type {number} */ (part.head), part: stack === "encoder_" ? "encoder" : sublayer };
}

/**
 * Show why a head reads where it does: the score of the key with the largest weight; of two runs, in the first, whose score is shown.
 * @param {any} model
 * @param {Part} part a head
 * @param {number} position of the query
 */
export async function explain(model, part, position) {
  const pattern = model.beside("pattern");
  const chosen = { ...headOf(part), position };
  const before = model.get("selection");
  await pattern.ask({ ...before, ...chosen });
  if (model.get("selection") !== before) return; // something else was chosen meanwhile
  const found = pattern.get("both")?.first ?? pattern.get("found");
  select(model, found ? { ...chosen, key: mostRead(found.reads.data) } : chosen);
  goTo("score");
}

/** @param {ArrayLike<number>} weights */
function mostRead(weights) {
  return Array.from(weights).reduce((best, weight, i) => (weight > weights[best] ? i : best), 0);
}

/** A short name. @param {{name: string, head: number | null}} part */
export function label(part) {
  const name = part.name.replace("blocks.", "").replace(".hook_", " ").replace("hook_", "");
  return part.head === null ? name : name.endsWith(" z") ? `${name.replace(" z", "").replace(".attn", " head").replace(".cross_attn", " cross head")} ${part.head}` : `${name} ${part.head}`;
}
