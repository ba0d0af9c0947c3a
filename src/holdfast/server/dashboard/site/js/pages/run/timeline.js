// The timeline: a row for each record, each step in flight, and each awaited run, with a bar on a common time axis. Only
// rows in view are on the page, so that ten thousand of them stay fast.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../../html.js";
import { encodePart, get } from "../../api.js";
import { EmptyState, ProblemNote } from "../../components.js";
import { useLoader, useNow } from "../../data.js";
import { describeCutOff, formatCount, formatDuration, formatTime, pluralize } from "../../format.js";
import { buildHref, parseHash, updateQuery } from "../../router.js";
import { useShortcuts } from "../../shortcuts.js";
import { buildAxis, buildMarks, computePosition } from "./axis.js";
import { addInFlight, assignLanes, buildRows, computeVisibleRange, countReplays, formatRowTitle, formatTitle, formatWorkerName, getDisplayKind, getStepNumber, indexWorkers, isEnded, isNote, isSettled } from "./rows.js";
import { StepDetail } from "./step-detail.js";
import { formatCost } from "./usage.js";

const ROW_HEIGHT = 34;
const PHONE_ROW_HEIGHT = 54;

function useIsPhone() {
  const [isPhone, setPhone] = useState(() => matchMedia("(max-width: 760px)").matches);
  useEffect(() => {
    const narrow = matchMedia("(max-width: 760px)");
    const update = () => setPhone(narrow.matches);
    narrow.addEventListener("change", update);
    return () => narrow.removeEventListener("change", update);
  }, []);
  return isPhone;
}

// The reports of runs that were expanded in place; only the first page of very long ones:
// { openedReports: by id, problem, refresh }.
function useOpenedReports(ids) {
  const { data, refresh } = useLoader(async (signal) => {
    const results = await Promise.allSettled(ids.map((id) => get(`/v1/runs/${encodePart(id)}/report`, {}, signal)));
    const openedReports = Object.fromEntries(ids.map((id, index) => [id, results[index].value]).filter(([, report]) => report));
    return { openedReports, problem: results.find((one) => one.reason)?.reason ?? null };
  }, [ids], { live: ids.length > 0 });
  return { ...(data ?? NO_REPORTS), refresh };
}
const NO_REPORTS = { openedReports: {}, problem: null };

// The runs of the run tree by their ids, with the times at which they began and ended.
function useTreeRuns(report) {
  const { data } = useLoader(
    async (signal) => (report.related_runs.length ? get(`/v1/runs/${encodePart(report.id)}/tree`, {}, signal) : null),
    [report.id, report.related_runs.map((one) => [one.id, one.state]).slice(0, 500)], { live: false },
  );
  return useMemo(() => new Map((data?.items ?? []).map((one) => [one.id, one])), [data]);
}

// The rows of a report, with the rows of each expanded run below its own row.
function flattenRows(report, now, openedReports, treeRuns, depth = 0) {
  const detailedReport = { ...report, related_runs: report.related_runs.map((one) => ({ ...one, ...(treeRuns.get(one.id) ?? {}) })) };
  const rows = [];
  for (const row of buildRows(detailedReport, now)) {
    const placedRow = { ...row, report, depth, key: depth ? `${report.id}/${row.key}` : row.key };
    rows.push(placedRow);
    const openedReport = openedReports[placedRow.record?.related_run_id ?? placedRow.child?.id];
    if (openedReport && depth < 6) rows.push(...flattenRows(openedReport, now, openedReports, treeRuns, depth + 1));
  }
  return rows;
}

