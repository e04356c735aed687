// Draws the charts in the page's own colours, and makes its buttons work.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const printing = matchMedia("print");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const PAPER_WIDTH = 680; // pixels that fit on A4 and on Letter

  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();

  function layoutOf(key) {
    const own = charts[key].layout;
    const [ink, soft, line, paper] = ["ink", "soft", "line", "paper"].map(colour);
    const axis = {
      gridcolor: line, zerolinecolor: soft, linecolor: line, tickcolor: line, automargin: true,
      zeroline: false, tickfont: { color: soft }, title: { font: { color: soft, size: 13 }, standoff: 12 },
    };
    // A view with equal scales needs no more height than it has width.
    const square = own.yaxis?.scaleanchor !== undefined;
    const width = document.getElementById(key).clientWidth;
    const merged = (mine = {}) => ({ ...axis, ...mine, title: { ...axis.title, ...mine.title } });
    return {
      ...own,
      height: square ? Math.min(own.height, width) : own.height,
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: ink },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      hoverlabel: { bgcolor: paper, bordercolor: soft, font: { color: ink }, align: "left" },
      margin: { l: 8, r: 8, t: 12, b: 40, ...own.margin },
      showlegend: own.showlegend ?? false,
      dragmode: false,
      xaxis: merged(own.xaxis), yaxis: merged(own.yaxis),
      ...(printing.matches ? { width: PAPER_WIDTH } : { autosize: true }),
    };
  }

  function dataOf(key) {
    const ink = colour("ink");
    return charts[key].data.map((trace) => {
      if (!trace.marker?.line) return trace;
      const open = JSON.stringify(trace.marker.symbol).includes("-open");
      const edge = open ? trace.marker.color : ink;
      return { ...trace, marker: { ...trace.marker, line: { ...trace.marker.line, color: edge } } };
    });
  }

  const config = {
    responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false,
    showTips: false, doubleClick: "reset",
  };
  const draw = (key) => Plotly.react(key, dataOf(key), layoutOf(key), config);
  const drawAll = () => Object.keys(charts).forEach(draw);

  // ---- switches --------------------------------------------------------------------------

  const press = (buttons, chosen) =>
    buttons.forEach((b) => b.setAttribute("aria-pressed", String(b === chosen)));

  document.querySelectorAll(".switch").forEach((group) => {
    const buttons = [...group.querySelectorAll("button")];
    const key = group.dataset.for;
    buttons.forEach((button) => button.addEventListener("click", () => {
      press(buttons, button);
      charts[key].data.forEach((trace) => {
        if (trace.meta.split) trace.visible = trace.meta.split === button.dataset.split;
      });
      draw(key);
    }));
  });

  document.querySelectorAll(".legend").forEach((legend) => {
    const key = legend.dataset.for;
    const chosen = { label: null, client: null };
    const fits = (kind, value) => chosen[kind] === null || chosen[kind] === value;
    const highlight = () => {
      charts[key].data.forEach((trace) => {
        const own = fits("label", trace.meta.label);
        trace.marker.opacity = trace.meta.anchor
          ? (own ? 1 : 0.15)
          : trace.customdata.map((client) => (own && fits("client", client) ? 0.85 : 0.06));
      });
      draw(key);
    };
    ["label", "client"].forEach((kind) => {
      const buttons = [...legend.querySelectorAll(`button[data-${kind}]`)];
      buttons.forEach((button) => button.addEventListener("click", () => {
        const on = button.getAttribute("aria-pressed") === "false";
        press(buttons, on ? button : null);
        chosen[kind] = on ? Number(button.dataset[kind]) : null;
        highlight();
      }));
      legend.querySelector(`select[data-${kind}]`)?.addEventListener("change", (event) => {
        chosen[kind] = event.target.value === "" ? null : Number(event.target.value);
        highlight();
      });
    });
  });

  // ---- tables ----------------------------------------------------------------------------

  document.querySelectorAll("button.all").forEach((button) => {
    const table = document.getElementById(button.getAttribute("aria-controls"));
    const ask = button.textContent;
    button.addEventListener("click", () => {
      const short = table.classList.toggle("short");
      button.setAttribute("aria-expanded", String(!short));
      button.textContent = short ? ask : "Show fewer";
    });
  });
  document.querySelectorAll("button.fold").forEach((button) =>
    button.addEventListener("click", () => {
      const folded = button.closest("tbody").classList.toggle("folded");
      button.setAttribute("aria-expanded", String(!folded));
    }));

  // ---- paper and darkness ----------------------------------------------------------------

  let opened = [];
  printing.addEventListener("change", () => {
    if (printing.matches) {
      opened = [...document.querySelectorAll("details:not([open])")];
    }
    opened.forEach((details) => { details.open = printing.matches; });
    drawAll();
  });
  dark.addEventListener("change", drawAll);
  drawAll();
})();
