"""How the pages look: light and dark, on a phone, on paper."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark;
  --page: #ffffff; --ink: #1c2229; --soft: #5c6773; --line: #dfe4e9; --card: #f5f7f9; --good: #1a7f37; --bad: #c62828;
  --main: #2563eb; --rest: #9aa7b4; --fp32: #c2410c; --fp16: #2563eb; --bf16: #0e7490; --int8: #15803d; --fp8: #7e22ce;
  --int4: #a16207; --s1: #c2410c; --s2: #15803d; --s3: #7e22ce; --s4: #0e7490; --s5: #a16207; --s6: #be185d;
  --s7: #475569; }
@media (prefers-color-scheme: dark) { :root {
  --page: #12161b; --ink: #e4e9ee; --soft: #9aa6b2; --line: #2c343d; --card: #1b2128; --good: #4cc26b; --bad: #ff7b72;
  --main: #6aa5ff; --rest: #5d6b79; --fp32: #fb923c; --fp16: #6aa5ff; --bf16: #22d3ee; --int8: #4ade80; --fp8: #c084fc;
  --int4: #facc15; --s1: #fb923c; --s2: #4ade80; --s3: #c084fc; --s4: #22d3ee; --s5: #facc15; --s6: #f472b6;
  --s7: #94a3b8; } }
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; color: var(--ink); background: var(--page);
  max-width: 62rem; margin: 0 auto; padding: 1.25rem 1rem 4rem; overflow-wrap: anywhere; }
h1 { margin: 0; font-size: 1.7rem; line-height: 1.2; } h2 { margin: 0 0 .6rem; font-size: 1.2rem; }
h3 { margin: 1.4rem 0 .3rem; font-size: 1rem; } p { margin: .4rem 0 .8rem; } .soft { color: var(--soft); }
section { margin-top: 2.6rem; padding-top: 1.1rem; border-top: 1px solid var(--line); }
header > p { margin: .3rem 0 1rem; color: var(--soft); }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin-top: 1.2rem; font-size: .9rem; }
a { color: var(--main); text-decoration: none; } a:hover { text-decoration: underline; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(13.5rem, 1fr)); gap: .75rem; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .8rem 1rem; }
.tile h3 { margin: 0; font-size: .8rem; font-weight: 600; color: var(--soft); }
.tile .big { font-size: 1.55rem; font-weight: 650; line-height: 1.3; margin: .1rem 0; }
.tile p { margin: .25rem 0 0; font-size: .875rem; line-height: 1.4; }
.good { color: var(--good); } .bad { color: var(--bad); }
.note { background: var(--card); border-left: 4px solid var(--main); border-radius: .3rem; padding: .2rem 1rem; }
.note.bad { border-left-color: var(--bad); color: inherit; } .note ul { margin: .5rem 0; padding-left: 1.1rem; }
.scroll, pre { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; overflow-wrap: normal; }
th, td { text-align: left; padding: .32rem .7rem .32rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; color: var(--soft); white-space: nowrap; }
td { white-space: nowrap; } td.long { white-space: normal; min-width: 17rem; overflow-wrap: anywhere; }
.n { text-align: right; font-variant-numeric: tabular-nums; }
dl { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: .25rem 1rem; margin: .4rem 0;
  font-size: .9rem; }
dt { color: var(--soft); } dd { margin: 0; min-width: 0; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: .4rem; padding: .7rem .9rem;
  font-size: .85rem; overflow-wrap: normal; }
details { margin: .5rem 0; } summary { cursor: pointer; color: var(--main); padding: .2rem 0; }
.plot { display: block; margin: .4rem 0; overflow: visible; }
.plot text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: var(--ink); }
.plot text.soft { fill: var(--soft); font-size: 11px; }
.plot text.strong { font-weight: 600; font-variant-numeric: tabular-nums; }
.grid, .far { stroke: var(--line); stroke-width: 1; } .far { stroke: var(--ink); }
.bar { fill: var(--main); background: var(--main); } .other { fill: var(--rest); background: var(--rest); }
.stored { fill: none; stroke: var(--rest); } .before { fill: var(--rest); background: var(--rest); }
.surgery { fill: var(--s4); background: var(--s4); } .final { fill: var(--main); background: var(--main); }
.whole { fill: none; stroke: var(--main); } .added { fill: var(--fp32); background: var(--fp32); }
.lost { fill: var(--bad); background: var(--bad); } .keep { fill: var(--bad); background: var(--bad); }
polyline { vector-effect: non-scaling-stroke; stroke-width: 1.75; stroke-linejoin: round; }
.key { display: inline-block; width: .85rem; height: .85rem; border-radius: 2px; margin-right: .4rem;
  vertical-align: -1px; }
.key.whole { height: 3px; background: var(--main); vertical-align: 4px; }
.legend { display: flex; flex-wrap: wrap; gap: .15rem 1.1rem; list-style: none; padding: 0; margin: .5rem 0;
  font-size: .875rem; }
@media print { body { max-width: none; } section, .tile { break-inside: avoid-page; } nav { display: none; }
  .scroll { overflow: visible; } .key { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
""" + "".join(
    f".p-{name} {{ fill: var(--{name}); background: var(--{name}); }}\n"
    for name in ("fp32", "fp16", "bf16", "int8", "fp8", "int4")
) + "".join(
    f".line-{place} {{ fill: none; stroke: var({color}); stroke-dasharray: {dash}; }}"
    f" .mark-{place} {{ fill: var({color}); background: var({color}); }}\n"
    for place, (color, dash) in enumerate(
        [
            ("--main", "none"), ("--s1", "7 3"), ("--s2", "2 3"), ("--s3", "9 3 2 3"), ("--s4", "5 5"),
            ("--s5", "12 4"), ("--s6", "3 6"), ("--s7", "1 4"),
        ]
    )
)  # fmt: skip
