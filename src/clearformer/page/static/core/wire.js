// The format of values from the server: JSON, followed by arrays of raw numbers (see wire.py).

/**
 * An array of numbers in rows.
 * @typedef {object} NDArray
 * @property {Float32Array | Float64Array | Int32Array | Uint8Array} data
 * @property {number[]} shape
 */

const TYPES = { float32: Float32Array, float64: Float64Array, int32: Int32Array, uint8: Uint8Array };

/**
 * @param {ArrayBuffer} buffer
 * @returns {any}
 */
export function decode(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const start = Math.ceil((4 + length) / 8) * 8;
  const arrays = head.arrays.map((/** @type {{dtype: keyof TYPES, shape: number[], offset: number}} */ each) => {
    const size = each.shape.reduce((product, n) => product * n, 1);
    return { data: new TYPES[each.dtype](buffer, start + each.offset, size), shape: each.shape };
  });
  return withArrays(head.value, arrays);
}

/**
 * Pass the values of an answer in parts to `tell` as they come; the last one is complete.
 * @param {ReadableStream<Uint8Array>} stream
 * @param {(value: any) => void} tell
 */
export async function decodeParts(stream, tell) {
  const reader = stream.getReader();
  let bytes = new Uint8Array(0); // of an incomplete part
  for (let { value, done } = await reader.read(); !done; { value, done } = await reader.read()) {
    bytes = joined(bytes, /** @type {Uint8Array} */ (value));
    for (let end = endOf(bytes); end <= bytes.length; end = endOf(bytes)) {
      tell(decode(bytes.slice(4, end).buffer));
      bytes = bytes.subarray(end);
    }
  }
}

/** The end of the first part. @param {Uint8Array} bytes */
function endOf(bytes) {
  return bytes.length < 4 ? Infinity : 4 + new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
}

/** @param {Uint8Array} one @param {Uint8Array} other */
function joined(one, other) {
  const both = new Uint8Array(one.length + other.length);
  both.set(one);
  both.set(other, one.length);
  return both;
}

/**
 * @param {any} value
 * @param {NDArray[]} arrays
 * @returns {any}
 */
function withArrays(value, arrays) {
  if (Array.isArray(value)) return value.some((each) => typeof each === "object") ? value.map((each) => withArrays(each, arrays)) : value;
  if (value === null || typeof value !== "object") return value;
  if ("$array" in value) return arrays[value.$array];
  if ("$range" in value) return Array.from({ length: value.$range[1] - value.$range[0] }, (_, i) => value.$range[0] + i);
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, withArrays(each, arrays)]));
}

/**
 * One matrix of a stack.
 * @param {NDArray} array of three dimensions
 * @param {number} index
 * @returns {NDArray}
 */
export function matrixOf(array, index) {
  const [, rows, columns] = array.shape;
  const size = rows * columns;
  return { data: array.data.subarray(index * size, (index + 1) * size), shape: [rows, columns] };
}
