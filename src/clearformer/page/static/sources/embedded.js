// The source of an exported page: the file itself contains the answers, in data blocks that browsers do not execute.
import { keyOf } from "../core/selection.js";
import { signal } from "../vendor/signals-core.js";
import { decode } from "../core/wire.js";
import { quick, Refused } from "./source.js";

const DENSE = 2; // pixels of a PNG per pixel of its SVG

const FOLLOWED = ["position", "layer", "head", "part", "key", "matrix", "row", "column"]; // fields by which views look something up in their own data

/** @typedef {{run: any, first: any, uses: Record<string, string[]>, answers: {view: string, selection: any, is_drawn: boolean}[], lines: Record<string, any[]>, about: string, python: string}} Index */

/** The value of a block of data. @param {string} id */
export async function block(id) {
  const text = /** @type {HTMLElement} */ (document.getElementById(id)).textContent ?? "";
  const packed = new Blob([Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))]);
  return decode(await new Response(packed.stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer());
}

/** Rasterise a picture. @param {string} svg @returns {Promise<Blob>} */
async function pngOf(svg) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = DENSE * image.width;
  canvas.height = DENSE * image.height;
  /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d")).drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve, reject) => canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Refused("this picture is too large for a PNG: save the SVG")))));
}

export class Embedded {
  /** @param {Index} index */
  constructor(index) {
    this.index = index;
    this.gone = "this file is damaged: the numbers of this view cannot be read";
    this.picture = index.answers.some((answer) => answer.is_drawn) ? this.drawn.bind(this) : null;
    this.progress = quick.progress;
    this.end = quick.end;
    this.replay = quick.replay;
    this.hasOthers = true;
    this.fixed = Object.keys(index.first).filter((field) => !FOLLOWED.includes(field));
    this.refused = signal("");
    /** @type {Map<string, string>} */
    this.blocks = new Map(index.answers.map(({ view, selection }, i) => [this.keyOf(view, selection), `answer-${i}`]));
  }

  /** @param {string} view @param {any} selection */
  keyOf(view, selection) {
    return `${view} ${keyOf(selection, this.index.uses[view])}`;
  }

  /** @param {string} view @param {any} selection */
  async ask(view, selection) {
    const id = this.blocks.get(this.keyOf(view, selection));
    if (id === undefined) throw new Refused(this.without(view, selection));
    const answer = await block(id);
    if (answer.error) throw new Refused(answer.error);
    return answer;
  }

  /** @param {string} view @param {any} selection @returns {Promise<import("./source.js").Table>} */
  async table(view, selection) {
    return (await this.ask(view, selection)).table;
  }

  /** A view's picture, which was drawn when the page was exported. @param {string} view @param {string} kind @param {any} selection */
  async drawn(view, kind, selection) {
    const id = this.blocks.get(this.keyOf(view, selection));
    const answer = id && this.index.answers[Number(id.replace("answer-", ""))];
    if (!answer || !answer.is_drawn) throw new Refused("This view was not drawn when the page was exported.");
    const svg = await block(/** @type {string} */ (id).replace("answer", "picture"));
    return kind === "png" ? pngOf(svg) : new Blob([svg], { type: "image/svg+xml" });
  }

  /** The message if there is no answer. @param {string} view @param {any} selection */
  without(view, selection) {
    const numbers = this.index.answers.filter((each) => each.view === view && each.selection.matrix && each.selection.matrix === selection.matrix);
    const places = numbers.map((each) => `[${each.selection.row}, ${each.selection.column}]`).join(", ");
    return places ? `An exported page explains one number of each matrix: of this one, ${places}.` : "This needs the model, which an exported page does not have.";
  }

  /** @param {string} view @param {any} selection */
  within(view, selection) {
    if (this.blocks.has(this.keyOf(view, selection))) return { selection, kept: "" };
    const { first, uses } = this.index;
    const left = uses[view].filter((field) => JSON.stringify(selection[field]) !== JSON.stringify(first[field]));
    const kept = Object.fromEntries(uses[view].map((field) => [field, first[field]]));
    return { selection: { ...selection, ...kept }, kept: `as exported: ${left.map((field) => `${field} ${first[field]}`).join(", ")}` };
  }

  /** Apply those of the given fields that can change; reports the others in `refused`. @param {any} selection @param {any} fields */
  chosen(selection, fields) {
    const stay = Object.keys(fields).filter((field) => this.fixed.includes(field) && JSON.stringify(fields[field]) !== JSON.stringify(selection[field]));
    this.refused.value = stay.length ? `Another ${stay.join(", ")} needs the model, which an exported page does not have.` : "";
    return { ...selection, ...Object.fromEntries(Object.entries(fields).filter(([field]) => !this.fixed.includes(field))) };
  }

  /** @param {string} run @param {(news: {lines: any[], restarted: boolean, steps: number[] | null}) => void} tell */
  follow(run, tell) {
    tell({ lines: this.index.lines[run] ?? [], restarted: true, steps: this.index.run.steps });
    return () => {};
  }
}
