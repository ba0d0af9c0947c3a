// What model calls have cost, day by day, by agent or by model.

import { html, useEffect, useRef, useState } from "../html.js";
import { useGet } from "../data.js";
import { count, money, plural, short } from "../format.js";
import { Empty, ProblemNote } from "../components.js";
import { href, refine } from "../router.js";
import { daysBack, dayOf, NANO, stacked, steps, summed, total } from "../spending.js";

const RANGES = [7, 30, 90];
const BY = { workflow: "agent", model: "model" };
const dollars = (nano) => money(nano / NANO);
const nameOf = (name) => name || "(not known)";
const dayInWords = (day) => new Date(`${day}T00:00:00Z`).toLocaleDateString("en-GB", { timeZone: "UTC", weekday: "short", day: "numeric", month: "short" });

export function CostsPage({ query }) {
  const range = RANGES.includes(Number(query.days)) ? Number(query.days) : 30;
  const by = query.by === "model" ? "model" : "workflow";
  const { data, problem, loading, again } = useGet("/v1/usage", { since: daysBack(range), until: dayOf(Date.now()), workflow: query.agent }, { pace: 5000 });
  const agents = useGet("/v1/agents", {}, { live: false });
  const names = (agents.data?.items ?? []).map((one) => one.name);
  if (query.agent && !names.includes(query.agent)) names.push(query.agent);
  return html`<header>
      <h1>Costs</h1>
      <div class="right">
        <label class="line">agent <select value=${query.agent ?? ""} onChange=${(event) => refine({ agent: event.target.value })}>
          <option value="">all</option>${names.map((name) => html`<option key=${name} value=${name} selected=${name === query.agent}>${name}</option>`)}
        </select></label>
        <div class="choice" role="group" aria-label="parts">${Object.entries(BY).map(([value, words]) => html`<button key=${value} aria-pressed=${by === value} onClick=${() => refine({ by: value === "workflow" ? "" : value })}>by ${words}</button>`)}</div>
        <div class="choice" role="group" aria-label="days">${RANGES.map((days) => html`<button key=${days} aria-pressed=${range === days} onClick=${() => refine({ days: days === 30 ? "" : days })}>${days} days</button>`)}</div>
      </div>
    </header>
    <${ProblemNote} problem=${problem} again=${again} />
    ${data ? html`<${Report} report=${data} by=${by} agent=${query.agent} />` : loading ? html`<p class="faint">…</p>` : null}`;
}

function Report({ report, by, agent }) {
  const sum = total(report.daily_usage);
  const runs = report.daily_runs.reduce((all, one) => all + one.run_count, 0);
  if (!sum.calls) {
    return html`<${Empty}>
      <p>No model was called between ${report.since} and ${report.until}${agent ? ` by ${agent}` : ""}. ${runs ? `${plural(runs, "run")} began.` : ""}</p>
      <p>An agent's calls are counted by themselves; a step of a workflow that calls a model is counted with <code>@llm_step</code>.</p>
    <//>`;
  }
  const groups = summed(report.daily_usage, by);
  const chart = stacked(report, by);
  return html`<dl class="sums">
      <div><dt>cost</dt><dd class="large">${dollars(sum.nano)}</dd></div>
      <div><dt>a day</dt><dd>${dollars(sum.nano / chart.bars.length)}</dd></div>
      <div><dt>model calls</dt><dd>${count(sum.calls)}</dd></div>
      <div><dt>runs begun</dt><dd>${count(runs)}</dd></div>
      <div><dt>tokens in</dt><dd>${short(sum.input)}${sum.cached ? html` <span class="faint">${short(sum.cached)} of them cached</span>` : null}</dd></div>
      <div><dt>tokens out</dt><dd>${short(sum.output)}</dd></div>
    </dl>
    ${sum.unpriced ? html`<div class="note warn">${plural(sum.unpriced, "call")} of models without a known price: what they cost is in none of these sums.</div>` : null}
    <${Chart} chart=${chart} by=${by} />
    <div class="scroll" tabindex="0" role="region" aria-label="costs by ${BY[by]}"><table class="list">
      <thead><tr><th scope="col">${by === "model" ? "Model" : "Agent"}</th>${["Cost", "Calls", "Tokens in", "Cached", "Tokens out", "Without price"].map((one) => html`<th scope="col" class="number">${one}</th>`)}</tr></thead>
      <tbody>${groups.map((one) => html`<tr key=${one.name} data-row=${one.name}>
        <td data-name=${BY[by]}>${by === "model" ? nameOf(one.name) : html`<a href=${href("runs", "", { workflow: one.name })}>${one.name}</a>`}</td>
        <td class="number" data-name="Cost" title="$${one.nano / NANO}">${one.calls > one.unpriced ? dollars(one.nano) : "not known"}</td>
        <td class="number" data-name="Calls">${count(one.calls)}</td>
        <td class="number" data-name="Tokens in">${count(one.input)}</td>
        <td class="number" data-name="Cached">${count(one.cached)}</td>
        <td class="number" data-name="Tokens out">${count(one.output)}</td>
        <td class="number" data-name="Without price">${one.unpriced ? count(one.unpriced) : ""}</td>
      </tr>`)}</tbody>
    </table></div>
    <details class="days"><summary>Day by day, as a table</summary>
      <div class="scroll" tabindex="0" role="region" aria-label="costs by day"><table class="list">
        <thead><tr><th scope="col">Day (UTC)</th>${chart.names.map((name) => html`<th key=${name} scope="col" class="number">${nameOf(name)}</th>`)}<th scope="col" class="number">All</th></tr></thead>
        <tbody>${chart.bars.filter((bar) => bar.nano).reverse().map((bar) => html`<tr key=${bar.day} data-day=${bar.day}>
          <td data-name="Day">${bar.day}</td>
          ${bar.parts.map((nano, index) => html`<td class="number" data-name=${nameOf(chart.names[index])}>${nano ? dollars(nano) : ""}</td>`)}
          <td class="number" data-name="All" title="$${bar.nano / NANO}">${dollars(bar.nano)}</td>
        </tr>`)}</tbody>
      </table></div>
    </details>`;
}

