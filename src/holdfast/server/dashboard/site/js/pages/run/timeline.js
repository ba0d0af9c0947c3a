// The timeline: a row for each record, each step in flight and each run that is waited for, with a bar on one line of
// time. Only rows in view are on the page, so that ten thousand of them stay quick.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../../html.js";
import { get, part } from "../../api.js";
import { useLoaded, useNow } from "../../data.js";
import { clock, count, cutOff, duration, plural } from "../../format.js";
import { useKeys } from "../../shortcuts.js";
import { Empty, ProblemNote } from "../../components.js";
import { href, parse, refine } from "../../router.js";
import { axisOf, marksOf, place } from "./axis.js";
import { Detail } from "./step-detail.js";
import { inView, isEnded, isNote, isSettled, lanesOf, nameOf, numberOf, replaysOf, rowsOf, sortOf, titleOf, titleOfRow, withFlights, workersOf } from "./rows.js";
import { costOf } from "./usage.js";

const HEIGHT = 34;
const HEIGHT_ON_PHONES = 54;

function usePhone() {
  const [phone, setPhone] = useState(() => matchMedia("(max-width: 760px)").matches);
  useEffect(() => {
    const narrow = matchMedia("(max-width: 760px)");
    const look = () => setPhone(narrow.matches);
    narrow.addEventListener("change", look);
    return () => narrow.removeEventListener("change", look);
  }, []);
  return phone;
}

// The stories of runs that were opened in place: { kin: by id, problem, again }. Of a very long one, it is the beginning.
function useKin(ids) {
  const { data, again } = useLoaded(async (signal) => {
    const read = await Promise.allSettled(ids.map((id) => get(`/v1/runs/${part(id)}/report`, {}, signal)));
    const kin = Object.fromEntries(ids.map((id, index) => [id, read[index].value]).filter(([, story]) => story));
    return { kin, problem: read.find((one) => one.reason)?.reason ?? null };
  }, [ids], { live: ids.length > 0 });
  return { ...(data ?? NONE), again };
}
const NONE = { kin: {}, problem: null };

// When the runs that a run has started began and ended.
function useFamily(story) {
  const { data } = useLoaded(
    async (signal) => (story.related_runs.length ? get(`/v1/runs/${part(story.id)}/tree`, {}, signal) : null),
    [story.id, story.related_runs.map((one) => [one.id, one.state]).slice(0, 500)], { live: false },
  );
  return useMemo(() => new Map((data?.items ?? []).map((one) => [one.id, one])), [data]);
}

// Rows of a story, with those of runs that were opened below the row that tells of them.
function flattened(story, now, kin, family, depth = 0) {
  const told = { ...story, related_runs: story.related_runs.map((one) => ({ ...one, ...(family.get(one.id) ?? {}) })) };
  const rows = [];
  for (const row of rowsOf(told, now)) {
    const mine = { ...row, story, depth, key: depth ? `${story.id}/${row.key}` : row.key };
    rows.push(mine);
    const below = kin[mine.record?.related_run_id ?? mine.child?.id];
    if (below && depth < 6) rows.push(...flattened(below, now, kin, family, depth + 1));
  }
  return rows;
}

export function Timeline({ story: told, flights, who, query, open }) {
  const story = useMemo(() => withFlights(told, flights), [told, flights]);
  const moves = !isEnded(story.state);
  const now = useNow(moves ? 250 : 60000);
  const [opened, setOpened] = useState([]);
  const [wanted, setWanted] = useState("");
  const { kin, problem, again } = useKin(opened);
  const family = useFamily(story);
  const rows = useMemo(() => flattened(story, Math.max(now, Date.parse(story.reported_at ?? story.created_at)), kin, family), [story, kin, family, moves ? now : 0]);
  const axis = useMemo(() => axisOf(rows.map(({ begin, end, work }) => ({ begin, end, work }))), [rows]);
  const lanes = useMemo(() => {
    const all = lanesOf(story);
    for (const one of Object.values(kin)) for (const id of lanesOf(one).keys()) if (!all.has(id)) all.set(id, all.size % 6);
    return all;
  }, [story, kin]);
  const shown = useMemo(() => {
    const words = wanted.trim().toLowerCase();
    return words ? rows.filter((row) => wordsOf(row).includes(words)) : rows;
  }, [rows, wanted]);
  const selected = query.row ? shown.find((row) => row.key === query.row) : null;
  const toggle = (id) => setOpened((before) => (before.includes(id) ? before.filter((one) => one !== id) : [...before, id]));
  return html`<div class="timeline ${selected ? "with-detail" : ""}">
    <div>
      <${Legend} story=${story} lanes=${lanes} wanted=${wanted} setWanted=${setWanted} />
      <${ProblemNote} problem=${problem} again=${again} />
      ${opened.filter((id) => kin[id]?.has_more).map((id) => html`<p key=${id} class="faint">Of <a href=${href("runs", id)}>${id}</a> only the first ${count(kin[id].journal.length)} records stand here.</p>`)}
      ${rows.length
        ? html`<${Rows} rows=${shown} axis=${axis} lanes=${lanes} selected=${selected} opened=${opened} toggle=${toggle} moves=${moves} />`
        : html`<${Empty}>Nothing is recorded yet${story.stall_reason ? `: ${story.stall_reason}` : "."}<//>`}
    </div>
    ${selected ? html`<${Detail} key=${selected.key} row=${selected} who=${who} open=${open} onClose=${() => close(selected.key)} />` : null}
  </div>`;
}

function wordsOf(row) {
  if (row.what === "takeover") return "";
  if (row.what === "skipped") return `${row.skipped.name} skipped`.toLowerCase();
  if (row.what === "wait") return row.waits.toLowerCase();
  if (row.what === "child") return `${row.child.workflow} ${row.child.id}`.toLowerCase();
  const one = row.record ?? row.attempt;
  const failed = row.record && !row.record.ok ? `failed ${row.record.error?.type ?? ""} ${row.record.error?.message ?? ""}` : "";
  return `#${one.number} ${row.record ? `${sortOf(one)} ${titleOf(one)} ${one.arguments}` : `${one.name} in flight`} ${failed}`.toLowerCase();
}

