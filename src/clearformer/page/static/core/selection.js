// The selection, which lives in the page's address: a link shows what its sender saw, and "back" goes back.

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
 * The selection of an address, over that which the page begins with.
 * @param {string} search as location.search has it
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
 * The address of a selection: only what differs from the beginning, so that addresses stay short.
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
 * The selection cut to what a view uses, as one string: it changes when the view must be asked for again.
 * @param {Selection} selection
 * @param {string[]} uses
 */
export function keyOf(selection, uses) {
  return JSON.stringify(uses.map((name) => /** @type {any} */ (selection)[name]));
}