export function Timeline({ report: loadedReport, inFlight, caller, query, openDialog }) {
  const report = useMemo(() => addInFlight(loadedReport, inFlight), [loadedReport, inFlight]);
  const isLive = !isEnded(report.state);
  const now = useNow(isLive ? 250 : 60000);
  const [opened, setOpened] = useState([]);
  const [searchText, setSearchText] = useState("");
  const { openedReports, problem, refresh } = useOpenedReports(opened);
  const treeRuns = useTreeRuns(report);
  const rows = useMemo(() => flattenRows(report, Math.max(now, Date.parse(report.reported_at ?? report.created_at)), openedReports, treeRuns), [report, openedReports, treeRuns, isLive ? now : 0]);
  const axis = useMemo(() => buildAxis(rows.map(({ begin, end, work }) => ({ begin, end, work }))), [rows]);
  const lanes = useMemo(() => {
    const all = assignLanes(report);
    for (const one of Object.values(openedReports)) for (const id of assignLanes(one).keys()) if (!all.has(id)) all.set(id, all.size % 6);
    return all;
  }, [report, openedReports]);
  const shown = useMemo(() => {
    const text = searchText.trim().toLowerCase();
    return text ? rows.filter((row) => getSearchText(row).includes(text)) : rows;
  }, [rows, searchText]);
  const selected = query.row ? shown.find((row) => row.key === query.row) : null;
  const toggle = (id) => setOpened((before) => (before.includes(id) ? before.filter((one) => one !== id) : [...before, id]));
  return html`<div class="timeline ${selected ? "with-detail" : ""}">
    <div>
      <${Legend} report=${report} lanes=${lanes} searchText=${searchText} setSearchText=${setSearchText} />
      <${ProblemNote} problem=${problem} refresh=${refresh} />
      ${opened.filter((id) => openedReports[id]?.has_more).map((id) => html`<p key=${id} class="faint">Of <a href=${buildHref("runs", id)}>${id}</a> only the first ${formatCount(openedReports[id].journal.length)} records stand here.</p>`)}
      ${rows.length
        ? html`<${Rows} rows=${shown} axis=${axis} lanes=${lanes} selected=${selected} opened=${opened} toggle=${toggle} isLive=${isLive} />`
        : html`<${EmptyState}>Nothing is recorded yet${report.stall_reason ? `: ${report.stall_reason}` : "."}<//>`}
    </div>
    ${selected ? html`<${StepDetail} key=${selected.key} row=${selected} caller=${caller} openDialog=${openDialog} onClose=${() => closeStep(selected.key)} />` : null}
  </div>`;
}

function getSearchText(row) {
  if (row.type === "takeover") return "";
  if (row.type === "skipped") return `${row.skipped.name} skipped`.toLowerCase();
  if (row.type === "wait") return row.waitsFor.toLowerCase();
  if (row.type === "child") return `${row.child.workflow} ${row.child.id}`.toLowerCase();
  const one = row.record ?? row.attempt;
  const failed = row.record && !row.record.ok ? `failed ${row.record.error?.type ?? ""} ${row.record.error?.message ?? ""}` : "";
  return `#${one.number} ${row.record ? `${getDisplayKind(one)} ${formatTitle(one)} ${one.arguments}` : `${one.name} in flight`} ${failed}`.toLowerCase();
}

function closeStep(key) {
  updateQuery({ row: null });
  requestAnimationFrame(() => document.querySelector(`[data-row="${CSS.escape(key)}"]`)?.focus());
}

function Legend({ report, lanes, searchText, setSearchText }) {
  const workers = indexWorkers(report);
  const loaded = report.journal.length;
  return html`<div class="legend">
    <input type="search" aria-label="find a step" placeholder="find a step" value=${searchText} onInput=${(event) => setSearchText(event.target.value)} />
    <span class="faint" role="status">${pluralize(Math.max(report.record_count ?? 0, loaded), "record")}${report.record_count > loaded ? `, ${formatCount(loaded)} read` : ""}</span>
    ${[...lanes].map(([id, lane]) => html`<span key=${id} class="worker"><i class="dot lane-${lane}"></i>${formatWorkerName(id, workers)}${workers.get(id)?.is_alive ? "" : html` <span class="faint">gone</span>`}</span>`)}
  </div>`;
}

