// The part of a large matrix that is shown, with buttons to its other parts.
import { html } from "../core/html.js";
import { thousands } from "../core/words.js";

/**
 * @param {object} props
 * @param {string} props.name the matrix's name
 * @param {{rows: number[], columns: number[], size: [number, number]}} props.array the part
 * @param {string} props.rows what the rows are
 * @param {string} props.columns
 * @param {boolean} props.busy
 * @param {string} props.error
 * @param {(row: number, column: number) => void} props.go shows the part around a place
 */
export function PagedIn({ name, array, rows, columns, busy, error, go }) {
  const [row, column] = [middle(array.rows), middle(array.columns)];
  const steps = /** @type {const} */ ([["rows", rows, array.rows, array.size[0]], ["columns", columns, array.columns, array.size[1]]]);
  return html`<div class=${busy ? "paged is-busy" : "paged"} role="group" aria-label=${`the part of ${name} that is shown`}>
    ${steps.map(([axis, words, places, n]) => {
      const to = (/** @type {number} */ place) => (axis === "rows" ? go(place, column) : go(row, place));
      const [first, last] = [places[0], places[places.length - 1]];
      if (places.length === n) return html`<small key=${axis}>${thousands(n)} ${words}</small>`;
      return html`<small key=${axis}>
        <button type="button" aria-label=${`earlier ${axis} of ${name}`} disabled=${first === 0} onClick=${() => to(Math.max(0, first - places.length + half(places)))}>‹</button>
        <button type="button" aria-label=${`later ${axis} of ${name}`} disabled=${last === n - 1} onClick=${() => to(Math.min(n - 1, last + 1 + half(places)))}>›</button>
        ${words} ${thousands(first)} to ${thousands(last)} of ${thousands(n)}</small>`;
    })}
    ${error && html`<small class="error" role="alert">${error}</small>`}
  </div>`;
}

/** @param {number[]} places */
function half(places) {
  return places.length >> 1;
}

/** The place around which this part was requested. @param {number[]} places */
function middle(places) {
  return places[half(places)];
}