function close(key) {
  refine({ row: null });
  requestAnimationFrame(() => document.querySelector(`[data-row="${CSS.escape(key)}"]`)?.focus());
}

function Legend({ story, lanes, wanted, setWanted }) {
  const workers = workersOf(story);
  const loaded = story.journal.length;
  return html`<div class="legend">
    <input type="search" aria-label="find a step" placeholder="find a step" value=${wanted} onInput=${(event) => setWanted(event.target.value)} />
    <span class="faint" role="status">${plural(Math.max(story.record_count ?? 0, loaded), "record")}${story.record_count > loaded ? `, ${count(loaded)} read` : ""}</span>
    ${[...lanes].map(([id, lane]) => html`<span key=${id} class="worker"><i class="dot lane-${lane}"></i>${nameOf(id, workers)}${workers.get(id)?.is_alive ? "" : html` <span class="faint">gone</span>`}</span>`)}
  </div>`;
}

function Rows({ rows, axis, lanes, selected, opened, toggle, moves }) {
  const phone = usePhone();
  const height = phone ? HEIGHT_ON_PHONES : HEIGHT;
  const place = useRef(null);
  const [view, setView] = useState({ top: 0, room: 600 });
  const [at, setAt] = useState(-1);
  const moved = useRef(false);
  const isAtEnd = useRef(false);
  const look = () => {
    const box = place.current;
    if (!box) return; // it went, and somebody still looks
    isAtEnd.current = box.scrollTop + box.clientHeight > box.scrollHeight - height;
    const top = Math.floor(box.scrollTop / height) * height;
    setView((before) => (before.top === top && before.room === box.clientHeight ? before : { top, room: box.clientHeight }));
  };
  useLayoutEffect(() => {
    // Whoever watches the end of a run that moves on goes on to watch it.
    if (moves && isAtEnd.current) place.current.scrollTop = place.current.scrollHeight;
    look();
  }, [rows.length, height]);
  useEffect(() => {
    const watch = new ResizeObserver(look);
    watch.observe(place.current);
    return () => watch.disconnect();
  }, [height]);
  useLayoutEffect(() => {
    if (!moved.current) return;
    moved.current = false;
    const box = place.current;
    const head = box.querySelector(".axis").offsetHeight;
    if (at * height < box.scrollTop) box.scrollTop = at * height;
    else if ((at + 1) * height + head > box.scrollTop + box.clientHeight) box.scrollTop = (at + 1) * height + head - box.clientHeight;
    look();
    box.querySelector(`[data-row="${CSS.escape(rows[at]?.key ?? "")}"]`)?.focus({ preventScroll: true });
  });
  useLayoutEffect(() => {
    // A step that was linked to, or came from elsewhere on the page, is looked for once.
    const index = selected ? rows.indexOf(selected) : -1;
    const box = place.current;
    if (index < 0 || (index * height >= box.scrollTop && (index + 2) * height <= box.scrollTop + box.clientHeight)) return;
    box.scrollTop = Math.max(0, index * height - box.clientHeight / 3);
    look();
  }, [selected?.key]);
  // Keys may come faster than the page is drawn: they go by what is kept, and by the address, and not by what was drawn.
  const kept = useRef(-1);
  const openKey = () => parse(location.hash).query.row;
  const here = () => rows[kept.current];
  const move = (by) => {
    const from = here() ? kept.current : rows.findIndex((row) => row.key === openKey());
    let next = Math.max(0, Math.min(rows.length - 1, from + by));
    while (isNote(rows[next]) && next + Math.sign(by) >= 0 && next + Math.sign(by) < rows.length) next += Math.sign(by);
    moved.current = true;
    kept.current = next;
    setAt(next);
    if (openKey() && !isNote(rows[next])) refine({ row: rows[next].key });
  };
  useKeys({
    j: ["next step", () => move(1)],
    k: ["step before", () => move(-1)],
    Enter: ["open the step", () => here() && refine({ row: here().key })],
    x: ["open a child in place", () => runOf(here()) && toggle(runOf(here()))],
    ...(selected ? { Escape: ["close the step", () => openKey() && close(openKey())] } : {}),
  });
  const { first, last, above, below } = inView(rows.length, height, view.top, view.room);
  return html`<div class="rows" ref=${place} onScroll=${look} tabindex="0" role="region" aria-label="timeline">
    <div role="table" aria-label="steps" aria-rowcount=${rows.length + 1}>
      <${Axis} axis=${axis} many=${phone || selected ? 3 : 6} />
      <div role="rowgroup">
        <div style=${{ height: `${above}px` }} role="presentation"></div>
        ${rows.slice(first, last).map((row, index) => html`<${Row} key=${row.key} row=${row} index=${first + index} axis=${axis} lanes=${lanes}
          isSelected=${row === selected} isAt=${first + index === at} isOpened=${opened.includes(runOf(row))} toggle=${toggle} />`)}
        <div style=${{ height: `${below}px` }} role="presentation"></div>
      </div>
    </div>
  </div>`;
}

