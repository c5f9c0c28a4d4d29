# Copyright (c) 2026 The llm_fleet engineers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The look of the report: one sheet, two palettes, no font or picture from elsewhere."""

from __future__ import annotations

__all__ = ["STYLE"]

_LIGHT = """
--paper:#faf9f6;--sheet:#fff;--ink:#1f2326;--soft:#5a6068;--rule:#e3dfd7;--link:#1f5c99;
--good:#1d6b47;--warn:#85560a;--bad:#a62f26;--idle:#656b73;
--weights:#35618e;--kv:#6c9cc6;--recurrent:#4f9a94;--draft:#c8873a;--projector:#a26a99;--adapter:#6f5fa3;
--compute:#8b9a4a;--other:#a9a59c;--free:#efece5;--edge:#d5d0c5;
"""
_DARK = """
--paper:#14171a;--sheet:#1b1f23;--ink:#e7e5e0;--soft:#a3a9b0;--rule:#2e3338;--link:#8fbde8;
--good:#74c79d;--warn:#e2b45f;--bad:#f1938a;--idle:#a3a9b0;
--weights:#5685b8;--kv:#8fb9df;--recurrent:#68b3ac;--draft:#dba05a;--projector:#c08db8;--adapter:#978bcb;
--compute:#a9b868;--other:#7d7b75;--free:#262b30;--edge:#3b4248;
"""

