// One attention score as a sum over the parts that wrote the query's and the key's vectors: why a head reads there.
import { html, select, view } from "../core/html.js";
import { number, signed, tiny, visible } from "../core/words.js";
import { goTo } from "../parts/going.js";
import { Strip } from "../parts/strip.js";
import { explain, label, Writers } from "../parts/writers.js";

const AT_FIRST = 12;
const PAIRS = 8;

/** @param {{model: any, found: any}} props */
function Score({ model, found }) {
  const { query_position: at, key_position: key } = found;
  const [query, read] = [visible(found.query), visible(found.key)];
  const say = (/** @type {number} */ i) => `read with weight ${number(found.weights[i], 3)}`;
  return html`<div class="score">
    <p class="sum">layer ${found.layer}, head ${found.head}${{ cross_attn: ", of the source", encoder: ", encoder" }[/** @type {string} */ (found.attention)]}: <code>${query}</code> at ${at} reads <code>${read}</code> at ${key} with weight <b>${number(found.weight, 3)}</b>, by a score of <b>${signed(found.score)}</b>
      <span class="badge" title="how far the sum of all terms is from the score">|sum − score| = ${tiny(found.error)}</span>
      ${found.bias !== 0 && html`<span class="badge">positions add ${signed(found.bias)}</span>`}</p>
    <${Strip} tokens=${found.read} chosen=${key} name="what the query can read" shares=${found.weights} say=${say} onChoose=${(/** @type {number} */ to) => select(model, { key: to })} />
    <p class="legend"><i></i> stronger: read more; press a token to choose another key</p>
    <div class="two-lists">
      <section><h3>Written to the query’s vector, <code>${query}</code> at ${at}</h3><${Writers} parts=${found.queries} name="shares of the score by who wrote the query" atFirst=${AT_FIRST} open=${(/** @type {any} */ part) => explain(model, part, at)} /></section>
      <section><h3>Written to the key’s vector, <code>${read}</code> at ${key}</h3><${Writers} parts=${found.keys} name="shares of the score by who wrote the key" atFirst=${AT_FIRST} open=${(/** @type {any} */ part) => explain(model, part, key)} /></section>
    </div>
    <${Pairs} found=${found} />
    <p class="note">each side sums to the score${found.bias !== 0 && ", minus what positions add"}; press a head among the writers to see its own score.${model.source.hasOthers && html` <button type="button" onClick=${() => goTo("ledger")}>Back to the residual ledger</button>`}</p>
  </div>`;
}

/** The largest terms, each with the parts that wrote the query and the key. @param {{found: any}} props */
function Pairs({ found }) {
  const terms = found.values.flatMap((/** @type {number[]} */ row, /** @type {number} */ i) => row.map((value, j) => ({ value, query: found.queries[i], key: found.keys[j] })));
  const largest = terms.sort((/** @type {any} */ a, /** @type {any} */ b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, PAIRS);
  return html`<div class="wide" tabindex="0" role="region" aria-label="the largest terms"><table><caption>largest terms, of ${terms.length}</caption>
    <thead><tr><th scope="col">written to the query</th><th scope="col">written to the key</th><th scope="col" class="is-number">adds</th></tr></thead>
    <tbody>${largest.map((/** @type {any} */ term, /** @type {number} */ i) => html`<tr key=${i}><td>${label(term.query)}</td><td>${label(term.key)}</td><td class="is-number">${signed(term.value)}</td></tr>`)}</tbody></table></div>`;
}

export default view(Score);
