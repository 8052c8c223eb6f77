// A matrix as colours on a canvas, with an ARIA grid of one tab stop: arrows, Home, End and the Page keys move the
// chosen cell, Enter opens it, and a polite live region announces its value.
import { colour, ink, painter, useDark } from "../core/colours.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../core/html.js";
import { isolated, number } from "../core/words.js";

const MAP = 560; // pixels of a side at most by itself, which leaves room for the names of columns (`.heatmap-body`)
const LARGEST_SIDE = 8192; // pixels of a canvas that every browser supports
const LABEL_CELL = 13; // least height of a cell for a readable row name, in pixels
const UPRIGHT_CELL = 32; // least width of a cell for an unrotated column name, in pixels
const FONT = "11px ui-monospace, monospace";

/** @typedef {import("../core/wire.js").NDArray} NDArray */

/**
 * @param {object} props
 * @param {NDArray} props.values [rows, columns]
 * @param {string} props.name the matrix's name for screen readers
 * @param {string[]} [props.rows] names of the rows
 * @param {string[]} [props.columns]
 * @param {[number, number]} [props.limits] of the colours
 * @param {boolean} [props.signed] whether the colours are centred at zero
 * @param {[number, number]} [props.chosen] the row and column of the chosen cell
 * @param {(row: number, column: number) => void} [props.onChoose]
 * @param {(row: number, column: number) => void} [props.onOpen] on Enter or a double click
 * @param {(row: number, column: number) => void} [props.onClick] if a click does more than choose
 * @param {number} [props.band] a row to highlight
 * @param {(row: number, column: number) => string} [props.say] a cell in words, without its value
 * @param {string[][]} [props.texts] the texts in the cells
 * @param {number} [props.cell] height of a cell in pixels
 * @param {number} [props.wide] width of a cell in pixels, if it is not square
 */
export function HeatMap(props) {
  const { values, name, rows = [], columns = [], signed = false, chosen = [0, 0], onChoose, onOpen, texts } = props;
  const [nRows, nColumns] = values.shape;
  const height = fitted(props.cell ?? cellFor(Math.max(nRows, nColumns)), nRows);
  const width = fitted(props.wide ?? height, nColumns);
  const limits = useMemo(() => props.limits ?? range(values, signed), [values, signed, props.limits?.[0], props.limits?.[1]]);
  const canvas = /** @type {{current: HTMLCanvasElement | null}} */ (useRef(null));
  const cell = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  const body = /** @type {{current: HTMLElement | null}} */ (useRef(null));
  const [hovered, setHovered] = useState(/** @type {[number, number] | null} */ (null));
  const dark = useDark();
  const row = Math.min(chosen[0], nRows - 1);
  const column = Math.min(chosen[1], nColumns - 1);

  useLayoutEffect(() => {
    if (canvas.current) paint(canvas.current, { values, width, height, limits, signed, texts });
  }, [values, width, height, limits[0], limits[1], signed, texts, dark]);
  useEffect(() => {
    if (body.current && cell.current) showWithin(body.current, cell.current);
  }, [row, column, height, width]);

  /** @param {number} r @param {number} c */
  const say = (r, c) => {
    const where = props.say ? props.say(r, c) : `row ${rows[r] ?? r}, column ${columns[c] ?? c}`;
    return `${where}: ${texts ? `${isolated(texts[r][c])} ` : ""}${number(values.data[r * nColumns + c])}`;
  };
  /** @param {MouseEvent} event @returns {[number, number]} */
  const under = (event) => {
    const box = /** @type {HTMLElement} */ (event.currentTarget).getBoundingClientRect();
    const r = Math.floor(((event.clientY - box.top) / box.height) * nRows);
    const c = Math.floor(((event.clientX - box.left) / box.width) * nColumns);
    return [Math.min(nRows - 1, Math.max(0, r)), Math.min(nColumns - 1, Math.max(0, c))];
  };
  /** @param {MouseEvent} event */
  const choose = (event) => {
    const [r, c] = under(event);
    (props.onClick ?? onChoose)?.(r, c);
  };
  /** @param {MouseEvent} event */
  const open = (event) => {
    const [r, c] = under(event);
    onOpen?.(r, c);
  };
  /** @param {KeyboardEvent} event */
  const move = (event) => {
    if (event.key === "Enter") {
      onOpen?.(row, column);
      return;
    }
    const to = moved(event, row, column, nRows, nColumns);
    if (!to) return;
    event.preventDefault();
    onChoose?.(to[0], to[1]);
  };
  const isThere = hovered && hovered[0] < nRows && hovered[1] < nColumns; // the matrix may have become smaller
  const shown = isThere ? hovered : /** @type {[number, number]} */ ([row, column]);
  const place = { top: `${(100 * row) / nRows}%`, left: `${(100 * column) / nColumns}%`, height: `${100 / nRows}%`, width: `${100 / nColumns}%` };
  return html`
    <div class="heatmap">
      <div class="heatmap-body" ref=${body}>
        ${height >= LABEL_CELL && rows.length > 0 && html`<${RowNames} names=${rows} height=${height} chosen=${row} />`}
        <div class="heatmap-cells" role="grid" aria-label=${name} aria-rowcount=${nRows} aria-colcount=${nColumns}
          onMouseMove=${(/** @type {MouseEvent} */ event) => setHovered(under(event))} onMouseLeave=${() => setHovered(null)}
          onClick=${choose}
          onDblClick=${open}>
          <canvas ref=${canvas} style=${{ width: `${nColumns * width}px`, height: `${nRows * height}px` }}></canvas>
          ${props.band !== undefined && html`<i class="band" style=${{ top: `${(100 * props.band) / nRows}%`, height: `${100 / nRows}%` }}></i>`}
          <div role="row" aria-rowindex=${row + 1}>
            <span class="chosen" role="gridcell" tabindex="0" ref=${cell} aria-colindex=${column + 1} style=${place}
              aria-label=${say(row, column)} onKeyDown=${move}></span>
          </div>
        </div>
        ${width >= LABEL_CELL && columns.length > 0 && html`<${ColumnNames} names=${columns} width=${width} chosen=${column} />`}
      </div>
      <p class="reading" aria-live="polite">${say(shown[0], shown[1])}</p>
    </div>
  `;
}

