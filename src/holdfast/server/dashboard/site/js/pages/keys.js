// API keys: who may do what. A token is shown once, when it is made.

import { html, useState } from "../html.js";
import { key, part, post, remove } from "../api.js";
import { useGet } from "../data.js";
import { Entry, useEntries } from "../form-controls.js";
import { clock } from "../format.js";
import { Ago, Badge, Confirm, copied, Dialog, Empty, List, NOT_COPIED, ProblemNote, toast } from "../components.js";
import { lacks } from "../scopes.js";

const SCOPES = {
  read: "sees runs and everything about them", submit: "starts runs, and sends to addresses and runs", operate: "changes runs, schedules and queues, and answers questions",
  admin: "makes keys, sets policies and deletes; may do everything but listen", "listen:*": "takes deliveries of all addresses",
};

export function KeysPage({ who }) {
  const why = lacks(who, "admin");
  return html`<header><h1>Keys</h1></header>${why ? html`<${Empty}>${why} It takes an administrator to see the keys.<//>` : html`<${Keys} who=${who} />`}`;
}

function Keys({ who }) {
  const { data, problem, again } = useGet("/v1/keys");
  const [dialog, setDialog] = useState(null);
  const close = () => setDialog(null);
  const stateOf = (one) => (one.revoked_at ? ["bad", "revoked"] : one.expires_at && Date.parse(one.expires_at) <= Date.now() ? ["warn", "expired"] : ["good", "valid"]);
  return html`<p><button class="main" disabled=${!data} onClick=${() => setDialog({ what: "make", isFirst: !data.items.length })}>New key</button></p>
    <${ProblemNote} problem=${problem} again=${again} />
    ${data ? html`<${List} label="keys" rows=${data.items} keyOf=${(one) => one.id}
      empty=${html`<p>There is no key: programs of the same user on this machine may do everything, and nobody else anything.</p><p>From the first key on, every request needs one, also those of this page. Make one with the scope admin first.</p>`}
      columns=${[
        { name: "Name", tone: "wide", of: (one) => html`<strong>${one.name}</strong> <span class="faint">${one.id}${one.id === who?.key_id ? ", yours" : ""}</span>` },
        { name: "State", of: (one) => html`<${Badge} tone=${stateOf(one)[0]}>${stateOf(one)[1]}<//>` },
        { name: "Scopes", tone: "wide", of: (one) => one.scopes.join(", ") },
        { name: "Made", of: (one) => html`<${Ago} at=${one.created_at} />` },
        { name: "Until", of: (one) => (one.revoked_at ? html`revoked <${Ago} at=${one.revoked_at} />` : one.expires_at ? clock(one.expires_at) : "for ever") },
        { name: "", unseen: "acts", of: (one) => (one.revoked_at ? null : html`<button class="danger" aria-label="revoke ${one.name}" onClick=${() => setDialog({ what: "revoke", one })}>Revoke</button>`) },
      ]} />` : null}
    ${dialog?.what === "make" ? html`<${Make} isFirst=${dialog.isFirst} onClose=${() => { close(); again(); }} />` : null}
    ${dialog?.what === "revoke" ? html`<${Confirm} title="Revoke ${dialog.one.name}?" yes="Revoke it" onClose=${close}
      words=${`It opens nothing any more: at once here, within two seconds on other servers. That cannot be taken back.${dialog.one.id === who?.key_id ? " It is the key that you are using." : ""}`}
      act=${async () => { await remove(`/v1/keys/${part(dialog.one.id)}`); toast(`${dialog.one.name} is revoked.`, "good"); again(); }} />` : null}`;
}

function Make({ isFirst, onClose }) {
  const [name, setName] = useState("");
  const [scopes, setScopes] = useState(() => new Set(isFirst ? ["admin"] : ["read"]));
  const [address, setAddress] = useState("");
  const [days, setDays] = useState("");
  const [made, setMade] = useState(null);
  const toggle = (scope) => (event) => setScopes((before) => new Set(event.target.checked ? [...before, scope] : [...before].filter((one) => one !== scope)));
  const all = [...scopes, ...(address.trim() ? [`listen:${address.trim()}`] : [])];
  const check = () => {
    const found = {};
    if (!name.trim()) found.name = "What do people call it?";
    if (!all.length) found.scopes = "A key without a scope may do nothing.";
    else if (isFirst && !scopes.has("admin")) found.scopes = "From the first key on, every request needs one: give it the scope admin, or nobody could make another one here.";
    if (days.trim() && !(Number(days) > 0)) found.days = "A number of days, or nothing: for ever.";
    return found;
  };
  const { faults, problem, busy, onSubmit } = useEntries(check, async () => {
    const answer = await post("/v1/keys", { name: name.trim(), scopes: all, ...(days.trim() ? { expires_in: Number(days) * 86400 } : {}) });
    setMade(answer);
    if (isFirst) key.set(answer.token); // this page is asked for a key from now on, too: it would not show the token any more
  });
  if (made) return html`<${Made} made=${made} isFirst=${isFirst} onClose=${onClose} />`;
  return html`<${Dialog} title="New key" onClose=${onClose}>
    <form onSubmit=${onSubmit} novalidate>
      <${Entry} label="Name" value=${name} set=${setName} fault=${faults.name} />
      <fieldset class="choices"><legend>It may</legend>
        ${Object.entries(SCOPES).map(([scope, words]) => html`<label key=${scope} class="line"><input type="checkbox" checked=${scopes.has(scope)} onChange=${toggle(scope)} /><span><code>${scope}</code> <span class="faint">${words}</span></span></label>`)}
        ${faults.scopes ? html`<span class="fault" role="alert">${faults.scopes}</span>` : null}
      </fieldset>
      <${Entry} label="Takes deliveries of one address" hint="nothing: of none" value=${address} set=${setAddress} />
      <${Entry} label="Days until it expires" hint="nothing: never" inputmode="numeric" value=${days} set=${setDays} fault=${faults.days} />
      <${ProblemNote} problem=${problem} />
      <div class="does"><button type="button" onClick=${onClose}>Leave it</button><button class="main" disabled=${busy}>Make it</button></div>
    </form>
  <//>`;
}

function Made({ made, isFirst, onClose }) {
  const [told, setTold] = useState("");
  const copy = async () => setTold((await copied(made.token)) ? "It is copied." : NOT_COPIED);
  return html`<${Dialog} title="The key ${made.name}" onClose=${onClose}>
    <p>This is its token. It is shown this once: nobody can learn it later.</p>
    <pre class="value mono token" tabindex="0" role="region" aria-label="token">${made.token}</pre>
    ${isFirst ? html`<div class="note warn">From now on every request needs a key. This tab uses this one.</div>` : null}
    <div class="does">
      <span role="status" class="faint">${told}</span>
      <button onClick=${copy}>Copy</button>
      <button class="main" onClick=${onClose}>I have kept it</button>
    </div>
  <//>`;
}
