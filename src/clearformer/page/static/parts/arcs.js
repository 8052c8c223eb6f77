// The attention of one query, drawn as curves over the text, as wide as the weights.
import { html, useEffect, useRef } from "../core/html.js";
import { number, visible } from "../core/words.js";

const LETTER = 7.9; // width of a letter, in pixels
const AROUND = 6; // pixels between two tokens
const LONGEST = 14; // letters of a token
const WHOLE = 96; // tokens; a longer text is reduced to the tokens that are read, and their neighbours
const WIDEST = 8; // width of a curve of weight 1, in pixels
const LINE = 24;
const HIGHEST = 112;
const BETWEEN = 88; // pixels between the two texts of a cross-attention

/** @typedef {{at: number, text: string, x: number}} Word a token and the x of its middle */

/**
 * @param {object} props
 * @param {string[]} props.tokens the queries' tokens
 * @param {string[]} props.read the keys' tokens
 * @param {number} props.query
 * @param {number[]} props.keys the positions to draw curves to, largest weight first
 * @param {ArrayLike<number>} props.weights of all keys
 * @param {boolean} props.across whether the keys are of another text
 */
export function Arcs({ tokens, read, query, keys, weights, across }) {
  const below = placed(read, across ? keys : [query, ...keys]);
  const above = across ? placed(tokens, [query]) : below;
  const from = wordAt(above.words, query);
  const place = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  useEffect(() => {
    if (place.current) place.current.scrollLeft = from.x - place.current.clientWidth * (across ? 0.5 : 0.8);
  }, [query, tokens]);
  const top = across ? LINE : HIGHEST;
  const [width, height] = [Math.max(above.width, below.width), top + (across ? BETWEEN : 0) + LINE];
  const words = `${visible(tokens[query])} at ${query} reads ${keys.map((key) => `${visible(read[key])} at ${key} with weight ${number(weights[key], 3)}`).join(", ")}`;
  return html`<div class="arcs" ref=${place} tabindex="0" role="region" aria-label="what the query reads, as curves over the text">
    <svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${words}>
      ${[...keys].reverse().map((key) => {
        const to = wordAt(below.words, key);
        const d = across ? strand(from.x, to.x, top) : arc(from.x, to.x, top);
        return html`<path key=${key} d=${d} stroke-width=${Math.max(1, WIDEST * weights[key])} opacity=${0.35 + 0.65 * weights[key]}><title>${`${visible(read[key])} at ${key}: ${number(weights[key], 3)}`}</title></path>`;
      })}
      ${across && html`<${Line} words=${above.words} y=${LINE - 8} query=${query} keys=${[]} />`}
      <${Line} words=${below.words} y=${height - 8} query=${across ? -1 : query} keys=${keys} />
    </svg></div>`;
}

/** @param {{words: Word[], y: number, query: number, keys: number[]}} props */
function Line({ words, y, query, keys }) {
  return words.map(({ at, text, x }) => html`<text key=${`${y} ${at}`} x=${x} y=${y} class=${at === query ? "is-query" : keys.includes(at) ? "is-key" : ""}>${text}</text>`);
}

/** Place tokens on a line; of a long text, only those near the chosen ones. @param {string[]} tokens @param {number[]} chosen @returns {{words: Word[], width: number}} */
function placed(tokens, chosen) {
  const near = new Set(chosen.flatMap((at) => [at - 1, at, at + 1]));
  /** @type {Word[]} */
  const words = [];
  let [x, before] = [AROUND / 2, -1];
  tokens.forEach((token, at) => {
    if (tokens.length > WHOLE && !near.has(at)) return;
    if (at !== before + 1) x = push(words, { at: at - 0.5, text: "…", x });
    x = push(words, { at, text: short(visible(token)), x });
    before = at;
  });
  if (before < tokens.length - 1) x = push(words, { at: before + 0.5, text: "…", x });
  return { words, width: Math.ceil(x) };
}

/** Append a word whose left edge is x; returns the left edge of the next. @param {Word[]} words @param {Word} word */
function push(words, { at, text, x }) {
  const wide = LETTER * text.length + AROUND;
  words.push({ at, text, x: x + wide / 2 });
  return x + wide;
}

/** @param {string} text */
function short(text) {
  return text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text;
}

/** @param {Word[]} words @param {number} at */
function wordAt(words, at) {
  return /** @type {Word} */ (words.find((word) => word.at === at));
}

/** The path of a curve over one text, higher for longer distances; a loop from a token to itself. @param {number} x0 @param {number} x1 @param {number} y */
function arc(x0, x1, y) {
  if (x0 === x1) return `M${x0 - 4} ${y}C${x0 - 16} ${y - 28} ${x0 + 16} ${y - 28} ${x0 + 4} ${y}`;
  const high = y - Math.min(HIGHEST * 1.25, 24 + 0.35 * Math.abs(x1 - x0));
  return `M${x0} ${y}C${x0} ${high} ${x1} ${high} ${x1} ${y}`;
}

/** The path of a curve from one text down to another. @param {number} x0 @param {number} x1 @param {number} y */
function strand(x0, x1, y) {
  const half = y + BETWEEN / 2;
  return `M${x0} ${y}C${x0} ${half} ${x1} ${half} ${x1} ${y + BETWEEN}`;
}
