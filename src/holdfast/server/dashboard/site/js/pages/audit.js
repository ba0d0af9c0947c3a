// Who asked this server for what: for those who administer it.

import { html, useState } from "../html.js";
import { getPages } from "../api.js";
import { useLoaded } from "../data.js";
import { clock } from "../format.js";
import { Badge, Empty, List, ProblemNote } from "../components.js";
import { lacks } from "../scopes.js";

const PAGE = 100;

export function AuditPage({ who }) {
  const [pages, setPages] = useState(1);
  const [text, setText] = useState("");
  const why = lacks(who, "admin");
  const { data, problem, again } = useLoaded((signal) => (why ? Promise.resolve(null) : getPages("/v1/audit", { limit: PAGE }, pages, signal)), [pages, why], { live: false });
  const wanted = text.trim().toLowerCase();
  const rows = (data?.items ?? []).filter((one) => !wanted || [one.key_name, one.action, one.target, one.remote_address, one.outcome].some((word) => word.toLowerCase().includes(wanted)));
  return html`<header><h1>Audit log</h1>
      <div class="right"><label class="line">find <input class="narrow" type="search" value=${text} placeholder="name, action, target" onInput=${(event) => setText(event.target.value)} /></label><button onClick=${again}>Ask again</button></div>
    </header>
    ${why ? html`<${Empty}>${why} It takes an administrator to see who asked for what.<//>` : null}
    <${ProblemNote} problem=${problem} again=${again} />
    ${data ? html`<${List} label="audit log" rows=${rows} keyOf=${(one) => one.id}
      empty=${wanted ? "Nothing of that in what is loaded." : "Nobody has changed anything over this server yet. Whoever does stands here: with which key, from where, and whether it was allowed."}
      columns=${[
        { name: "When", of: (one) => html`<time datetime=${one.at}>${clock(one.at)}</time>` },
        { name: "Who", tone: "wide", of: (one) => html`${one.key_name || "nobody"}${one.key_id ? html` <span class="faint">key ${one.key_id}</span>` : null}` },
        { name: "Asked for", of: (one) => html`<code>${one.action}</code>` },
        { name: "About", tone: "wide", of: (one) => one.target },
        { name: "Outcome", of: (one) => html`<${Badge} tone=${one.outcome === "allowed" ? "good" : "bad"}>${one.outcome}<//>` },
        { name: "From", of: (one) => one.remote_address },
      ]} />` : null}
    ${data?.next ? html`<p><button onClick=${() => setPages(pages + 1)}>Older entries</button></p>` : null}`;
}
