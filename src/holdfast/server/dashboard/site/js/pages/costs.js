// The cost of model calls, day by day, by agent or by model.

import { html, useEffect, useRef, useState } from "../html.js";
import { EmptyState, ProblemNote } from "../components.js";
import { useGet } from "../data.js";
import { formatCount, formatMoney, formatShortCount, pluralize } from "../format.js";
import { buildHref, updateQuery } from "../router.js";
import { buildChart, buildGridLines, getRangeStart, groupUsage, NANO_PER_DOLLAR, sumUsage, toIsoDay } from "../spending.js";

const RANGES = [7, 30, 90];
const GROUPINGS = { workflow: "agent", model: "model" };
const formatNano = (nano) => formatMoney(nano / NANO_PER_DOLLAR);
const formatName = (name) => name || "(not known)";
const formatDay = (day) => new Date(`${day}T00:00:00Z`).toLocaleDateString("en-GB", { timeZone: "UTC", weekday: "short", day: "numeric", month: "short" });

export function CostsPage({ query }) {
  const dayCount = RANGES.includes(Number(query.days)) ? Number(query.days) : 30;
  const by = query.by === "model" ? "model" : "workflow";
  const { data, problem, loading, refresh } = useGet("/v1/usage", { since: getRangeStart(dayCount), until: toIsoDay(Date.now()), workflow: query.agent }, { minIntervalMs: 5000 });
  const agents = useGet("/v1/agents", {}, { live: false });
  const names = (agents.data?.items ?? []).map((one) => one.name);
  if (query.agent && !names.includes(query.agent)) names.push(query.agent);
  return html`<header>
      <h1>Costs</h1>
      <div class="right">
        <label class="line">agent <select value=${query.agent ?? ""} onChange=${(event) => updateQuery({ agent: event.target.value })}>
          <option value="">all</option>${names.map((name) => html`<option key=${name} value=${name} selected=${name === query.agent}>${name}</option>`)}
        </select></label>
        <div class="choice" role="group" aria-label="parts">${Object.entries(GROUPINGS).map(([value, label]) => html`<button key=${value} aria-pressed=${by === value} onClick=${() => updateQuery({ by: value === "workflow" ? "" : value })}>by ${label}</button>`)}</div>
        <div class="choice" role="group" aria-label="days">${RANGES.map((days) => html`<button key=${days} aria-pressed=${dayCount === days} onClick=${() => updateQuery({ days: days === 30 ? "" : days })}>${days} days</button>`)}</div>
      </div>
    </header>
    <${ProblemNote} problem=${problem} refresh=${refresh} />
    ${data ? html`<${SpendingReport} spending=${data} by=${by} agent=${query.agent} />` : loading ? html`<p class="faint">…</p>` : null}`;
}

function SpendingReport({ spending, by, agent }) {
  const sum = sumUsage(spending.daily_usage);
  const runs = spending.daily_runs.reduce((all, one) => all + one.run_count, 0);
  if (!sum.calls) {
    return html`<${EmptyState}>
      <p>No model was called between ${spending.since} and ${spending.until}${agent ? ` by ${agent}` : ""}. ${runs ? `${pluralize(runs, "run")} began.` : ""}</p>
      <p>An agent's calls are counted by themselves; a step of a workflow that calls a model is counted with <code>@llm_step</code>.</p>
    <//>`;
  }
  const groups = groupUsage(spending.daily_usage, by);
  const chart = buildChart(spending, by);
  return html`<dl class="sums">
      <div><dt>cost</dt><dd class="large">${formatNano(sum.nano)}</dd></div>
      <div><dt>a day</dt><dd>${formatNano(sum.nano / chart.bars.length)}</dd></div>
      <div><dt>model calls</dt><dd>${formatCount(sum.calls)}</dd></div>
      <div><dt>runs begun</dt><dd>${formatCount(runs)}</dd></div>
      <div><dt>tokens in</dt><dd>${formatShortCount(sum.input)}${sum.cached ? html` <span class="faint">${formatShortCount(sum.cached)} of them cached</span>` : null}</dd></div>
      <div><dt>tokens out</dt><dd>${formatShortCount(sum.output)}</dd></div>
    </dl>
    ${sum.unpriced ? html`<div class="note warn">${pluralize(sum.unpriced, "call")} of models without a known price: what they cost is in none of these sums.</div>` : null}
    <${SpendingChart} chart=${chart} by=${by} />
    <div class="scroll" tabindex="0" role="region" aria-label="costs by ${GROUPINGS[by]}"><table class="list">
      <thead><tr><th scope="col">${by === "model" ? "Model" : "Agent"}</th>${["Cost", "Calls", "Tokens in", "Cached", "Tokens out", "Without price"].map((one) => html`<th scope="col" class="number">${one}</th>`)}</tr></thead>
      <tbody>${groups.map((one) => html`<tr key=${one.name} data-row=${one.name}>
        <td data-name=${GROUPINGS[by]}>${by === "model" ? formatName(one.name) : html`<a href=${buildHref("runs", "", { workflow: one.name })}>${one.name}</a>`}</td>
        <td class="number" data-name="Cost" title="$${one.nano / NANO_PER_DOLLAR}">${one.calls > one.unpriced ? formatNano(one.nano) : "not known"}</td>
        <td class="number" data-name="Calls">${formatCount(one.calls)}</td>
        <td class="number" data-name="Tokens in">${formatCount(one.input)}</td>
        <td class="number" data-name="Cached">${formatCount(one.cached)}</td>
        <td class="number" data-name="Tokens out">${formatCount(one.output)}</td>
        <td class="number" data-name="Without price">${one.unpriced ? formatCount(one.unpriced) : ""}</td>
      </tr>`)}</tbody>
    </table></div>
    <details class="days"><summary>Day by day, as a table</summary>
      <div class="scroll" tabindex="0" role="region" aria-label="costs by day"><table class="list">
        <thead><tr><th scope="col">Day (UTC)</th>${chart.names.map((name) => html`<th key=${name} scope="col" class="number">${formatName(name)}</th>`)}<th scope="col" class="number">All</th></tr></thead>
        <tbody>${chart.bars.filter((bar) => bar.nano).reverse().map((bar) => html`<tr key=${bar.day} data-day=${bar.day}>
          <td data-name="Day">${bar.day}</td>
          ${bar.parts.map((nano, index) => html`<td class="number" data-name=${formatName(chart.names[index])}>${nano ? formatNano(nano) : ""}</td>`)}
          <td class="number" data-name="All" title="$${bar.nano / NANO_PER_DOLLAR}">${formatNano(bar.nano)}</td>
        </tr>`)}</tbody>
      </table></div>
    </details>`;
}

