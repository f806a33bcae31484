// Times in the zone of the person, charts of the overview, and a click that copies. Without it the pages work as well.
"use strict";

function showTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]:not([data-shown])")) {
    const moment = new Date(time.dateTime);
    if (isNaN(moment)) continue;
    time.textContent = moment.toLocaleString(undefined, {dateStyle: "short", timeStyle: "medium"});
    time.dataset.shown = "";
  }
}

const KEPT_MS = 10 * 60 * 1000;
const charts = new Map();

function colour() {
  return getComputedStyle(document.documentElement).getPropertyValue("--pico-primary").trim() || "#1f6feb";
}

function short(value) {
  for (const [size, unit] of [[1e9, " G"], [1e6, " M"], [1e3, " k"]]) if (value >= size) return (value / size).toFixed(1) + unit;
  return String(Math.round(value));
}

// A sample comes with every refresh of the page; what was seen before is kept while the tab is open.
function drawCharts() {
  const sample = document.getElementById("sample");
  if (!sample) return;
  const now = Date.now();
  for (const place of document.querySelectorAll("[data-chart]")) {
    const name = place.dataset.chart;
    const key = "danube-" + name;
    const seen = JSON.parse(sessionStorage.getItem(key) || "[]").filter(([at]) => at > now - KEPT_MS);
    seen.push([now, Number(sample.dataset[name])]);
    sessionStorage.setItem(key, JSON.stringify(seen));
    const data = [seen.map(([at]) => at / 1000), seen.map(([, value]) => value)];
    const chart = charts.get(name);
    if (chart && place.contains(chart.root)) { chart.setData(data); continue; }
    const axis = {stroke: getComputedStyle(document.body).color, grid: {stroke: "rgba(128,128,128,.15)"}, size: 64};
    charts.set(name, new uPlot({
      width: place.clientWidth, height: 150, cursor: {show: false}, legend: {show: false}, title: place.dataset.label,
      scales: {y: {range: (_, low, high) => [0, Math.max(1, high * 1.1)]}},
      axes: [axis, {...axis, values: (_, values) => values.map(short)}],
      series: [{}, {stroke: colour(), width: 2, fill: "rgba(31,111,235,.12)", points: {show: false}}],
    }, data, place));
  }
}

function refresh() { showTimes(document); drawCharts(); }
document.addEventListener("htmx:after:swap", refresh);
window.addEventListener("resize", () => { for (const chart of charts.values()) chart.setSize({width: chart.root.parentElement.clientWidth, height: 150}); });
document.addEventListener("click", (event) => {
  const text = event.target.closest(".copy");
  if (text && navigator.clipboard) navigator.clipboard.writeText(text.textContent);
});
refresh();