const runOf = (row) => row?.record?.related_run_id ?? row?.child?.id ?? null;
const percent = (share) => `${(100 * share).toFixed(3)}%`;

function Axis({ axis, many }) {
  const { ticks, folds } = useMemo(() => marksOf(axis, many), [axis, many]);
  // Far from the beginning, moments close to each other have the same words.
  const labels = ticks.map(({ left, seconds }) => ({ left, words: seconds ? duration(seconds) : "0" })).filter((one, index, all) => !index || one.words !== all[index - 1].words);
  return html`<div class="row axis ${folds.length ? "folds" : ""}" role="row" aria-rowindex="1">
    <span role="columnheader">#</span><span role="columnheader">step</span>
    <span class="line" role="columnheader" aria-label="when, from the beginning${folds.length ? `; ${plural(folds.length, "stretch", "stretches")} in which nothing was done folded` : ""}">
      ${labels.map((one) => html`<i key=${one.words} class="tick" style=${{ left: percent(one.left) }}>${one.words}</i>`)}
      ${folds.map((one, index) => html`<i key=${`f${index}`} class="fold ${one.left < 0.06 ? "first" : one.left > 0.9 ? "last" : ""}" style=${{ left: percent(one.left), width: percent(one.width) }} title="${duration(one.seconds)} without work, folded">${folds.length <= many ? html`<b>${duration(one.seconds)} idle</b>` : null}</i>`)}
    </span>
    <span class="number" role="columnheader">took</span><span class="number" role="columnheader">cost</span>
  </div>`;
}

function Row({ row, index, axis, lanes, isSelected, isAt, isOpened, toggle }) {
  if (row.what === "takeover") return html`<${Takeover} row=${row} index=${index} />`;
  if (row.what === "skipped") return html`<${Skipped} row=${row} index=${index} />`;
  const { record, attempt, child, story, depth } = row;
  const lane = lanes.get(record ? record.worker_id : story.claimed_by);
  const number = numberOf(row);
  const title = titleOfRow(row);
  const tone = record ? (record.ok ? "" : record.outcome && record.outcome !== "failed" && record.outcome !== "unknown" ? "held" : "failed") : "flight";
  const run = runOf(row);
  return html`<div class="row ${tone} ${isSelected ? "selected" : ""} ${isAt ? "at" : ""}" role="row" aria-rowindex=${index + 2}>
    <span class="no" role="cell">${record?.kind === "timer" ? "" : number || ""}</span>
    <span class="what depth-${Math.min(6, depth)}" role="cell">
      ${run ? html`<button type="button" class="plain twist" aria-expanded=${isOpened ? "true" : "false"} aria-label="${isOpened ? "fold" : "open"} run ${run} in place" onClick=${() => toggle(run)}>${isOpened ? "▾" : "▸"}</button>` : null}
      <button type="button" class="plain name" data-row=${row.key} aria-pressed=${isSelected ? "true" : "false"} onClick=${() => refine({ row: isSelected ? null : row.key })}>
        <i class="kind kind-${record ? sortOf(record) : attempt ? "flight" : child ? "child" : "signal"}" aria-hidden="true"></i>${title}
      </button>
      <${Marks} row=${row} />
    </span>
    <span class="line" role="cell"><${Bar} row=${row} axis=${axis} lane=${lane} title=${title} by=${record?.worker_id ? nameOf(record.worker_id, workersOf(story)) : ""} /></span>
    <span class="number took" role="cell">${tookOf(row)}</span>
    <span class="number cost" role="cell">${costOf(record?.model_call ? record.model_call.usage : run && record?.kind !== "start" ? story.related_runs.find((one) => one.id === run)?.usage : null)}</span>
  </div>`;
}

