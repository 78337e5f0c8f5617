#include "diagnosis/report/page_style.h"

#include <array>

#include "autograd/tensor/error.h"

namespace tapestry::report {
namespace {

// The colours of runs are those of Okabe and Ito (2008), lighter on a dark ground.
constexpr const char* kStyle = R"css(
:root{color-scheme:light dark;--bg:#f5f5f1;--card:#fff;--ink:#1c1c1a;--soft:#5f5e58;--edge:#dcdbd3;
--grid:#ecebe5;--bad:#b3261e;--good:#1a6b3a;--hint:#fdf3d8;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#b8579a;--c4:#3b3b39;--c5:#c98a00;--c6:#3c9bd1}
@media (prefers-color-scheme:dark){:root{--bg:#131416;--card:#1b1d20;--ink:#e9e7e2;--soft:#a3a19a;
--edge:#33363b;--grid:#292c30;--bad:#f2857c;--good:#6cc48b;--hint:#3a3216;
--c0:#4fa9e2;--c1:#f28b45;--c2:#2fc49a;--c3:#e094c4;--c4:#d5d3cd;--c5:#f0bb45;--c6:#8fd0f5}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",
Roboto,"Liberation Sans",sans-serif;-webkit-text-size-adjust:100%}
body>*{max-width:86rem;margin-left:auto;margin-right:auto;padding-left:1rem;padding-right:1rem}
header{padding-top:1.6rem}
h1{font-size:1.55rem;line-height:1.2;margin:0;overflow-wrap:anywhere}
header p{margin:.3rem 0 0;color:var(--soft)}
h2{font-size:1.15rem;margin:2.2rem 0 .7rem}
h3{font-size:.95rem;margin:1.2rem 0 .4rem;overflow-wrap:anywhere}
p{margin:.4rem 0}
.soft{color:var(--soft)}.bad{color:var(--bad)}.good{color:var(--good)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.4rem,1fr));gap:.6rem;margin:1rem 0 0}
.tiles div,figure,.box{background:var(--card);border:1px solid var(--edge);border-radius:.55rem}
.tiles div{padding:.55rem .8rem .6rem}
.tiles dt{color:var(--soft);font-size:.8rem}
.tiles dd{margin:0;font-size:1.3rem;line-height:1.3;font-variant-numeric:tabular-nums}
.tiles dd small{display:block;font-size:.8rem;color:var(--soft)}
.legend{position:sticky;top:0;z-index:3;background:var(--bg);display:flex;flex-wrap:wrap;
gap:.15rem 1.1rem;margin-top:1rem;padding-top:.5rem;padding-bottom:.5rem;border-bottom:1px solid var(--edge);
max-height:30vh;overflow-y:auto}
.legend label{display:inline-flex;align-items:center;gap:.45rem;min-width:0;overflow-wrap:anywhere}
.legend input{accent-color:var(--c);margin:0}
.swatch{flex:none;width:1.4rem;height:0;border-top:3px solid var(--c)}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,28rem),1fr));gap:.9rem}
figure{margin:0;padding:.65rem .8rem .4rem;min-width:0}
.wide{grid-column:1/-1}
figcaption{display:flex;flex-wrap:wrap;align-items:baseline;gap:0 .6rem;margin-bottom:.5rem;
overflow-wrap:anywhere}
.unit,.key{color:var(--soft);font-size:.82rem}
.key{margin-left:auto}
.key>span{white-space:nowrap}
.sample{display:inline-block;width:1.3rem;margin:0 .3rem .22rem .6rem;border-top:2px solid var(--ink)}
.sample.faint{border-top-width:1px;opacity:.45}
.sample.dots{border-top-style:dashed}
.sample.d0{border-top-style:dashed}.sample.d1,.sample.d2{border-top-style:dotted}
.sample.mark{width:0;height:.7rem;margin-bottom:-.05rem;border-top:0;border-left:2px solid var(--bad)}
.plot{display:grid;grid-template-columns:calc(var(--w)*.46rem + .7rem) minmax(0,1fr);grid-template-rows:auto 1.5rem;padding-right:.9rem}
.area{position:relative;height:13.5rem;touch-action:pan-y;cursor:crosshair}
.wide .area{height:clamp(15rem,42vw,24rem)}
.area svg{position:absolute;inset:0;width:100%;height:100%;overflow:visible}
.ys,.xs{position:relative;font-size:.75rem;color:var(--soft);font-variant-numeric:tabular-nums}
.ys span{position:absolute;right:.45rem;transform:translateY(-50%);white-space:nowrap}
.xs{grid-column:2}
.xs span{position:absolute;top:.15rem;transform:translateX(-50%);white-space:nowrap}
.area path{fill:none;vector-effect:non-scaling-stroke;stroke-linejoin:round;stroke-linecap:round}
.grid{stroke:var(--grid)}
.line path{stroke:var(--c);stroke-width:1.8;stroke-dasharray:var(--d,none)}
.faint path{stroke-width:1;opacity:.3;stroke-dasharray:none}
.dots .curve{stroke-width:1.4;stroke-dasharray:5 4}
.dots .points{stroke-width:6;stroke-dasharray:none}
.d0 path{stroke-dasharray:8 4}.d1 path{stroke-dasharray:2 4}.d2 path{stroke-dasharray:10 4 2 4}
.marks{stroke:var(--bad);stroke-width:2}
.cross{position:absolute;top:0;bottom:0;width:0;border-left:1px solid var(--soft);pointer-events:none}
.tip{position:absolute;top:.3rem;z-index:2;max-width:min(22rem,90%);padding:.3rem .55rem;border-radius:.4rem;
background:var(--card);border:1px solid var(--edge);box-shadow:0 2px 8px rgba(0,0,0,.18);font-size:.8rem;
pointer-events:none;font-variant-numeric:tabular-nums}
.tip div{display:flex;gap:.5rem;align-items:center}
.tip .swatch{width:.9rem}
.tip .owner{font-weight:600;max-width:9rem;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.tip .owner:empty{display:none}
.tip span:last-child{margin-left:auto;padding-left:.6rem}
.box{overflow-x:auto;margin:.6rem 0}
table{border-collapse:collapse;width:100%;font-size:.88rem}
th,td{text-align:left;vertical-align:top;padding:.32rem .7rem;border-bottom:1px solid var(--grid);
overflow-wrap:anywhere;min-width:5.5rem}
tr:last-child>*{border-bottom:0}
thead th{color:var(--soft);font-weight:600;border-bottom-color:var(--edge);min-width:7rem}
thead .swatch{display:inline-block;vertical-align:middle;margin-right:.4rem}
tbody th{font-weight:400;min-width:9rem}
tbody th[scope=row]{position:sticky;left:0;background:var(--card)}
td.mono{min-width:13rem}
td,.mono{font-variant-numeric:tabular-nums}
.keys th,.keys td,.mono{font-family:ui-monospace,SFMono-Regular,Menlo,"DejaVu Sans Mono",monospace;font-size:.82rem}
.keys thead th{font-family:inherit;font-size:.88rem}
.keys .section th{background:var(--bg);color:var(--soft);font-weight:600}
.keys td.own{background:var(--hint)}
.num{text-align:right;white-space:nowrap;overflow-wrap:normal}
.spark{display:block;width:9rem;height:1.5rem}
.spark path{fill:none;stroke:var(--c0);stroke-width:1;vector-effect:non-scaling-stroke;stroke-linecap:round}
details{margin:.6rem 0}
summary{cursor:pointer;padding:.25rem 0;overflow-wrap:anywhere}
footer{color:var(--soft);font-size:.85rem;padding-top:1.5rem;padding-bottom:2rem}
@media (max-width:30rem){.key{margin-left:0}.key>span:first-child .sample{margin-left:0}th,td{padding:.32rem .5rem}
tbody th{min-width:7rem}figure{padding:.6rem .55rem .3rem}}
@media print{.legend{position:static}figure{break-inside:avoid}}
)css";

