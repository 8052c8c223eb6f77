// A view's model on the page, like anywidget's model in a notebook. Its source answers its requests.
import { Refused } from "../sources/source.js";

/** A view's model: observable traits, and answers of which only those to the latest request count. */
export class PageModel {
  /**
   * @param {string} name the view's name
   * @param {(selection: any) => void} onSelect called with a selection that the view saves
   * @param {import("../sources/source.js").Source} source
   */
  constructor(name, onSelect, source) {
    this.name = name;
    this.onSelect = onSelect;
    this.source = source;
    /** @type {Record<string, any>} */
    this.values = { selection: null, asked: null, found: null, both: null, answer: null, error: "", busy: false, progress: "", ended: false, kept: "", fixed: source.fixed };
    /** @type {Map<string, Set<() => void>>} */
    this.listeners = new Map();
    /** @type {AbortController | null} */
    this.asking = null;
  }

  /** A new model of another view with the same source, to be shown inside this one. @param {string} name */
  beside(name) {
    return new PageModel(name, this.onSelect, this.source);
  }

  /** @param {string} name */
  get(name) {
    return this.values[name];
  }

  /** @param {string} name @param {any} value */
  set(name, value) {
    if (this.values[name] === value) return;
    this.values[name] = value;
    for (const listener of [...(this.listeners.get(`change:${name}`) ?? [])]) listener();
  }

  save_changes() {
    this.onSelect(this.values.selection);
  }

  /** @param {string} event @param {() => void} listener */
  on(event, listener) {
    if (!this.listeners.has(event)) this.listeners.set(event, new Set());
    this.listeners.get(event)?.add(listener);
  }

  /** @param {string} event @param {() => void} listener */
  off(event, listener) {
    this.listeners.get(event)?.delete(listener);
  }

  /** Set the selection, as far as the source can follow it. @param {any} chosen */
  look(chosen) {
    const { selection, kept } = this.source.within(this.name, chosen);
    this.set("selection", selection);
    this.set("kept", kept);
  }

  /**
   * Request the view of a selection; drops an earlier request that is still open.
   * @param {any} selection
   */
  async ask(selection) {
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    this.set("busy", true);
    this.set("ended", false);
    const stop = followProgress(this.source, this.name, (words) => this.set("progress", words));
    try {
      const tell = (/** @type {any} */ part) => asking.signal.aborted || this.take(part, selection);
      const answer = await this.source.ask(this.name, selection, asking.signal, tell);
      if (!asking.signal.aborted) this.take(answer, selection);
    } catch (error) {
      if (!asking.signal.aborted) {
        this.set("ended", this.get("ended") || !(error instanceof Refused) || error.ended);
        this.set("error", error instanceof Refused ? error.message : this.source.gone);
      }
    }
    stop();
    if (this.asking === asking) this.set("busy", false);
  }

  /** Drop a request that is still open: its answer is no longer wanted. */
  drop() {
    this.asking?.abort();
    this.asking = null;
    this.set("busy", false);
  }

  /** @param {any} answer @param {any} asked the selection that it is of */
  take(answer, asked) {
    this.set("asked", asked);
    const isDifference = answer.found !== null && typeof answer.found === "object" && "changes" in answer.found;
    this.set("answer", answer);
    this.set("both", isDifference ? answer.found : null);
    this.set("found", isDifference ? answer.found.changes : answer.found);
    this.set("error", "");
  }

  /** Cancel the computation for this view. */
  end() {
    this.set("ended", true);
    return this.source.end(this.name);
  }

  /** Whether the source can draw pictures. */
  get draws() {
    return this.source.picture !== null;
  }

  /** What is shown, as a table. @param {AbortSignal} [signal] */
  table(signal) {
    return this.source.table(this.name, this.get("asked"), signal);
  }

  /** What is shown, as a picture. @param {string} kind @returns {Promise<Blob>} */
  async picture(kind) {
    if (!this.source.picture) throw new Refused("pictures cannot be drawn here");
    return this.source.picture(this.name, kind, this.get("asked"));
  }
}

const LOOK_EVERY = 400; // milliseconds

/**
 * Report the progress of a long computation until the returned function is called; quick ones report nothing.
 * @param {import("../sources/source.js").Source} source
 * @param {string} name
 * @param {(words: string) => void} tell
 */
export function followProgress(source, name, tell) {
  const look = async () => {
    const told = await source.progress(name);
    if (timer && told) tell(told.total ? `${told.done} of ${told.total}` : "queued");
  };
  let timer = setInterval(look, LOOK_EVERY);
  return () => {
    clearInterval(timer);
    timer = 0;
    tell("");
  };
}
