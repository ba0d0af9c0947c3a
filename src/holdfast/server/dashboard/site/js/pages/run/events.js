// The raw feed of a run's events: read page by page, and on whenever something was heard of.

import { html, useEffect, useRef, useState } from "../../html.js";
import { get, part } from "../../api.js";
import { clock, plural } from "../../format.js";
import { ProblemNote } from "../../components.js";

const PAGE = 200;
const MOST = 5000; // on the page

export function Events({ story, events }) {
  const [kinds, setKinds] = useState("");
  const [words, setWords] = useState("");
  const [told, setTold] = useState({ items: [], problem: null });
  const feed = useRef({ next: "", busy: false, again: false, gone: false });
  const read = async () => {
    const mine = feed.current;
    mine.again = true;
    if (mine.busy) return;
    mine.busy = true;
    try {
      while (mine.again && !mine.gone) {
        mine.again = false;
        for (;;) {
          const page = await get(`/v1/runs/${part(story.id)}/events`, { limit: PAGE, after: mine.next });
          if (mine.gone || !page.items.length) break;
          mine.next = page.next;
          setTold((before) => ({ items: [...before.items, ...page.items].slice(-MOST), problem: null }));
          if (page.items.length < PAGE) break;
        }
      }
    } catch (problem) {
      setTold((before) => ({ ...before, problem }));
    } finally {
      mine.busy = false;
    }
  };
  useEffect(() => {
    read();
  }, [events, story.state, story.epoch]);
  useEffect(() => () => (feed.current.gone = true), []);
  const all = [...new Set(told.items.map((one) => one.kind))].sort();
  const wanted = words.trim().toLowerCase();
  const shown = told.items.filter((one) => (!kinds || one.kind === kinds) && (!wanted || JSON.stringify(one).toLowerCase().includes(wanted)));
  return html`<div class="legend">
      <label class="line">Kind <select value=${kinds} onChange=${(event) => setKinds(event.target.value)}><option value="">all</option>${all.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select></label>
      <input type="search" aria-label="find in events" placeholder="find" value=${words} onInput=${(event) => setWords(event.target.value)} />
      <span class="faint" role="status">${plural(shown.length, "event")}</span>
    </div>
    <${ProblemNote} problem=${told.problem} again=${read} />
    <ol class="events" reversed>
      ${shown.slice(-500).reverse().map((one) => html`<li key=${one.offset}>
        <time class="faint" datetime=${one.at} title=${clock(one.at)}>${one.at.slice(11, 23)}</time>
        <strong>${one.kind}</strong> ${one.step ? html`<span class="faint">#${one.step}</span>` : null} ${one.name}
        <span class="pre mono">${brief(one)}</span>
      </li>`)}
    </ol>
    ${shown.length > 500 ? html`<p class="faint">Only the last 500 are shown: narrow them.</p>` : null}`;
}

const brief = (one) => (one.text || (Object.keys(one.data ?? {}).length ? JSON.stringify(one.data) : "")).slice(0, 600);