function Rows({ rows, axis, lanes, selected, opened, toggle, isLive }) {
  const isPhone = useIsPhone();
  const height = isPhone ? PHONE_ROW_HEIGHT : ROW_HEIGHT;
  const element = useRef(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const [shownIndex, setShownIndex] = useState(-1);
  const hasMoved = useRef(false);
  const isAtEnd = useRef(false);
  const updateView = () => {
    const box = element.current;
    if (!box) return; // it was removed meanwhile
    isAtEnd.current = box.scrollTop + box.clientHeight > box.scrollHeight - height;
    const top = Math.floor(box.scrollTop / height) * height;
    setView((before) => (before.top === top && before.height === box.clientHeight ? before : { top, height: box.clientHeight }));
  };
  useLayoutEffect(() => {
    // If the list of a live run is scrolled to its end, it stays at the end.
    if (isLive && isAtEnd.current) element.current.scrollTop = element.current.scrollHeight;
    updateView();
  }, [rows.length, height]);
  useEffect(() => {
    const observer = new ResizeObserver(updateView);
    observer.observe(element.current);
    return () => observer.disconnect();
  }, [height]);
  useLayoutEffect(() => {
    if (!hasMoved.current) return;
    hasMoved.current = false;
    const box = element.current;
    const axisHeight = box.querySelector(".axis").offsetHeight;
    if (shownIndex * height < box.scrollTop) box.scrollTop = shownIndex * height;
    else if ((shownIndex + 1) * height + axisHeight > box.scrollTop + box.clientHeight) box.scrollTop = (shownIndex + 1) * height + axisHeight - box.clientHeight;
    updateView();
    box.querySelector(`[data-row="${CSS.escape(rows[shownIndex]?.key ?? "")}"]`)?.focus({ preventScroll: true });
  });
  useLayoutEffect(() => {
    // A step in the address, from a link or from elsewhere on the page, is scrolled to once.
    const index = selected ? rows.indexOf(selected) : -1;
    const box = element.current;
    if (index < 0 || (index * height >= box.scrollTop && (index + 2) * height <= box.scrollTop + box.clientHeight)) return;
    box.scrollTop = Math.max(0, index * height - box.clientHeight / 3);
    updateView();
  }, [selected?.key]);
  // Keys may arrive faster than the page is rendered: they use `currentIndex` and the address, not what was rendered.
  const currentIndex = useRef(-1);
  const getOpenKey = () => parseHash(location.hash).query.row;
  const getCurrentRow = () => rows[currentIndex.current];
  const move = (offset) => {
    const from = getCurrentRow() ? currentIndex.current : rows.findIndex((row) => row.key === getOpenKey());
    let next = Math.max(0, Math.min(rows.length - 1, from + offset));
    while (isNote(rows[next]) && next + Math.sign(offset) >= 0 && next + Math.sign(offset) < rows.length) next += Math.sign(offset);
    hasMoved.current = true;
    currentIndex.current = next;
    setShownIndex(next);
    if (getOpenKey() && !isNote(rows[next])) updateQuery({ row: rows[next].key });
  };
  useShortcuts({
    j: ["next step", () => move(1)],
    k: ["step before", () => move(-1)],
    Enter: ["open the step", () => getCurrentRow() && updateQuery({ row: getCurrentRow().key })],
    x: ["open a child in place", () => getRunId(getCurrentRow()) && toggle(getRunId(getCurrentRow()))],
    ...(selected ? { Escape: ["close the step", () => getOpenKey() && closeStep(getOpenKey())] } : {}),
  });
  const { first, last, above, below } = computeVisibleRange(rows.length, height, view.top, view.height);
  return html`<div class="rows" ref=${element} onScroll=${updateView} tabindex="0" role="region" aria-label="timeline">
    <div role="table" aria-label="steps" aria-rowcount=${rows.length + 1}>
      <${TimeAxis} axis=${axis} markCount=${isPhone || selected ? 3 : 6} />
      <div role="rowgroup">
        <div style=${{ height: `${above}px` }} role="presentation"></div>
        ${rows.slice(first, last).map((row, index) => html`<${Row} key=${row.key} row=${row} index=${first + index} axis=${axis} lanes=${lanes}
          isSelected=${row === selected} isCurrent=${first + index === shownIndex} isOpened=${opened.includes(getRunId(row))} toggle=${toggle} />`)}
        <div style=${{ height: `${below}px` }} role="presentation"></div>
      </div>
    </div>
  </div>`;
}

const getRunId = (row) => row?.record?.related_run_id ?? row?.child?.id ?? null;
const formatPercent = (share) => `${(100 * share).toFixed(3)}%`;

function TimeAxis({ axis, markCount }) {
  const { ticks, folds } = useMemo(() => buildMarks(axis, markCount), [axis, markCount]);
  // Far from the start, times close to each other have the same label.
  const labels = ticks.map(({ left, seconds }) => ({ left, text: seconds ? formatDuration(seconds) : "0" })).filter((one, index, all) => !index || one.text !== all[index - 1].text);
  return html`<div class="row axis ${folds.length ? "folds" : ""}" role="row" aria-rowindex="1">
    <span role="columnheader">#</span><span role="columnheader">step</span>
    <span class="line" role="columnheader" aria-label="when, from the beginning${folds.length ? `; ${pluralize(folds.length, "stretch", "stretches")} in which nothing was done folded` : ""}">
      ${labels.map((one) => html`<i key=${one.text} class="tick" style=${{ left: formatPercent(one.left) }}>${one.text}</i>`)}
      ${folds.map((one, index) => html`<i key=${`f${index}`} class="fold ${one.left < 0.06 ? "first" : one.left > 0.9 ? "last" : ""}" style=${{ left: formatPercent(one.left), width: formatPercent(one.width) }} title="${formatDuration(one.seconds)} without work, folded">${folds.length <= markCount ? html`<b>${formatDuration(one.seconds)} idle</b>` : null}</i>`)}
    </span>
    <span class="number" role="columnheader">took</span><span class="number" role="columnheader">cost</span>
  </div>`;
}

function Row({ row, index, axis, lanes, isSelected, isCurrent, isOpened, toggle }) {
  if (row.type === "takeover") return html`<${TakeoverRow} row=${row} index=${index} />`;
  if (row.type === "skipped") return html`<${SkippedRow} row=${row} index=${index} />`;
  const { record, attempt, child, report, depth } = row;
  const lane = lanes.get(record ? record.worker_id : report.claimed_by);
  const number = getStepNumber(row);
  const title = formatRowTitle(row);
  const tone = record ? (record.ok ? "" : record.outcome && record.outcome !== "failed" && record.outcome !== "unknown" ? "held" : "failed") : "flight";
  const run = getRunId(row);
  return html`<div class="row ${tone} ${isSelected ? "selected" : ""} ${isCurrent ? "at" : ""}" role="row" aria-rowindex=${index + 2}>
    <span class="no" role="cell">${record?.kind === "timer" ? "" : number || ""}</span>
    <span class="what depth-${Math.min(6, depth)}" role="cell">
      ${run ? html`<button type="button" class="plain twist" aria-expanded=${isOpened ? "true" : "false"} aria-label="${isOpened ? "fold" : "open"} run ${run} in place" onClick=${() => toggle(run)}>${isOpened ? "▾" : "▸"}</button>` : null}
      <button type="button" class="plain name" data-row=${row.key} aria-pressed=${isSelected ? "true" : "false"} onClick=${() => updateQuery({ row: isSelected ? null : row.key })}>
        <i class="kind kind-${record ? getDisplayKind(record) : attempt ? "flight" : child ? "child" : "signal"}" aria-hidden="true"></i>${title}
      </button>
      <${RowBadges} row=${row} />
    </span>
    <span class="line" role="cell"><${Bar} row=${row} axis=${axis} lane=${lane} title=${title} workerName=${record?.worker_id ? formatWorkerName(record.worker_id, indexWorkers(report)) : ""} /></span>
    <span class="number took" role="cell">${formatRowDuration(row)}</span>
    <span class="number cost" role="cell">${formatCost(record?.model_call ? record.model_call.usage : run && record?.kind !== "start" ? report.related_runs.find((one) => one.id === run)?.usage : null)}</span>
  </div>`;
}

const formatRowDuration = (row) => (row.record && isSettled(row.record) ? "" : row.record && row.record.duration_s === null && row.work === "" && row.end <= row.begin ? "" : formatDuration((row.end - row.begin) / 1000));

// What is unusual about a step.
function RowBadges({ row }) {
  const { record, attempt, child, report } = row;
  if (attempt) {
    return html`<span class="marks">${attempt.ended ? null : html`<b class="badge calm">${attempt.retry_at ? "waiting for the next attempt" : "in flight"}</b>`}${attempt.attempt > 1 ? html`<b class="badge warn">attempt ${attempt.attempt}</b>` : null}</span>`;
  }
  if (child) return html`<span class="marks"><b class="badge calm">${child.state}</b></span>`;
  if (!record) return null;
  const replayCount = countReplays(report, record);
  const outcomeLabel = record.ok ? "" : { refused: "refused", needs_approval: "asks first", cleared: "cleared", context_full: "context full", unknown: "unknown" }[record.outcome] ?? "failed";
  return html`<span class="marks">
    ${outcomeLabel ? html`<b class="badge ${outcomeLabel === "failed" || outcomeLabel === "unknown" ? "bad" : "warn"}">${outcomeLabel}</b>` : null}
    ${isSettled(record) ? html`<b class="badge calm">settled by a person</b>` : null}
    ${record.attempt_count > 1 ? html`<b class="badge warn">${record.attempt_count} attempts</b>` : null}
    ${replayCount ? html`<b class="faint" title="taken from the journal after ${pluralize(replayCount, "worker")} died, not run again">replayed ×${replayCount}</b>` : null}
    ${record.model_call?.failed_models.length ? html`<b class="badge warn">fallback</b>` : null}
    ${record.model_call && describeCutOff(record.model_call) ? html`<b class="badge warn" title=${describeCutOff(record.model_call)}>cut off</b>` : null}
  </span>`;
}

function Bar({ row, axis, lane, title, workerName }) {
  const from = computePosition(axis, row.begin);
  const to = computePosition(axis, row.end);
  const folds = axis.segments.filter((one) => one.folded);
  const text = `${title}: ${formatTime(row.begin)}${row.end > row.begin ? `, ${formatDuration((row.end - row.begin) / 1000)}` : ""}${workerName ? `, ${workerName}` : ""}`;
  return html`${folds.length < 12 ? folds.map((one) => html`<i key=${one.from} class="fold" style=${{ left: formatPercent(one.left), width: formatPercent(one.width) }}></i>`) : null}
    <i class="bar ${row.work ? "" : "wait"} ${row.type === "flight" ? "growing" : ""} ${lane === undefined ? "nobody" : `lane-${lane}`} ${row.record && !row.record.ok ? "bad" : ""}"
      style=${{ left: `min(100% - 3px, ${formatPercent(from)})`, width: `max(3px, ${formatPercent(to - from)})` }} title=${text}></i>`;
}

function TakeoverRow({ row, index }) {
  return html`<div class="row takeover ${row.takeover.how}" role="row" aria-rowindex=${index + 2}><span role="cell">${describeTakeover(row)}</span></div>`;
}

function SkippedRow({ row, index }) {
  return html`<div class="row skipped" role="row" aria-rowindex=${index + 2}>
    <span class="no" role="cell">–</span>
    <span class="what depth-${Math.min(6, row.depth)}" role="cell"><span class="name faint">${row.skipped.name}</span><span class="marks"><b class="badge calm">skipped</b></span></span>
  </div>`;
}

function describeTakeover({ takeover, report }) {
  const workers = indexWorkers(report);
  const from = formatWorkerName(takeover.from, workers);
  const to = takeover.to === null ? "" : formatWorkerName(takeover.to, workers);
  // The exact time of a worker death is unknown: it was in the middle of something.
  const delayText = takeover.seconds ? `, ${formatDuration(takeover.seconds)} after the last record` : "";
  switch (takeover.how) {
    case "died":
      return `${from} died here; ${to} took over${delayText}`;
    case "left":
      return `${from} was shut down here; ${to} took over${delayText}`;
    case "reopened":
      return "it had ended; here somebody let it go on";
    case "alone":
      return `${from} died here; nobody has taken over yet`;
    default:
      return `${to} went on from here; ${from} had left it waiting`;
  }
}
