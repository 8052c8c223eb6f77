// One word's vectors across texts, in the plane that shows most of how they differ.
import { html, isFixed, select, useTrait, view } from "../core/html.js";
import { signed } from "../core/words.js";
import { TextField } from "../parts/fields.js";

const [WIDE, HIGH, EDGE] = [880, 440, 32];
const LETTER = 6.6; // pixels of a letter of a label
const LABELLED = 24; // places; of more, each has its number alone

/** @param {{model: any, found: any, selection: any}} props */
function Meanings({ model, found, selection }) {
  const answer = useTrait(model, "answer");
  return html`<div class="meanings">
    <fieldset class="settings" disabled=${isFixed(model, "contexts")} aria-label="the word and its texts">
      <${TextField} label="Word" name="word" value=${selection.word} placeholder="the most frequent" onChange=${(/** @type {string} */ word) => select(model, { word })} />
      <${TextField} label="Texts that it stands in, one a line (the text above, where empty)" name="contexts" lines=${5} value=${selection.contexts} onChange=${(/** @type {string} */ contexts) => select(model, { contexts })} />
    </fieldset>
    ${found && html`<p class="sum"><code>${found.word}</code> at ${found.places.length} ${found.places.length === 1 ? "place" : "places"}, after layer ${found.layer}: the plane holds <b>${percent(found.shares[0] + found.shares[1])}</b> of the variance
        <span class="badge">across ${percent(found.shares[0])}, upwards ${percent(found.shares[1])}</span></p>
      <${Plane} found=${found} />
      <ol class="places">${found.places.map((/** @type {any} */ place, /** @type {number} */ i) => html`<li key=${i}><b>${i + 1}</b> <span>${place.before}<mark>${place.word}</mark>${place.behind}</span> <small>${signed(found.points.data[2 * i], 2)}, ${signed(found.points.data[2 * i + 1], 2)}</small></li>`)}</ol>
      ${answer.notes.map((/** @type {string} */ note) => html`<p key=${note} class="note">${note}</p>`)}`}
  </div>`;
}

/** The points, both axes in one scale so that distances can be compared. @param {{found: any}} props */
function Plane({ found }) {
  const { data } = found.points;
  const xs = found.places.map((/** @type {any} */ _, /** @type {number} */ i) => data[2 * i]);
  const ys = found.places.map((/** @type {any} */ _, /** @type {number} */ i) => data[2 * i + 1]);
  const scale = Math.min(spread(xs, WIDE), spread(ys, HIGH));
  const across = (/** @type {number} */ x) => WIDE / 2 + (x - middle(xs)) * scale;
  const up = (/** @type {number} */ y) => HIGH / 2 - (y - middle(ys)) * scale;
  return html`<svg class="plane" viewBox=${`0 0 ${WIDE} ${HIGH}`} role="img" aria-label=${`${found.places.length} points in a plane; they are listed below`}>
    <path d=${`M${across(0)} 0V${HIGH}M0 ${up(0)}H${WIDE}`} />
    ${found.places.map((/** @type {any} */ place, /** @type {number} */ i) => {
      const [x, y] = [across(xs[i]), up(ys[i])];
      const words = xs.length > LABELLED ? String(i + 1) : `${i + 1} ${place.before.slice(-12)}${place.word}${place.behind.slice(0, 12)}`;
      const fits = x + 8 + LETTER * words.length < WIDE;
      return html`<g key=${i}><title>${place.before}${place.word}${place.behind}</title><circle cx=${x} cy=${y} r="5" /><text x=${fits ? x + 8 : x - 8} y=${y - 6} text-anchor=${fits ? "start" : "end"}>${words}</text></g>`;
    })}
  </svg>`;
}

/** Pixels for one unit, so that all values fit into so many. @param {number[]} values @param {number} room */
function spread(values, room) {
  const wide = Math.max(...values) - Math.min(...values);
  return (room - 2 * EDGE) / (wide > 1e-9 ? wide : 1);
}

/** @param {number[]} values */
function middle(values) {
  return (Math.max(...values) + Math.min(...values)) / 2;
}

/** @param {number} share */
function percent(share) {
  return `${(100 * share).toFixed(1)} %`;
}

export default view(Meanings, { hasControls: true });