_BASE = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;scroll-behavior:smooth}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
font-variant-numeric:tabular-nums;overflow-wrap:break-word}
.page{max-width:82rem;margin:0 auto;padding:clamp(1.25rem,4vw,3.5rem) clamp(1rem,3vw,3rem) 4rem}
h1,h2,h3,h4{line-height:1.25;font-weight:600;margin:0;letter-spacing:-.01em;overflow-wrap:anywhere}
h1{font-size:.95rem;color:var(--soft);letter-spacing:0}
.lead{font-size:clamp(1.45rem,1rem + 2.2vw,2.1rem);line-height:1.25;letter-spacing:-.02em;font-weight:600;
margin:.35rem 0 .6rem;max-width:44ch}
.lead .sign{font-weight:400}
.good>.sign{color:var(--good)}.warn>.sign{color:var(--warn)}.bad>.sign{color:var(--bad)}
h2{font-size:1.4rem}
h3{font-size:.95rem;margin:2rem 0 .75rem;padding-top:1.1rem;border-top:1px solid var(--rule)}
h4{font-size:1rem;display:flex;flex-wrap:wrap;gap:.15rem .6rem;align-items:baseline;margin-bottom:.6rem}
h4 .right{margin-left:auto;font-weight:400}
p{margin:.4rem 0}
a{color:var(--link);text-decoration-thickness:1px;text-underline-offset:.18em}
a:focus-visible,summary:focus-visible{outline:2px solid var(--link);outline-offset:3px;border-radius:3px}
code{font:.86em/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;overflow-wrap:anywhere}
th,td,li,p,.badge,.sub{overflow-wrap:anywhere}
.sub,.note{color:var(--soft);font-size:.86rem;font-weight:400}
.note{max-width:70ch}
.why{color:var(--bad);font-size:.9rem;overflow-wrap:anywhere}
ul,ol{margin:0;padding:0;list-style:none}
details{margin:.6rem 0}
summary{cursor:pointer;color:var(--soft);font-size:.9rem;padding:.3rem 0;width:fit-content}
summary:hover{color:var(--ink)}
details>ul{padding-left:1.1rem;list-style:disc;font-size:.9rem}
.badge{display:inline-flex;gap:.38em;align-items:baseline;font-size:.92rem;font-weight:500}
.sign{font-weight:700}
.badge.good{color:var(--good)}.badge.warn{color:var(--warn)}.badge.bad{color:var(--bad)}.badge.idle{color:var(--idle)}
"""

_TABLES = """
table{border-collapse:collapse;width:100%;font-size:.92rem}
caption{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
th,td{text-align:left;vertical-align:top;padding:.7rem .75rem;border-bottom:1px solid var(--rule);font-weight:400}
th:first-child{padding-left:0}td:last-child,thead th:last-child{padding-right:0}
thead th{color:var(--soft);font-size:.8rem;padding-bottom:.45rem;vertical-align:bottom}
tbody th{font-weight:600}
.num{text-align:right}
td .sub,th .sub,td .why{display:block}
.each{display:block}
.each+.each{margin-top:.25rem}
.fleet{margin:1.5rem 0 0;font-size:.88rem}
.fleet tbody tr:last-child>*{border-bottom:0}
.fleet td:nth-child(8) code{font-size:.76rem}
.fleet thead th{overflow-wrap:break-word}
.fleet th:first-child{min-width:8.2rem}.fleet td:nth-child(2){min-width:10rem}.fleet td:nth-child(3){min-width:7rem}
.fleet td:nth-child(4),.fleet td:nth-child(6){min-width:6.5rem}.fleet td:nth-child(7){min-width:6.8rem}
.fleet td:nth-child(8){min-width:13.2rem}.fleet td:nth-child(9):not(.empty){min-width:6.6rem}
.fleet td:nth-child(5){min-width:5.2rem}.fleet .badge{font-size:.88rem}
.fleet td,.fleet th+th{padding-left:.5rem;padding-right:.5rem}
.fleet th:first-child{padding-right:.5rem}
.fleet td>div{max-width:17rem}
.small{font-size:.86rem}.small th,.small td{padding-top:.35rem;padding-bottom:.35rem}
.small .sub{display:inline}
.probes td:nth-child(2){min-width:8rem}.probes td:last-child{min-width:5rem}
@media(max-width:75rem){
.fleet thead,.probes thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.fleet,.fleet tbody,.probes,.probes tbody{display:block}
.fleet tr{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,20rem),1fr));gap:0 2rem;
background:var(--sheet);border:1px solid var(--rule);border-radius:10px;padding:.9rem 1rem;margin:0 0 .9rem}
.fleet tr>td,.fleet tr>th{border:0;padding:.32rem 0}
.fleet tr>th{grid-column:1/-1;font-size:1.08rem;padding-bottom:.4rem}
.fleet td{display:grid;grid-template-columns:7.2rem 1fr;gap:.75rem}
.fleet td::before,.probes td:last-child::before{content:attr(data-label);color:var(--soft);font-size:.84rem}
.fleet td>div{max-width:none;min-width:0}
.fleet td.empty{display:none}
.fleet .each .sub{display:inline;margin-left:.4em}
.fleet tr>*{min-width:0!important}
.fleet{font-size:.92rem}
.num{text-align:left}
.small .num{text-align:right}
}
@media(max-width:75rem){
.probes tr{display:grid;grid-template-columns:1fr auto;gap:.1rem 1rem;padding:.7rem 0;
border-bottom:1px solid var(--rule)}
.probes tr>*{border:0;padding:0;min-width:0!important}
.probes td:nth-child(3),.probes td:nth-child(4){grid-column:1/-1}
.probes td:last-child{display:flex;gap:.5em;color:var(--soft);font-size:.86rem}
}
"""

_PARTS = """
.endpoint{background:var(--sheet);border:1px solid var(--rule);border-radius:14px;margin-top:2.2rem;
padding:clamp(1.1rem,3vw,2.2rem);scroll-margin-top:1rem}
.endpoint>header{display:flex;flex-wrap:wrap;gap:.2rem 1rem;align-items:baseline}
.endpoint>header .badge{margin-left:auto;font-size:1rem}
.endpoint>header+.sub,.endpoint>header+.why{margin-top:.2rem}
.card+.card{margin-top:1.6rem}
.meter{display:grid;grid-template-columns:10rem 1fr 7.5rem;gap:.9rem;align-items:center;font-size:.86rem}
.meter-name{color:var(--soft)}
.meter-free{text-align:right;white-space:nowrap}
svg{display:block;overflow:visible}
svg text{font:12px/1 system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;fill:var(--soft)}
.stack rect{stroke:var(--sheet);stroke-width:1}
rect.weights{fill:var(--weights)}rect.kv{fill:var(--kv)}rect.recurrent{fill:var(--recurrent)}
rect.draft{fill:var(--draft)}rect.projector{fill:var(--projector)}rect.adapter{fill:var(--adapter)}
rect.compute{fill:var(--compute)}rect.other,rect.used{fill:var(--other)}rect.free{fill:var(--free)}
line.floor{stroke:var(--ink);stroke-width:2}
line.edge{stroke:var(--bad);stroke-width:2;stroke-dasharray:3 2}
.keys{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;margin:.55rem 0 0;font-size:.86rem;color:var(--soft)}
.keys b{font-weight:500;color:var(--ink)}
.swatch{display:inline-block;width:.7em;height:.7em;border-radius:2px;margin-right:.45em}
.swatch.weights{background:var(--weights)}.swatch.kv{background:var(--kv)}.swatch.recurrent{background:var(--recurrent)}
.swatch.draft{background:var(--draft)}.swatch.projector{background:var(--projector)}
.swatch.adapter{background:var(--adapter)}.swatch.compute{background:var(--compute)}
.swatch.other,.swatch.used{background:var(--other)}
.swatch.tick{width:2px;height:1em;background:var(--ink);vertical-align:-.12em;border-radius:0}
.ends{display:flex;justify-content:space-between;font-size:.8rem;color:var(--soft)}
.rail{stroke:var(--edge);stroke-width:2}
.dot{stroke:var(--sheet);stroke-width:2;fill:var(--warn)}
.dot.good{fill:var(--good)}.dot.bad{fill:var(--bad)}
.dot.current{stroke:var(--good);stroke-width:3;fill:var(--sheet)}
.eras{margin:1.1rem 0 0;border-left:2px solid var(--edge);margin-left:6px}
.eras>li{position:relative;padding:0 0 1.25rem 1.3rem}
.eras>li:last-child{padding-bottom:.2rem}
.eras>li::before{content:"";position:absolute;left:-7px;top:.42rem;width:12px;height:12px;border-radius:50%;
background:var(--warn);border:2px solid var(--sheet);box-sizing:border-box}
.eras>li.good::before{background:var(--good)}.eras>li.bad::before{background:var(--bad)}
.eras>li.current::before{background:var(--sheet);border-color:var(--good);border-width:3px}
.era-head{display:flex;flex-wrap:wrap;gap:.1rem .9rem;align-items:baseline}
.era-head time{font-weight:600}
.mark{font-size:.8rem;color:var(--soft);border:1px solid var(--edge);border-radius:99px;padding:0 .6em}
.diff{margin:.35rem 0 0}
.diff code{display:block}
.add code{color:var(--good)}.cut code{color:var(--bad)}.diff .note code{color:var(--soft)}
.eras details .diff{padding:0;list-style:none}
.chips .badge{color:var(--soft);font-weight:400}.chips .badge.bad{color:var(--bad)}
.chips .sign{font-weight:400}
.chips{display:flex;flex-wrap:wrap;gap:.3rem 1.3rem}
.bench+.bench{margin-top:2rem}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,18rem),1fr));gap:1.6rem 3rem}
figure{margin:0;min-width:0}
figcaption{font-size:.86rem;color:var(--soft);margin-bottom:.35rem}
.axis{font-size:.8rem;color:var(--soft);margin:0}
.chart line{stroke-width:2}
.chart line.grid{stroke:var(--rule);stroke-width:1}.chart line.base{stroke:var(--edge);stroke-width:1}
.chart line.thin{stroke-width:1}
.chart circle{stroke:var(--sheet);stroke-width:1.5}
line.s0{stroke:var(--weights)}line.s1{stroke:var(--draft)}line.s2{stroke:var(--recurrent)}
line.s3{stroke:var(--projector)}line.s4{stroke:var(--compute)}line.s5{stroke:var(--adapter)}
circle.s0{fill:var(--weights)}circle.s1{fill:var(--draft)}circle.s2{fill:var(--recurrent)}
circle.s3{fill:var(--projector)}circle.s4{fill:var(--compute)}circle.s5{fill:var(--adapter)}
.swatch.s0{background:var(--weights)}.swatch.s1{background:var(--draft)}.swatch.s2{background:var(--recurrent)}
.swatch.s3{background:var(--projector)}.swatch.s4{background:var(--compute)}.swatch.s5{background:var(--adapter)}
.bars{max-width:52rem}
.bars li{display:grid;grid-template-columns:minmax(0,13rem) 1fr 6rem;gap:.75rem;align-items:center;font-size:.86rem;
padding:.12rem 0}
.bar-name{color:var(--soft)}.bar-value{text-align:right}
rect.bar{fill:var(--weights)}rect.better{fill:var(--good)}rect.worse{fill:var(--bad)}
.whisker{stroke:var(--ink);stroke-width:1.5}
footer{margin-top:2.5rem;color:var(--soft);font-size:.84rem}
@media(max-width:44rem){
.meter{grid-template-columns:1fr auto;gap:.1rem .75rem;margin-bottom:.5rem}
.meter svg{grid-column:1/-1;grid-row:2}
.meter-name{grid-row:1}
.bars li{grid-template-columns:1fr auto;gap:0 .75rem;padding:.25rem 0}
.bars svg{grid-column:1/-1;grid-row:2}
h4 .right{margin-left:0;width:100%}
.endpoint>header .badge{margin-left:0;width:100%}
}
@media print{body{background:#fff}.endpoint{break-inside:avoid-page;border:0;padding:0}}
"""

_PALETTES = f":root{{color-scheme:light dark;{_LIGHT}}}@media(prefers-color-scheme:dark){{:root{{{_DARK}}}}}"
STYLE = _PALETTES + _BASE + _TABLES + _PARTS
