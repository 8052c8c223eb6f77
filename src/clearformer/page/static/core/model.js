// A view's model on the page: what anywidget's is in a notebook. Who answers it is its source.
import { Refused } from "../sources/source.js";

/** A view's model: traits that can be listened to, and answers that replace those of earlier questions. */
export class PageModel {
  /**
   * @param {string} name the view's
   * @param {(selection: any) => void} onSelect what happens to a selection that the view saves
   * @param {import("../sources/source.js").Source} source
   */
  constructor(name, onSelect, source) {
    this.name = name;
    this.onSelect = onSelect;
    this.source = source;
    /** @type {Record<string, any>} */
    this.values = { selection: null, found: null, answer: null, error: "", busy: false, kept: "", fixed: source.fixed };
    /** @type {Map<string, Set<() => void>>} */
    this.listeners = new Map();
    /** @type {AbortController | null} */
    this.asking = null;
  }

  /** The model of another view of the same selection, for what is opened beside this one. @param {string} name */
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

  /** Look at what is selected, as far as the source has it. @param {any} chosen */
  look(chosen) {
    const { selection, kept } = this.source.within(this.name, chosen);
    this.set("selection", selection);
    this.set("kept", kept);
  }

  /**
   * Ask for the view of a selection; an earlier question that is still open is dropped.
   * @param {any} selection
   */
  async ask(selection) {
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    this.set("busy", true);
    try {
      const answer = await this.source.ask(this.name, selection, asking.signal);
      if (!asking.signal.aborted) this.take(answer);
    } catch (error) {
      if (!asking.signal.aborted) this.set("error", error instanceof Refused ? error.message : this.source.gone);
    }
    if (this.asking === asking) this.set("busy", false);
  }

  /** @param {any} answer */
  take(answer) {
    this.set("answer", answer);
    this.set("found", answer.found);
    this.set("error", "");
  }

  /** Whether the source draws pictures. */
  get draws() {
    return this.source.picture !== null;
  }

  /** The view as a picture. @param {string} kind @returns {Promise<Blob>} */
  async picture(kind) {
    if (!this.source.picture) throw new Refused("nothing can draw here");
    return this.source.picture(this.name, kind, this.get("selection"));
  }

  /** A run's metrics as they come, until the answer is called. @param {string} run @param {(news: {lines: any[], restarted: boolean}) => void} tell */
  follow(run, tell) {
    return this.source.follow(run, tell);
  }
}