const HEIGHT = 230;
const LEFT = 54;
const BELOW = 22;
const ABOVE = 8;

// A bar for each day, with arrow keys to move between them; a line above describes the current bar.
function SpendingChart({ chart, by }) {
  const element = useRef(null);
  const width = useWidth(element);
  const [at, setAt] = useState(chart.bars.length - 1);
  const [highlighted, setHighlighted] = useState(-1);
  const bars = useRef([]);
  const current = Math.min(at, chart.bars.length - 1);
  const max = Math.max(...chart.bars.map((bar) => bar.nano));
  const lines = buildGridLines(max / NANO_PER_DOLLAR);
  const top = lines.at(-1) * NANO_PER_DOLLAR;
  const y = (nano) => ABOVE + (HEIGHT - ABOVE - BELOW) * (1 - nano / top);
  const dayWidth = (width - LEFT) / chart.bars.length;
  const onKeyDown = (event) => {
    const offset = { ArrowLeft: -1, ArrowRight: 1, Home: -chart.bars.length, End: chart.bars.length }[event.key];
    if (!offset) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(chart.bars.length - 1, current + offset));
    setAt(next);
    setHighlighted(next);
    bars.current[next]?.focus();
  };
  const describeBar = (bar) => {
    const parts = bar.parts.map((nano, index) => [nano, index]).filter(([nano]) => nano).map(([nano, index]) => `${formatName(chart.names[index])} ${formatNano(nano)}`);
    return `${formatDay(bar.day)}: ${formatNano(bar.nano)}${parts.length ? ` (${parts.join(", ")})` : ""}`;
  };
  const labelInterval = Math.max(1, Math.ceil(64 / dayWidth));
  return html`<figure class="chart">
    <figcaption>
      <span class="caption" role="status">${highlighted >= 0 && chart.bars[highlighted] ? describeBar(chart.bars[highlighted]) : `Dollars a day, by ${GROUPINGS[by]}; days are those of UTC.`}</span>
      <ul class="legend">${chart.names.map((name, index) => html`<li key=${name}><span class="swatch s${index}"></span>${formatName(name)}</li>`)}</ul>
    </figcaption>
    <div ref=${element} class="room">
      <svg width=${width} height=${HEIGHT} viewBox="0 0 ${width} ${HEIGHT}" role="group" aria-label="cost of each day; arrow keys go from day to day" onKeyDown=${onKeyDown}>
        ${lines.map((line) => html`<g key=${line} aria-hidden="true"><line class="rule" x1=${LEFT} x2=${width} y1=${y(line * NANO_PER_DOLLAR)} y2=${y(line * NANO_PER_DOLLAR)} /><text class="tick end" x=${LEFT - 8} y=${y(line * NANO_PER_DOLLAR) + 4}>${formatMoney(line)}</text></g>`)}
        ${chart.bars.map((bar, index) => {
          const x = LEFT + dayWidth * index + dayWidth * 0.12;
          let from = 0;
          return html`<g key=${bar.day} ref=${(node) => (bars.current[index] = node)} class="bar ${index === highlighted ? "pointed" : ""}" role="img" aria-label=${describeBar(bar)} tabindex=${index === current ? "0" : "-1"}
              onFocus=${() => { setAt(index); setHighlighted(index); }} onBlur=${() => setHighlighted(-1)} onMouseEnter=${() => setHighlighted(index)} onMouseLeave=${() => setHighlighted(-1)}>
            <rect class="reach" x=${LEFT + dayWidth * index} y=${ABOVE} width=${dayWidth} height=${HEIGHT - ABOVE - BELOW} />
            ${bar.parts.map((nano, part) => {
              if (!nano) return null;
              const [low, high] = [y(from), y(from + nano)];
              from += nano;
              return html`<rect class="s${part}" x=${x} y=${high} width=${Math.max(1, dayWidth * 0.76)} height=${Math.max(0.5, low - high)} />`;
            })}
            ${(chart.bars.length - 1 - index) % labelInterval === 0 ? html`<text class="tick mid" aria-hidden="true" x=${LEFT + dayWidth * (index + 0.5)} y=${HEIGHT - 6}>${bar.day.slice(5)}</text>` : null}
          </g>`;
        })}
      </svg>
    </div>
  </figure>`;
}

function useWidth(element) {
  const [width, setWidth] = useState(900);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.max(240, Math.floor(entry.contentRect.width))));
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return width;
}
