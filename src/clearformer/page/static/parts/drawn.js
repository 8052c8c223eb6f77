// Generated tokens, each coloured by its surprise.
import { html } from "../core/html.js";
import { number, visible } from "../core/words.js";

/**
 * @typedef {object} DrawnToken
 * @property {string} token
 * @property {number} id
 * @property {number} probability
 * @property {number} drawn_with
 * @property {number} rank
 * @property {number} surprise
 * @property {number} entropy
 */

/** @param {DrawnToken} each */
export function saying(each) {
  return `${visible(each.token)}: probability ${number(each.probability)}, drawn with ${number(each.drawn_with)}, rank ${each.rank}, surprise ${number(each.surprise, 2)} of ${number(each.entropy, 2)} nats expected`;
}

/**
 * @param {object} props
 * @param {DrawnToken[]} props.tokens
 * @param {number} props.most the surprise of the darkest colour
 * @param {(place: number) => void} [props.onChoose] makes each token a button
 */
export function Drawn({ tokens, most, onChoose }) {
  const share = (/** @type {DrawnToken} */ each) => ({ "--share": Math.min(1, (each.surprise ?? most) / most) });
  return html`<div class="drawn">
    ${tokens.map((each, i) => {
      const words = saying(each);
      return onChoose
        ? html`<button key=${i} type="button" title=${words} aria-label=${words} style=${share(each)} onClick=${() => onChoose(i)}>${visible(each.token)}</button>`
        : html`<span key=${i} title=${words} style=${share(each)}>${visible(each.token)}</span>`;
    })}
  </div>`;
}

/** The largest surprise of some continuations. @param {{tokens: DrawnToken[]}[]} continuations */
export function largest(continuations) {
  return Math.max(1, ...continuations.flatMap((each) => each.tokens.map((token) => token.surprise ?? 1)));
}

/** @param {{most: number}} props */
export function SurpriseLegend({ most }) {
  return html`<p class="legend of-drawn"><i></i> stronger: more surprised, strongest at ${number(most, 1)} nats; point at a token for its rank and probability</p>`;
}
