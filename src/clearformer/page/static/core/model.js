// The page's own models: what anywidget is in a notebook, the server is here.
import { decode } from "./wire.js";

/** A view's model: traits that can be listened to, and answers that replace those of earlier questions. */
export class PageModel {
  /**
   * @param {string} name the view's
   * @param {(selection: any) => void} onSelect what happens to a selection that the view saves
   */
  constructor(name, onSelect) {
    this.name = name;
    this.onSelect = onSelect;
    /** @type {Record<string, any>} */
    this.values = { selection: null, found: null, answer: null, error: "", busy: false };
    /** @type {Map<string, Set<() => void>>} */
    this.listeners = new Map();
    /** @type {AbortController | null} */
    this.asking = null;
  }

  /** The model of another view of the same selection, for what is opened beside this one. @param {string} name */
  beside(name) {
    return new PageModel(name, this.onSelect);
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

  /**
   * Ask the server for the view of a selection; an earlier question that is still open is dropped.
   * @param {any} selection
   */
  async ask(selection) {
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    this.set("busy", true);
    try {
      const response = await post(`api/view/${this.name}`, selection, asking.signal);
      if (!response.ok) {
        this.set("error", await complaint(response));
      } else {
        const answer = decode(await response.arrayBuffer());
        this.set("answer", answer);
        this.set("found", answer.found);
        this.set("error", "");
      }
    } catch (error) {
      if (!asking.signal.aborted) this.set("error", "the server does not answer: is `clearformer look` still running?");
    }
    if (this.asking === asking) this.set("busy", false);
  }
}

/**
 * @param {string} path
 * @param {any} body
 * @param {AbortSignal} [signal]
 */
export function post(path, body, signal) {
  const headers = { "content-type": "application/json" };
  return fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

/**
 * What a refused question was answered with, in one line.
 * @param {Response} response
 */
export async function complaint(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error ?? text;
  } catch {
    return text.trim() || `the server answered ${response.status}`;
  }
}
