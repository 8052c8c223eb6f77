// The tree of a beam search: one column per step, with the path of the best text highlighted.
import { html, isFixed, select, useTrait, view } from "../core/html.js";
import { number, visible } from "../core/words.js";
import { NumberField } from "../parts/fields.js";

const WIDE = 148;
const HIGH = 28;
const BOX = WIDE - 24;
const [LETTER, SMALL] = [7.3, 6.7]; // widths of a letter of a token and of a score, in pixels

/** @param {{model: any, found: any, selection: any}} props */
function Beams({ model, found, selection }) {
  const drawn = useTrait(model, "asked")?.drawn; // which the texts continue; the selection may be ahead of them
  return html`<div class="desk">
    <fieldset class="settings" disabled=${isFixed(model, "beams")} aria-label="the search">
      <${NumberField} label="Beams" name="beams" value=${selection.beams} low=${1} high=${12} onChange=${(/** @type {number} */ beams) => select(model, { beams })} />
      <${NumberField} label="Max tokens" name="beam_tokens" value=${selection.new_tokens} low=${1} high=${256} onChange=${(/** @type {number} */ new_tokens) => select(model, { new_tokens })} />
    </fieldset>
    ${found && html`<${Tree} model=${model} found=${found} drawn=${drawn} steps=${isGrowing(found) ? selection.new_tokens : 0} />`}
    ${found && html`<${Texts} model=${model} found=${found} drawn=${drawn} />`}
  </div>`;
}

/** Whether the search still goes on. @param {any} found */
function isGrowing(found) {
  return found.found.length === 0;
}

/** The tree, with room for steps to come. @param {{model: any, found: any, drawn: number[], steps: number}} props */
function Tree({ model, found, drawn, steps }) {
  const places = placed(found.nodes);
  const wide = WIDE * (1 + Math.max(steps, ...places.map(([x]) => x)));
  const high = HIGH * (1 + Math.max(0, ...places.map(([, y]) => y)));
  const from = (/** @type {any} */ node) => (node.parent === null ? [0, 0] : places[node.parent]);
  return html`<div class="beam-tree" role="region" tabindex="0" aria-label="the beam tree, step by step from left to right">
    <svg width=${wide} height=${high} viewBox=${`0 0 ${wide} ${high}`} role="group" aria-label=${`${found.nodes.length} texts held by ${found.beams} beams`}>
      ${found.nodes.map((/** @type {any} */ node, /** @type {number} */ i) => html`<path key=${`path ${i}`} class=${node.on_best_path ? "is-best" : ""} d=${curve(from(node), places[i])} />`)}
      <g><${Box} x=${0} y=${0} words=${visible(found.token)} title="the text so far ends with this token" /></g>
      ${found.nodes.map((/** @type {any} */ node, /** @type {number} */ i) => html`<${Node} key=${i} node=${node} place=${places[i]} open=${isFixed(model, "drawn") ? null : () => select(model, { drawn: [...drawn, ...pathTo(found.nodes, i)] })} />`)}
    </svg>
  </div>`;
}

/** @param {{node: any, place: number[], open: (() => void) | null}} props */
function Node({ node, place, open }) {
  const words = `${visible(node.token)}, step ${node.step}: log P ${number(node.logprob, 3)}, score ${number(node.score, 3)}${node.ended ? ", ended" : ""}${node.found === null ? "" : `, found as number ${node.found + 1}`}`;
  const key = (/** @type {KeyboardEvent} */ event) => {
    if (!open || (event.key !== "Enter" && event.key !== " ")) return;
    event.preventDefault(); // a space would scroll the page
    open();
  };
  return html`<g role=${open ? "button" : "img"} tabindex=${open ? 0 : undefined} aria-label=${words} class=${[node.on_best_path && "is-best", node.ended && "is-ended"].filter(Boolean).join(" ")} onClick=${open} onKeyDown=${key}>
    <${Box} x=${place[0]} y=${place[1]} words=${visible(node.token)} score=${number(node.score, 2)} title=${words} />
  </g>`;
}

/** @param {{x: number, y: number, words: string, score?: string, title: string}} props */
function Box({ x, y, words, score = "", title }) {
  const room = Math.floor((BOX - 20 - SMALL * score.length) / LETTER);
  const short = words.length > room ? `${words.slice(0, room - 1)}…` : words;
  return html`<title>${title}</title>
    <rect x=${x * WIDE + 1} y=${y * HIGH + 3} width=${BOX} height=${HIGH - 6} rx="4" />
    <text x=${x * WIDE + 7} y=${y * HIGH + 18}>${short}</text>
    <text class="score" x=${(x + 1) * WIDE - 28} y=${y * HIGH + 18}>${score}</text>`;
}

/** The column and row of each node: its step, and its index within the step. @param {any[]} nodes @returns {number[][]} */
function placed(nodes) {
  /** @type {Map<number, number>} */
  const rows = new Map();
  return nodes.map((node) => {
    const row = rows.get(node.step) ?? 0;
    rows.set(node.step, row + 1);
    return [node.step, row];
  });
}

/** @param {number[]} from @param {number[]} to */
function curve([fromX, fromY], [toX, toY]) {
  const [x0, y0, x1, y1] = [(fromX + 1) * WIDE - 23, (fromY + 0.5) * HIGH, toX * WIDE + 1, (toY + 0.5) * HIGH];
  return `M${x0} ${y0}C${x0 + 12} ${y0} ${x1 - 12} ${y1} ${x1} ${y1}`;
}

/** The token ids from the root to a node. @param {any[]} nodes @param {number} i */
function pathTo(nodes, i) {
  const ids = [];
  for (let at = /** @type {number | null} */ (i); at !== null; at = nodes[at].parent) ids.unshift(nodes[at].id);
  return ids;
}

/** @param {{model: any, found: any, drawn: number[]}} props */
function Texts({ model, found, drawn }) {
  return html`<table><caption>found texts, best first; score = log-probability / length penalty</caption>
    <thead><tr><th scope="col">text</th><th scope="col" class="is-number">log P</th><th scope="col" class="is-number">score</th><td></td></tr></thead>
    <tbody>${isGrowing(found) && Array.from({ length: found.beams }, (_, i) => html`<tr key=${i} class="is-to-come"><td colspan="3">searching</td><td><button type="button" disabled>continue here</button></td></tr>`)}${found.found.map((/** @type {any} */ each, /** @type {number} */ i) => html`<tr key=${i}><td><code>${visible(each.text)}</code></td><td class="is-number">${number(each.logprob, 3)}</td><td class="is-number">${number(each.score, 3)}</td>
      <td><button type="button" disabled=${isFixed(model, "drawn")} onClick=${() => select(model, { drawn: [...drawn, ...each.tokens] })}>continue here</button></td></tr>`)}</tbody></table>`;
}

export default view(Beams, { hasControls: true });