/** @param {{names: string[], height: number, chosen: number}} props */
function RowNames({ names, height, chosen }) {
  return html`<div class="row-names" aria-hidden="true">
    ${names.map((name, i) => html`<span key=${i} class=${i === chosen ? "is-chosen" : ""} style=${{ height: `${height}px`, lineHeight: `${height}px` }}>${name}</span>`)}
  </div>`;
}

/** @param {{names: string[], width: number, chosen: number}} props */
function ColumnNames({ names, width, chosen }) {
  const upright = width >= UPRIGHT_CELL;
  return html`<div class=${upright ? "column-names is-upright" : "column-names"} aria-hidden="true">
    ${names.map((name, i) => html`<span key=${i} class=${i === chosen ? "is-chosen" : ""} style=${{ width: `${width}px` }}>${name}</span>`)}
  </div>`;
}

/**
 * A matrix as a small picture, without a grid.
 * @param {{values: NDArray, size: number, limits?: [number, number], signed?: boolean}} props
 */
export function Thumbnail({ values, size, limits = [0, 1], signed = false }) {
  const dark = useDark();
  const canvas = /** @type {{current: HTMLCanvasElement | null}} */ (useRef(null));
  useLayoutEffect(() => {
    if (canvas.current) paint(canvas.current, { values, width: 1, height: 1, limits, signed });
  }, [values, limits[0], limits[1], signed, dark]);
  return html`<canvas class="thumbnail" ref=${canvas} style=${{ width: `${size}px`, height: `${size}px` }}></canvas>`;
}

/**
 * The cell that a key moves to; null for other keys.
 * @param {KeyboardEvent} event
 * @param {number} row
 * @param {number} column
 * @param {number} nRows
 * @param {number} nColumns
 * @returns {[number, number] | null}
 */
function moved(event, row, column, nRows, nColumns) {
  const page = 10;
  /** @type {Record<string, [number, number]>} */
  const to = {
    ArrowUp: [row - 1, column],
    ArrowDown: [row + 1, column],
    ArrowLeft: [row, column - 1],
    ArrowRight: [row, column + 1],
    Home: [event.ctrlKey ? 0 : row, 0],
    End: [event.ctrlKey ? nRows - 1 : row, nColumns - 1],
    PageUp: [row - page, column],
    PageDown: [row + page, column],
  };
  const found = to[event.key];
  if (!found) return null;
  return [Math.min(nRows - 1, Math.max(0, found[0])), Math.min(nColumns - 1, Math.max(0, found[1]))];
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {{values: NDArray, width: number, height: number, limits: [number, number], signed: boolean, texts?: string[][]}} drawing
 */
function paint(canvas, { values, width, height, limits, signed, texts }) {
  const [rows, columns] = values.shape;
  const pixels = texts ? Math.min(window.devicePixelRatio || 1, 2) : 1;
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  if (!texts) {
    canvas.width = columns;
    canvas.height = rows;
    const image = context.createImageData(columns, rows);
    const put = painter(limits[0], limits[1], signed);
    for (let i = 0; i < rows * columns; i++) put(image.data, i, values.data[i]);
    context.putImageData(image, 0, 0);
    return;
  }
  canvas.width = columns * width * pixels;
  canvas.height = rows * height * pixels;
  context.scale(pixels, pixels);
  context.font = FONT;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++) {
      const fill = colour(values.data[r * columns + c], limits[0], limits[1], signed);
      context.fillStyle = `rgb(${fill.join()})`;
      context.fillRect(c * width, r * height, width, height);
      context.fillStyle = ink(fill);
      context.fillText(fittingText(context, texts[r][c], width - 4), c * width + width / 2, r * height + height / 2);
    }
  }
}

/** Scroll a box, but not the page, until an element in it is visible. @param {HTMLElement} box @param {HTMLElement} element */
function showWithin(box, element) {
  const outer = box.getBoundingClientRect();
  const inner = element.getBoundingClientRect();
  if (inner.right > outer.right) box.scrollLeft += inner.right - outer.right + inner.width;
  if (inner.left < outer.left) box.scrollLeft -= outer.left - inner.left + inner.width;
  if (inner.bottom > outer.bottom) box.scrollTop += inner.bottom - outer.bottom + inner.height;
  if (inner.top < outer.top) box.scrollTop -= outer.top - inner.top + inner.height;
}

/** @param {CanvasRenderingContext2D} context @param {string} text @param {number} width */
function fittingText(context, text, width) {
  let shown = text;
  while (shown.length > 1 && context.measureText(shown).width > width) shown = shown.slice(0, -1);
  return shown.length < text.length ? `${shown.slice(0, -1)}…` : shown;
}

/** @param {number} n rows or columns, whichever are more */
function cellFor(n) {
  return Math.max(1, Math.min(22, Math.floor(MAP / n)));
}

/** @param {number} size @param {number} n */
function fitted(size, n) {
  return Math.max(1, Math.min(size, Math.floor(LARGEST_SIDE / n)));
}

/** @param {NDArray} values @param {boolean} signed @returns {[number, number]} */
function range(values, signed) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values.data) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  const largest = Math.max(Math.abs(low), Math.abs(high)) || 1;
  return signed ? [-largest, largest] : [Math.min(0, low), high];
}