const HEIGHT = 230;
const LEFT = 54;
const BELOW = 22;
const ABOVE = 8;

// Bars of a day each, gone through with the arrow keys; what a bar stands for is told in a line above.
function Chart({ chart, by }) {
  const place = useRef(null);
  const width = useWidth(place);
  const [at, setAt] = useState(chart.bars.length - 1);
  const [pointed, setPointed] = useState(-1);
  const bars = useRef([]);
  const chosen = Math.min(at, chart.bars.length - 1);
  const most = Math.max(...chart.bars.map((bar) => bar.nano));
  const lines = steps(most / NANO);
  const top = lines.at(-1) * NANO;
  const y = (nano) => ABOVE + (HEIGHT - ABOVE - BELOW) * (1 - nano / top);
  const room = (width - LEFT) / chart.bars.length;
  const go = (event) => {
    const by_ = { ArrowLeft: -1, ArrowRight: 1, Home: -chart.bars.length, End: chart.bars.length }[event.key];
    if (!by_) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(chart.bars.length - 1, chosen + by_));
    setAt(next);
    setPointed(next);
    bars.current[next]?.focus();
  };
  const inWords = (bar) => {
    const parts = bar.parts.map((nano, index) => [nano, index]).filter(([nano]) => nano).map(([nano, index]) => `${nameOf(chart.names[index])} ${dollars(nano)}`);
    return `${dayInWords(bar.day)}: ${dollars(bar.nano)}${parts.length ? ` (${parts.join(", ")})` : ""}`;
  };
  const every = Math.max(1, Math.ceil(64 / room));
  return html`<figure class="chart">
    <figcaption>
      <span class="told" role="status">${pointed >= 0 && chart.bars[pointed] ? inWords(chart.bars[pointed]) : `Dollars a day, by ${BY[by]}; days are those of UTC.`}</span>
      <ul class="legend">${chart.names.map((name, index) => html`<li key=${name}><span class="swatch s${index}"></span>${nameOf(name)}</li>`)}</ul>
    </figcaption>
    <div ref=${place} class="room">
      <svg width=${width} height=${HEIGHT} viewBox="0 0 ${width} ${HEIGHT}" role="group" aria-label="cost of each day; arrow keys go from day to day" onKeyDown=${go}>
        ${lines.map((line) => html`<g key=${line} aria-hidden="true"><line class="rule" x1=${LEFT} x2=${width} y1=${y(line * NANO)} y2=${y(line * NANO)} /><text class="tick end" x=${LEFT - 8} y=${y(line * NANO) + 4}>${money(line)}</text></g>`)}
        ${chart.bars.map((bar, index) => {
          const x = LEFT + room * index + room * 0.12;
          let from = 0;
          return html`<g key=${bar.day} ref=${(node) => (bars.current[index] = node)} class="bar ${index === pointed ? "pointed" : ""}" role="img" aria-label=${inWords(bar)} tabindex=${index === chosen ? "0" : "-1"}
              onFocus=${() => { setAt(index); setPointed(index); }} onBlur=${() => setPointed(-1)} onMouseEnter=${() => setPointed(index)} onMouseLeave=${() => setPointed(-1)}>
            <rect class="reach" x=${LEFT + room * index} y=${ABOVE} width=${room} height=${HEIGHT - ABOVE - BELOW} />
            ${bar.parts.map((nano, part) => {
              if (!nano) return null;
              const [low, high] = [y(from), y(from + nano)];
              from += nano;
              return html`<rect class="s${part}" x=${x} y=${high} width=${Math.max(1, room * 0.76)} height=${Math.max(0.5, low - high)} />`;
            })}
            ${(chart.bars.length - 1 - index) % every === 0 ? html`<text class="tick mid" aria-hidden="true" x=${LEFT + room * (index + 0.5)} y=${HEIGHT - 6}>${bar.day.slice(5)}</text>` : null}
          </g>`;
        })}
      </svg>
    </div>
  </figure>`;
}

function useWidth(place) {
  const [width, setWidth] = useState(900);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(Math.max(240, Math.floor(entry.contentRect.width))));
    watch.observe(place.current);
    return () => watch.disconnect();
  }, []);
  return width;
}
