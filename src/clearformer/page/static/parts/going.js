// Navigation between views. Views are drawn only once they are near, so those above a target grow while one goes to it.

const STILL = 500; // milliseconds without growth or scrolling after which one has arrived
const NEAR = 600; // pixels from the window; a waiting view this near has been asked for
const TAKES_OVER = ["wheel", "touchstart", "pointerdown", "keydown"];

let stop = () => {};

/**
 * Scroll to a view, if the page has it, and keep it in place until nothing above it grows or the user takes over.
 * @param {string} view
 * @param {ScrollBehavior} [behavior]
 */
export function goTo(view, behavior = isCalm() ? "auto" : "smooth") {
  const place = document.getElementById(view);
  if (!place) return;
  dispatchEvent(new Event("leave")); // an enlarged view lies over the one to go to
  stop();
  stop = keepInPlace(place, behavior);
}

function isCalm() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

/** Scroll to an element now and whenever the page grows; returns a function that ends this. @param {HTMLElement} place @param {ScrollBehavior} behavior */
function keepInPlace(place, behavior) {
  const ending = new AbortController();
  const { signal } = ending;
  const end = () => ending.abort();
  let timer = 0;
  const wait = () => {
    clearTimeout(timer);
    timer = setTimeout(() => (hasToCome(place) ? wait() : end()), STILL);
  };
  const sizes = new ResizeObserver(() => {
    place.scrollIntoView({ behavior });
    wait();
  });
  sizes.observe(document.body); // which also reports the present size
  addEventListener("scroll", wait, { signal });
  for (const event of TAKES_OVER) addEventListener(event, end, { signal, capture: true, passive: true }); // capture: not the event that led here
  signal.addEventListener("abort", () => {
    clearTimeout(timer);
    sizes.disconnect();
  });
  return end;
}

/** Whether a view above an element has been asked for and is still waiting. @param {HTMLElement} place */
function hasToCome(place) {
  const isAbove = (/** @type {Element} */ each) => Boolean(each.compareDocumentPosition(place) & Node.DOCUMENT_POSITION_FOLLOWING);
  return [...document.querySelectorAll(".view.is-waiting")].some((each) => isAbove(each) && each.getBoundingClientRect().bottom > -NEAR);
}
