// The events of a run: read page by page, and further whenever a new one arrives.

import { html, useEffect, useRef, useState } from "../../html.js";
import { encodePart, get } from "../../api.js";
import { ProblemNote } from "../../components.js";
import { formatTime, pluralize } from "../../format.js";

const PAGE_SIZE = 200;
const MAX_EVENTS = 5000; // on the page

export function EventList({ report, eventCount }) {
  const [kind, setKind] = useState("");
  const [text, setText] = useState("");
  const [loaded, setLoaded] = useState({ items: [], problem: null });
  const feed = useRef({ next: "", isBusy: false, isStale: false, isUnmounted: false });
  const read = async () => {
    const current = feed.current;
    current.isStale = true;
    if (current.isBusy) return;
    current.isBusy = true;
    try {
      while (current.isStale && !current.isUnmounted) {
        current.isStale = false;
        for (;;) {
          const page = await get(`/v1/runs/${encodePart(report.id)}/events`, { limit: PAGE_SIZE, after: current.next });
          if (current.isUnmounted || !page.items.length) break;
          current.next = page.next;
          setLoaded((before) => ({ items: [...before.items, ...page.items].slice(-MAX_EVENTS), problem: null }));
          if (page.items.length < PAGE_SIZE) break;
        }
      }
    } catch (problem) {
      setLoaded((before) => ({ ...before, problem }));
    } finally {
      current.isBusy = false;
    }
  };
  useEffect(() => {
    read();
  }, [eventCount, report.state, report.epoch]);
  useEffect(() => () => (feed.current.isUnmounted = true), []);
  const kinds = [...new Set(loaded.items.map((one) => one.kind))].sort();
  const searchText = text.trim().toLowerCase();
  const shown = loaded.items.filter((one) => (!kind || one.kind === kind) && (!searchText || JSON.stringify(one).toLowerCase().includes(searchText)));
  return html`<div class="legend">
      <label class="line">Kind <select value=${kind} onChange=${(event) => setKind(event.target.value)}><option value="">all</option>${kinds.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select></label>
      <input type="search" aria-label="find in events" placeholder="find" value=${text} onInput=${(event) => setText(event.target.value)} />
      <span class="faint" role="status">${pluralize(shown.length, "event")}</span>
    </div>
    <${ProblemNote} problem=${loaded.problem} refresh=${read} />
    <ol class="events" reversed>
      ${shown.slice(-500).reverse().map((one) => html`<li key=${one.offset}>
        <time class="faint" datetime=${one.at} title=${formatTime(one.at)}>${one.at.slice(11, 23)}</time>
        <strong>${one.kind}</strong> ${one.step ? html`<span class="faint">#${one.step}</span>` : null} ${one.name}
        <span class="pre mono">${summarizeEvent(one)}</span>
      </li>`)}
    </ol>
    ${shown.length > 500 ? html`<p class="faint">Only the last 500 are shown: narrow them.</p>` : null}`;
}

const summarizeEvent = (one) => (one.text || (Object.keys(one.data ?? {}).length ? JSON.stringify(one.data) : "")).slice(0, 600);
