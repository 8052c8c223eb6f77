// Signed amounts as bars from a common zero, largest first.
import { html } from "../core/html.js";
import { signed } from "../core/words.js";

/**
 * @typedef {object} Bar
 * @property {string} name
 * @property {number} value
 * @property {boolean} [chosen]
 * @property {() => void} [open]
 */

/** @param {{bars: Bar[], name: string, say?: (value: number) => string}} props */
export function Bars({ bars, name, say = signed }) {
  const low = Math.min(0, ...bars.map((bar) => bar.value));
  const high = Math.max(0, ...bars.map((bar) => bar.value));
  const span = high - low || 1;
  const zero = (100 * -low) / span;
  return html`<ul class="bars" aria-label=${name}>
    ${bars.map((bar) => {
      const size = (100 * Math.abs(bar.value)) / span;
      const style = { left: `${bar.value < 0 ? zero - size : zero}%`, width: `${size}%` };
      const line = html`<span class="bar-name" title=${bar.name}>${bar.name}</span>
        <span class="bar-track"><i class=${bar.value < 0 ? "is-negative" : "is-positive"} style=${style}></i><b style=${{ left: `${zero}%` }}></b></span>
        <span class="bar-value">${say(bar.value)}</span>`;
      return html`<li key=${bar.name} class=${bar.chosen ? "is-chosen" : ""}>
        ${bar.open ? html`<button type="button" onClick=${bar.open}>${line}</button>` : html`<div>${line}</div>`}
      </li>`;
    })}
  </ul>`;
}
