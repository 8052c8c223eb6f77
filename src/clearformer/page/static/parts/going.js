// Navigation between views.

/** Scroll to a view, if the page has it. @param {string} view */
export function goTo(view) {
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  document.getElementById(view)?.scrollIntoView({ behavior: calm ? "auto" : "smooth" });
}