constexpr const char* kScript = R"js(
'use strict';
document.querySelectorAll('figure.chart').forEach(function(figure){
  const d=figure.dataset,area=figure.querySelector('.area'),svg=area.querySelector('svg');
  const width=svg.viewBox.baseVal.width,height=svg.viewBox.baseVal.height;
  const x0=+d.x0,unit=+d.xunit,y0=+d.y0,y1=+d.y1,log=d.log==='1',whole=d.whole==='1';
  let lines=null,cross=null,tip=null;
  function read(){
    lines=[];
    area.querySelectorAll('.line:not(.faint)').forEach(function(g){
      const points=[],pattern=/(-?\d+),(-?\d+)/g,path=g.querySelector('.curve').getAttribute('d');
      for(let m;(m=pattern.exec(path));)points.push([+m[1],+m[2]]);
      lines.push({g:g,run:g.dataset.run,owner:g.dataset.owner,name:g.dataset.name,points:points});
    });
  }
  function nearest(points,x){
    let low=0,high=points.length-1;
    while(high-low>1){const mid=(low+high)>>1;if(points[mid][0]<x)low=mid;else high=mid;}
    return Math.abs(points[low][0]-x)<=Math.abs(points[high][0]-x)?points[low]:points[high];
  }
  function number(v){return String(+v.toPrecision(5));}
  function hide(){if(tip){tip.remove();cross.remove();tip=cross=null;}}
  function show(event){
    if(!lines)read();
    const box=area.getBoundingClientRect();
    const x=(event.clientX-box.left)/box.width*width;
    const seen=lines.filter(function(l){return l.points.length&&l.g.style.display!=='none';});
    if(!seen.length||x<-0.02*width||x>1.02*width){hide();return;}
    let best=null;
    const found=seen.map(function(l){
      const p=nearest(l.points,x);
      if(!best||Math.abs(p[0]-x)<Math.abs(best-x))best=p[0];
      return [l,p];
    });
    if(!tip){
      cross=document.createElement('div');cross.className='cross';
      tip=document.createElement('div');tip.className='tip';
      area.append(cross,tip);
    }
    const part=best/width;
    cross.style.left=100*part+'%';
    tip.style.left=part<0.5?'calc('+100*part+'% + .6rem)':'auto';
    tip.style.right=part<0.5?'auto':'calc('+100*(1-part)+'% + .6rem)';
    const at=x0+best*unit;
    tip.replaceChildren();
    const head=document.createElement('div');
    head.textContent=document.body.dataset.x+' '+(whole?Math.round(at).toLocaleString('en'):number(at));
    tip.append(head);
    found.forEach(function(f){
      if(Math.abs(f[1][0]-best)>0.02*width)return;
      const row=document.createElement('div'),swatch=document.createElement('span');
      const owner=document.createElement('span'),name=document.createElement('span');
      const value=document.createElement('span');
      swatch.className='swatch r'+f[0].run;
      owner.className='owner';
      owner.textContent=f[0].owner;
      name.textContent=f[0].name;
      const y=y0+(1-f[1][1]/height)*(y1-y0);
      value.textContent=number(log?Math.pow(10,y):y);
      row.append(swatch,owner,name,value);
      tip.append(row);
    });
  }
  area.addEventListener('pointermove',show);
  area.addEventListener('pointerdown',show);
  area.addEventListener('pointerleave',hide);
});
document.querySelectorAll('.legend input').forEach(function(input){
  function apply(){
    document.querySelectorAll('.line[data-run="'+input.value+'"]').forEach(function(g){
      g.style.display=input.checked?'':'none';
    });
  }
  input.hidden=false;
  input.addEventListener('change',apply);
  apply();
});
)js";

}  // namespace

std::string page_style(size_t runs) {
  constexpr size_t kColors = 7;
  constexpr std::array<const char*, 4> kDashes = {"none", "7 3", "2 3", "9 3 2 3"};
  std::string style = kStyle + 1;  // without the first line break
  for (size_t run = 0; run < runs; ++run) {
    style += concat(".r", run, "{--c:var(--c", run % kColors, ")");
    if (run >= kColors) {
      style += concat(";--d:", kDashes[run / kColors % kDashes.size()]);
    }
    style += "}\n";
  }
  return style;
}

const char* page_script() { return kScript + 1; }

}  // namespace tapestry::report