const tookOf = (row) => (row.record && isSettled(row.record) ? "" : row.record && row.record.duration_s === null && row.work === "" && row.end <= row.begin ? "" : duration((row.end - row.begin) / 1000));

// What is out of the ordinary with a step.
function Marks({ row }) {
  const { record, attempt, child, story } = row;
  if (attempt) {
    return html`<span class="marks">${attempt.ended ? null : html`<b class="badge calm">${attempt.retry_at ? "waiting for the next attempt" : "in flight"}</b>`}${attempt.attempt > 1 ? html`<b class="badge warn">attempt ${attempt.attempt}</b>` : null}</span>`;
  }
  if (child) return html`<span class="marks"><b class="badge calm">${child.state}</b></span>`;
  if (!record) return null;
  const replays = replaysOf(story, record);
  const odd = record.ok ? "" : { refused: "refused", needs_approval: "asks first", cleared: "cleared", context_full: "context full", unknown: "unknown" }[record.outcome] ?? "failed";
  return html`<span class="marks">
    ${odd ? html`<b class="badge ${odd === "failed" || odd === "unknown" ? "bad" : "warn"}">${odd}</b>` : null}
    ${isSettled(record) ? html`<b class="badge calm">settled by a person</b>` : null}
    ${record.attempt_count > 1 ? html`<b class="badge warn">${record.attempt_count} attempts</b>` : null}
    ${replays ? html`<b class="faint" title="taken from the journal after ${plural(replays, "worker")} died, not run again">replayed ×${replays}</b>` : null}
    ${record.model_call?.failed_models.length ? html`<b class="badge warn">fallback</b>` : null}
    ${record.model_call && cutOff(record.model_call) ? html`<b class="badge warn" title=${cutOff(record.model_call)}>cut off</b>` : null}
  </span>`;
}

function Bar({ row, axis, lane, title, by }) {
  const from = place(axis, row.begin);
  const to = place(axis, row.end);
  const folds = axis.segments.filter((one) => one.folded);
  const words = `${title}: ${clock(row.begin)}${row.end > row.begin ? `, ${duration((row.end - row.begin) / 1000)}` : ""}${by ? `, ${by}` : ""}`;
  return html`${folds.length < 12 ? folds.map((one) => html`<i key=${one.from} class="fold" style=${{ left: percent(one.left), width: percent(one.width) }}></i>`) : null}
    <i class="bar ${row.work ? "" : "wait"} ${row.what === "flight" ? "growing" : ""} ${lane === undefined ? "nobody" : `lane-${lane}`} ${row.record && !row.record.ok ? "bad" : ""}"
      style=${{ left: `min(100% - 3px, ${percent(from)})`, width: `max(3px, ${percent(to - from)})` }} title=${words}></i>`;
}

function Takeover({ row, index }) {
  return html`<div class="row takeover ${row.takeover.how}" role="row" aria-rowindex=${index + 2}><span role="cell">${takeoverInWords(row)}</span></div>`;
}

function Skipped({ row, index }) {
  return html`<div class="row skipped" role="row" aria-rowindex=${index + 2}>
    <span class="no" role="cell">–</span>
    <span class="what depth-${Math.min(6, row.depth)}" role="cell"><span class="name faint">${row.skipped.name}</span><span class="marks"><b class="badge calm">skipped</b></span></span>
  </div>`;
}

function takeoverInWords({ takeover, story }) {
  const workers = workersOf(story);
  const from = nameOf(takeover.from, workers);
  const to = takeover.to === null ? "" : nameOf(takeover.to, workers);
  // When exactly a worker died nobody knows: it was in the middle of something.
  const passed = takeover.seconds ? `, ${duration(takeover.seconds)} after the last record` : "";
  switch (takeover.how) {
    case "died":
      return `${from} died here; ${to} took over${passed}`;
    case "left":
      return `${from} was shut down here; ${to} took over${passed}`;
    case "reopened":
      return "it had ended; here somebody let it go on";
    case "alone":
      return `${from} died here; nobody has taken over yet`;
    default:
      return `${to} went on from here; ${from} had left it waiting`;
  }
}
