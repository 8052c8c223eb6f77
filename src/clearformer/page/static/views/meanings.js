// One word's vectors across texts, in the plane that holds most of their variance.
import { html, isFixed, select, useTrait, view } from "../core/html.js";
import { signed } from "../core/words.js";
import { TextField } from "../parts/fields.js";

const LARGE = [880, 440];
const SMALL = [360, 300];
const EDGE = 40;
const LINE = 14;
const LETTER = 6.6; // width of a letter of a label, in pixels
const LABELLED = 24; // places with text labels; if there are more, each has only its number

/** @param {{model: any, found: any, selection: any}} props */
function Meanings({ model, found, selection }) {
  const answer = useTrait(model, "answer");
  return html`<div class="meanings">
    <fieldset class="settings" disabled=${isFixed(model, "contexts")} aria-label="the word and its texts">
      <${TextField} label="Word" name="word" value=${selection.word} placeholder="the most frequent" onChange=${(/** @type {string} */ word) => select(model, { word })} />
      <${TextField} label="Texts that contain it, one per line (empty: the text above)" name="contexts" lines=${5} value=${selection.contexts} onChange=${(/** @type {string} */ contexts) => select(model, { contexts })} />
    </fieldset>
    ${found && html`<p class="sum"><code>${found.word}</code> at ${found.places.length} ${found.places.length === 1 ? "place" : "places"}, after layer ${found.layer}: the plane holds <b>${percent(found.shares[0] + found.shares[1])}</b> of the variance
        <span class="badge">across ${percent(found.shares[0])}, up ${percent(found.shares[1])}</span></p>
      <${Plane} found=${found} />
      <ol class="places">${found.places.map((/** @type {any} */ place, /** @type {number} */ i) => html`<li key=${i}><b>${i + 1}</b> <span>${place.before}<mark>${place.word}</mark>${place.behind}</span> <small>${signed(found.points.data[2 * i], 2)}, ${signed(found.points.data[2 * i + 1], 2)}</small></li>`)}</ol>
      ${answer.notes.map((/** @type {string} */ note) => html`<p key=${note} class="note">${note}</p>`)}`}
  </div>`;
}

/** The points, with the same scale on both axes, so that distances can be compared. @param {{found: any}} props */
function Plane({ found }) {
  const narrow = matchMedia("(max-width: 600px)").matches;
  const [wide, high] = narrow ? SMALL : LARGE;
  const { data } = found.points;
  const xs = found.places.map((/** @type {any} */ _, /** @type {number} */ i) => data[2 * i]);
  const ys = found.places.map((/** @type {any} */ _, /** @type {number} */ i) => data[2 * i + 1]);
  const scale = Math.min(spread(xs, wide), spread(ys, high));
  const [midX, midY] = [wide / 2 - middle(xs) * scale, high / 2 + middle(ys) * scale]; // where 0 is
  const points = found.places.map((/** @type {any} */ place, /** @type {number} */ i) => {
    const words = narrow || xs.length > LABELLED ? String(i + 1) : `${i + 1} ${place.before.slice(-12)}${place.word}${place.behind.slice(0, 12)}`;
    return { x: midX + xs[i] * scale, y: midY - ys[i] * scale, words, whole: `${place.before}${place.word}${place.behind}` };
  });
  return html`<svg class="plane" viewBox=${`0 0 ${wide} ${high}`} role="img" aria-label=${`${found.places.length} points in a plane; they are listed below`}>
    <path d=${`M${midX} 0V${high}M0 ${midY}H${wide}`} />
    ${labelled(points, wide).map(({ x, y, words, whole, left, right, base }, i) => html`<g key=${i}><title>${whole}</title><circle cx=${x} cy=${y} r="5" /><text x=${left} y=${base} textLength=${right - left} lengthAdjust="spacingAndGlyphs">${words}</text></g>`)}
  </svg>`;
}

/** Place the points' labels so that they do not overlap, as far as there is room. @param {{x: number, y: number, words: string, whole: string}[]} points @param {number} wide */
function labelled(points, wide) {
  /** @type {{left: number, right: number, base: number}[]} */
  const taken = [];
  return points.map((point) => {
    const long = LETTER * point.words.length;
    const left = point.x + 8 + long < wide ? point.x + 8 : point.x - 8 - long;
    const place = { left, right: left + long, base: point.y + 4 };
    const isTaken = () => taken.some((other) => place.left < other.right && other.left < place.right && Math.abs(place.base - other.base) < LINE);
    for (let tries = 0; tries < points.length && isTaken(); tries++) place.base -= LINE;
    taken.push(place);
    return { ...point, ...place };
  });
}

/** The pixels per unit that fit all values into `room`. @param {number[]} values @param {number} room */
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
