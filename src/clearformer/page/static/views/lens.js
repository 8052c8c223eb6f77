// The prediction of each layer at each position, as if it were the last.
import { html, select, useRef, useState, view } from "../core/html.js";
import { isolated, number, signed, visible } from "../core/words.js";
import { HeatMap } from "../parts/heatmap.js";

const WIDE = 64;

/** @param {{model: any, found: any, both: any, selection: any}} props */
function LogitLens({ model, found, both }) {
  const layers = [...found.layers].reverse();
  const told = both ? signed : number;
  const [row, setRow] = useState(0);
  const picture = useRef(/** @type {any} */ (null));
  // Another position or target does not change the picture, so it is not painted again.
  if (!picture.current || !isSame(picture.current.found, found)) picture.current = { found, texts: upsideDown(found.best), values: turned(found.probabilities) };
  const { texts, values } = picture.current;
  const columns = found.of_text ? ["the text"] : found.tokens.slice(found.first, found.first + values.shape[1]).map(visible);
  const choose = (/** @type {number} */ r, /** @type {number} */ c) => {
    setRow(r);
    if (!found.of_text) select(model, { position: found.first + c });
  };
  const names = layers.map((layer) => layer.name.replace("blocks.", "").replace(".hook_resid_", " "));
  return html`<div class="logit-lens">
    <${HeatMap} values=${values} name="likeliest token by layer and position" rows=${names} columns=${columns} signed=${Boolean(both)} limits=${both ? undefined : [0, 1]}
      texts=${texts} cell=${24} wide=${both ? 1.5 * WIDE : WIDE} chosen=${[row, found.of_text ? 0 : found.position - found.first]} onChoose=${choose}
      say=${(/** @type {number} */ r, /** @type {number} */ c) => (found.of_text ? `${names[r]} of the text` : `${names[r]} at ${found.first + c} ${isolated(columns[c])}`)} />
    <div class="wide" tabindex="0" role="region" aria-label="ranks by layer"><table class="ranks"><caption>${found.token ? `at position ${found.position}` : "of the text"}, ${both ? "change for the target" : "the target"} <code>${visible(found.target)}</code></caption>
      <thead><tr><th scope="col">layer</th>${both ? html`<th scope="col">likeliest, first</th><th scope="col">second</th>` : html`<th scope="col">likeliest</th>`}<th scope="col" class="is-number">probability</th><th scope="col" class="is-number">rank</th><th scope="col" class="is-number" title="of the layer’s distribution over all outputs">entropy, nats</th><th scope="col" class="is-number" title="KL(last ‖ layer): how far the layer’s distribution is from that of the last">KL to the last, nats</th></tr></thead>
      <tbody>${layers.map((layer) => html`<tr key=${layer.name}><td>${layer.name}</td>${(both ? [both.first, both.second] : [found]).map((each, i) => html`<td key=${i}><${Likeliest} layer=${each.layers.find((/** @type {any} */ other) => other.name === layer.name)} /></td>`)}<td class="is-number">${told(layer.probability, 4)}</td><td class="is-number">${both && layer.rank ? signed(layer.rank, 0) : layer.rank}</td><td class="is-number">${told(layer.entropy, 3)}</td><td class="is-number">${told(layer.kl, 3)}</td></tr>`)}</tbody></table></div>
  </div>`;
}

/** @param {{layer: any}} props */
function Likeliest({ layer }) {
  return layer.top.slice(0, 3).map((/** @type {any} */ guess) => html`<code>${visible(guess.token)}</code> ${number(guess.probability, 2)} `);
}

/** @param {string[][]} best */
function upsideDown(best) {
  return [...best].reverse().map((row) => row.map(visible));
}

/** Reverse the order of the rows. @param {import("../core/wire.js").NDArray} values @returns {import("../core/wire.js").NDArray} */
function turned({ data, shape: [n, width] }) {
  const upside = new Float64Array(n * width);
  for (let r = 0; r < n; r++) upside.set(data.subarray((n - 1 - r) * width, (n - r) * width), r * width);
  return { data: upside, shape: [n, width] };
}

/** Whether two answers give the same picture. @param {any} one @param {any} other */
function isSame(one, other) {
  const [a, b] = [one.probabilities, other.probabilities];
  return one.first === other.first && a.shape.join() === b.shape.join() && a.data.every((/** @type {number} */ value, /** @type {number} */ i) => value === b.data[i]) && one.best.join() === other.best.join();
}

export default view(LogitLens);
