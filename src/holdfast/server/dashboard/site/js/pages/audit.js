// The audit log, for administrators.

import { html, useState } from "../html.js";
import { getPages } from "../api.js";
import { Badge, EmptyState, List, ProblemNote } from "../components.js";
import { useLoader } from "../data.js";
import { formatTime } from "../format.js";
import { describeMissingScope } from "../scopes.js";

const PAGE_SIZE = 100;

export function AuditPage({ caller }) {
  const [pageCount, setPageCount] = useState(1);
  const [text, setText] = useState("");
  const missingScope = describeMissingScope(caller, "admin");
  const { data, problem, refresh } = useLoader((signal) => (missingScope ? Promise.resolve(null) : getPages("/v1/audit", { limit: PAGE_SIZE }, pageCount, signal)), [pageCount, missingScope], { live: false });
  const searchText = text.trim().toLowerCase();
  const rows = (data?.items ?? []).filter((one) => !searchText || [one.key_name, one.action, one.target, one.remote_address, one.outcome].some((word) => word.toLowerCase().includes(searchText)));
  return html`<header><h1>Audit log</h1>
      <div class="right"><label class="line">find <input class="narrow" type="search" value=${text} placeholder="name, action, target" onInput=${(event) => setText(event.target.value)} /></label><button onClick=${refresh}>Ask again</button></div>
    </header>
    ${missingScope ? html`<${EmptyState}>${missingScope} It takes an administrator to see who asked for what.<//>` : null}
    <${ProblemNote} problem=${problem} refresh=${refresh} />
    ${data ? html`<${List} label="audit log" rows=${rows} getKey=${(one) => one.id}
      empty=${searchText ? "Nothing of that in what is loaded." : "Nobody has changed anything over this server yet. Whoever does stands here: with which key, from where, and whether it was allowed."}
      columns=${[
        { name: "When", render: (one) => html`<time datetime=${one.at}>${formatTime(one.at)}</time>` },
        { name: "Who", tone: "wide", render: (one) => html`${one.key_name || "nobody"}${one.key_id ? html` <span class="faint">key ${one.key_id}</span>` : null}` },
        { name: "Asked for", render: (one) => html`<code>${one.action}</code>` },
        { name: "About", tone: "wide", render: (one) => one.target },
        { name: "Outcome", render: (one) => html`<${Badge} tone=${one.outcome === "allowed" ? "good" : "bad"}>${one.outcome}<//>` },
        { name: "From", render: (one) => one.remote_address },
      ]} />` : null}
    ${data?.next ? html`<p><button onClick=${() => setPageCount(pageCount + 1)}>Older entries</button></p>` : null}`;
}
