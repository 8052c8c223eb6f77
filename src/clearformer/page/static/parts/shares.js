// A signed amount for each token of a text, as bars above and below a line.
import { html } from "../core/html.js";
import { signed, visible } from "../core/words.js";

/**
 * @typedef {object} Share
 * @property {string} token
 * @property {number | null} value null if it is unknown
 * @property {string} [words] further words on the token
 * @property {boolean} [chosen]
 * @property {() => void} [open]
 */

/** @param {{shares: Share[], most: number, name: string}} props `most` is the amount whose bar is longest */
export function Shares({ shares, most, name }) {
  return html`<ol class="shares-strip" aria-label=${name}>
    ${shares.map(({ token, value, words = "", chosen, open }, i) => {
      const height = `${(50 * Math.abs(value ?? 0)) / (most || 1)}%`;
      const said = value === null ? "–" : `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;
      const place = (value ?? 0) < 0 ? { top: "50%", height } : { bottom: "50%", height };
      const bar = html`<span>${value !== null && html`<i class=${value < 0 ? "is-negative" : "is-positive"} style=${place}></i>`}</span><code>${visible(token)}</code><small>${said}</small>`;
      const title = `${value === null ? "unknown" : signed(value)}${words && `; ${words}`}`;
      return html`<li key=${i} class=${chosen ? "is-chosen" : ""}>${open ? html`<button type="button" title=${title} onClick=${open}>${bar}</button>` : html`<div title=${title}>${bar}</div>`}</li>`;
    })}
  </ol>`;
}
