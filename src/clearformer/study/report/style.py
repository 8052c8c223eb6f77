"""The style sheet of the HTML report."""

from clearformer.study.figures.drawing import COLOURS, GRID, INK, LABEL_COLOURS, MUTED, PAPER

DARK_COLOURS = ("#4ba3dc", "#f08a4b", "#35c49b", "#e3a1c6", "#f0b840", "#86cdf2", "#a5adb5")


def _declared(names: dict[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in names.items())


def _series(name: str, colours: tuple[str, ...]) -> dict[str, str]:
    return {f"{name}-{i}": colour for i, colour in enumerate(colours)}


LIGHT = _declared(
    {
        **{"paper": PAPER, "ink": INK, "muted": MUTED, "grid": GRID, "page": "#f6f7f9", "link": "#005a8e"},
        **{"good": "#00684b", "bad": "#a83a00", "slip": "#7a5400", "warn": "#fff4dc"},
        **_series("series", COLOURS),
        **_series("label", LABEL_COLOURS),
    }
)
DARK = _declared(
    {
        **{"paper": "#171c22", "ink": "#e6eaee", "muted": "#a3adb8", "grid": "#2d353e", "page": "#0f1317"},
        **{"link": "#7cc4f2", "good": "#4fd1a8", "bad": "#ff9a6b", "slip": "#f0c25a", "warn": "#33290f"},
        **_series("series", DARK_COLOURS),
        **_series("label", DARK_COLOURS),
    }
)

STYLE = f"""
:root {{ color-scheme: light dark; {LIGHT} }}
@media (prefers-color-scheme: dark) {{ :root {{ {DARK} }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", Arial, sans-serif; }}
main {{ max-width: 60rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }}
h1 {{ font-size: 1.75rem; line-height: 1.2; margin: 1rem 0; text-wrap: balance; }}
h2 {{ font-size: 1.35rem; line-height: 1.3; margin: 4rem 0 .25rem; padding-top: 1.5rem;
  border-top: 1px solid var(--grid); text-wrap: balance; }}
h3 {{ font-size: 1rem; margin: 2rem 0 .5rem; }}
h2:not([id]) {{ font-size: 1rem; margin: 2rem 0 .5rem; padding: 0; border: 0; }}
p, ul {{ max-width: 44rem; margin: .75rem 0; overflow-wrap: anywhere; }}
ul {{ padding-left: 1.25rem; columns: 20rem; }}
li {{ break-inside: avoid; }}
a {{ color: var(--link); }}
.small {{ color: var(--muted); font-size: .875rem; margin: .25rem 0; }}
.warning {{ background: var(--warn); padding: .6rem .9rem; border-left: 4px solid var(--slip); }}
.wide {{ overflow-x: auto; margin: 1.5rem 0; }}
.wide:focus-visible, a:focus-visible {{ outline: 2px solid var(--link); outline-offset: 2px; }}
table {{ min-width: 42rem; border-collapse: collapse; font-size: .875rem; line-height: 1.4;
  font-variant-numeric: tabular-nums; }}
caption {{ text-align: left; font-weight: 600; font-size: .95rem; padding: 0 0 .5rem; }}
th, td {{ padding: .4rem .8rem .4rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--grid); }}
thead th {{ color: var(--muted); font-weight: 500; vertical-align: bottom; border-bottom-color: var(--muted); }}
tbody th {{ font-weight: 500; min-width: 8.5rem; }}
.number {{ text-align: right; white-space: nowrap; }}
thead .number, .long {{ white-space: normal; }}
.verdict {{ font-weight: 600; }}
.verdict + small {{ display: block; max-width: 17rem; color: var(--muted); }}
.good {{ color: var(--good); }} .bad {{ color: var(--bad); }} .slip {{ color: var(--slip); }}
.open {{ color: var(--muted); }}
figure {{ margin: 2rem 0; }}
.picture {{ margin: 0; background: var(--paper); border: 1px solid var(--grid); border-radius: 6px; }}
.picture svg {{ display: block; width: 100%; min-width: 36rem; height: auto; }}
figcaption {{ color: var(--muted); font-size: .875rem; margin-top: .4rem; }}
.samples .title {{ font-weight: 600; margin: 0 0 .5rem; }}
.samples > div {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr)); gap: 1rem; }}
.samples > div > div {{ min-width: 0; }}
.samples .label {{ font-size: .875rem; color: var(--muted); margin: 0 0 .25rem; }}
pre {{ background: var(--paper); border: 1px solid var(--grid); border-radius: 6px; padding: .7rem .9rem;
  margin: 0; font: .8125rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; }}
@media print {{ body {{ background: none; }} figure, table {{ break-inside: avoid; }} }}
"""
