// The selection, stored in the page's address, so that links show what their sender saw, and "back" works.

/**
 * @typedef {object} Selection
 * @property {string} run
 * @property {string} checkpoint
 * @property {string} versus
 * @property {string} versus_checkpoint
 * @property {string} text
 * @property {string | null} output
 * @property {number[]} masked
 * @property {number} position
 * @property {number} layer
 * @property {number} head
 * @property {string} part
 * @property {number} key
 * @property {string | null} target
 * @property {string | null} foil
 * @property {number} temperature
 * @property {number} top_k
 * @property {number} top_p
 * @property {number} min_p
 * @property {number} repetition_penalty
 * @property {number} seed
 * @property {string} method
 * @property {string} word
 * @property {string} contexts
 * @property {string} matrix
 * @property {number} row
 * @property {number} column
 * @property {number[]} drawn
 * @property {number} new_tokens
 * @property {number} num
 * @property {number} beams
 * @property {string[]} edits
 * @property {string | null} donor
 * @property {number} before
 * @property {number} after
 * @property {string} split
 * @property {number} first_row
 * @property {number} n_rows
 * @property {number} sample
 */

/**
 * Read the selection from an address; other fields are those of the page's first selection.
 * @param {string} search `location.search`
 * @param {Selection} first
 * @returns {Selection}
 */
export function fromAddress(search, first) {
  const given = new URLSearchParams(search);
  /** @type {any} */
  const selection = { ...first };
  for (const [name, beginning] of Object.entries(first)) {
    const text = given.get(name);
    if (text === null) continue;
    if (typeof beginning === "number") selection[name] = Number.isFinite(Number(text)) ? Number(text) : beginning;
    else if (Array.isArray(beginning)) selection[name] = text.split(",").filter(Boolean).map((each) => (/^-?\d+$/.test(each) ? Number(each) : each));
    else selection[name] = text;
  }
  return selection;
}

/**
 * The address of a selection: only the fields that differ from the first selection, so that addresses stay short.
 * @param {Selection} selection
 * @param {Selection} first
 */
export function toAddress(selection, first) {
  const said = new URLSearchParams();
  for (const [name, value] of Object.entries(selection)) {
    if (JSON.stringify(value) === JSON.stringify(/** @type {any} */ (first)[name])) continue;
    if (value !== null) said.set(name, String(value));
  }
  const text = said.toString();
  return text ? `?${text}` : location.pathname;
}

/**
 * The fields of a selection that a view uses, as one string, which changes when the view must be requested again.
 * @param {Selection} selection
 * @param {string[]} uses
 */
export function keyOf(selection, uses) {
  return JSON.stringify(uses.map((name) => /** @type {any} */ (selection)[name]));
}
