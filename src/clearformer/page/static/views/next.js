// The whole vocabulary by its probability at the chosen position and temperature.
import { html, select, useState, view } from "../core/html.js";
import { number, visible } from "../core/words.js";
import { Bars } from "../parts/bars.js";

const AT_FIRST = 20;

/** @param {{model: any, found: any, selection: any}} props */
function Next({ model, found, selection }) {
  const [most, setMost] = useState(AT_FIRST);
  const n = found.tokens.length;
  const bars = found.tokens.slice(0, most).map((/** @type {string} */ token, /** @type {number} */ i) => ({
    name: `${i + 1}. ${visible(token)}`,
    value: found.probabilities.data[i],
    chosen: token === selection.target,
    open: () => select(model, { target: token }),
  }));
  return html`<div class="next">
    <p>after <code>${visible(found.token)}</code> at ${found.position}, temperature ${found.temperatures[0]}</p>
    <${Bars} bars=${bars} name="likeliest tokens" say=${(/** @type {number} */ value) => number(value)} />
    ${most < n && html`<button type="button" onClick=${() => setMost(Math.min(n, most * 4))}>show ${Math.min(n, most * 4) - most} more of ${n}</button>`}
  </div>`;
}

export default view(Next);
