// The sources that answer a page's requests: its server, an exported file, or a notebook's kernel.

/** @typedef {{heads: string[], rows: string[][], words: number}} Table */

/**
 * @typedef {object} Source
 * @property {(view: string, selection: any, signal: AbortSignal, tell: (part: any) => void) => Promise<any>} ask requests a view's answer, and passes intermediate parts to `tell`; rejects with Refused if the request is refused
 * @property {(view: string, selection: any, signal?: AbortSignal) => Promise<Table>} table requests a view as a table
 * @property {((view: string, kind: string, selection: any) => Promise<Blob>) | null} picture requests a view as a picture; null if the source cannot draw
 * @property {(run: string, tell: (news: {lines: any[], restarted: boolean, steps: number[] | null}) => void) => () => void} follow passes a run's metrics to `tell` as they come, until the returned function is called
 * @property {(name: string) => Promise<{done: number, total: number} | null>} progress the progress of a long computation; null for quick ones
 * @property {(name: string) => Promise<void>} end cancels a long computation
 * @property {(selection: any) => Promise<number[]>} replay has the weights after a step computed again; all steps of the run that can be shown for that reason
 * @property {(view: string, selection: any) => {selection: any, kept: string}} within the selection that a view can show, and in words what it does not follow
 * @property {boolean} hasOthers whether a page has other views beside one, to go to
 * @property {string[]} fixed fields that cannot be changed
 * @property {string} gone the message to show if the source does not answer at all
 */

/** A request was refused; the message says why in one line. */
export class Refused extends Error {
  /** @param {string} message @param {boolean} [ended] whether it was only ended, by a newer one, and may be made again */
  constructor(message, ended = false) {
    super(message);
    this.ended = ended;
  }
}

/** The `within` of a source that follows every selection. @param {string} _ @param {any} selection */
export function follows(_, selection) {
  return { selection, kept: "" };
}

/** The methods for long computations, of a source that has none. */
export const quick = {
  /** @returns {Promise<{done: number, total: number} | null>} */
  progress: async () => null,
  end: async () => {},
  /** @returns {Promise<number[]>} */
  replay: async () => {
    throw new Refused("a step can be replayed only on a live page: clearformer look");
  },
};
