// Who answers a page's questions: its server, a file that it was exported to, or a notebook's kernel.

/** @typedef {{heads: string[], rows: string[][], words: number}} Table */

/**
 * @typedef {object} Source
 * @property {(view: string, selection: any, signal: AbortSignal, tell: (part: any) => void) => Promise<any>} ask a view's answer, and tells what there is of it before; a refusal is a Refused
 * @property {(view: string, selection: any, signal?: AbortSignal) => Promise<Table>} table a view as a table of words
 * @property {((view: string, kind: string, selection: any) => Promise<Blob>) | null} picture null where nothing can draw
 * @property {(run: string, tell: (news: {lines: any[], restarted: boolean, steps: number[] | null}) => void) => () => void} follow tells a run's metrics as they come, until it is called again
 * @property {(name: string) => Promise<{done: number, total: number} | null>} progress how far what takes long is; null of what is quick
 * @property {(name: string) => Promise<void>} end ends what takes long
 * @property {(selection: any) => Promise<void>} replay has the weights after a step made again
 * @property {(view: string, selection: any) => {selection: any, kept: string}} within what a view shows of a selection, and in words what it cannot follow
 * @property {string[]} fixed fields that cannot be selected anew
 * @property {string} gone what is said where it does not answer at all
 */

/** A question that was refused, and why, in one line. */
export class Refused extends Error {}

/** A view follows the whole selection. @param {string} _ @param {any} selection */
export function follows(_, selection) {
  return { selection, kept: "" };
}

/** What a source that follows nothing long has in place of it. */
export const quick = {
  /** @returns {Promise<{done: number, total: number} | null>} */
  progress: async () => null,
  end: async () => {},
  replay: async () => {
    throw new Refused("a step can be replayed only on a live page: clearformer look");
  },
};
