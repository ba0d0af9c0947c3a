// API keys. A token is shown once, when its key is made.

import { html, useState } from "../html.js";
import { apiKey, encodePart, post, remove } from "../api.js";
import { Badge, ConfirmDialog, COPY_FAILED, copyText, Dialog, EmptyState, List, ProblemNote, RelativeTime, showToast } from "../components.js";
import { useGet } from "../data.js";
import { TextInput, useSubmit } from "../form-controls.js";
import { formatTime } from "../format.js";
import { describeMissingScope } from "../scopes.js";

const SCOPE_DESCRIPTIONS = {
  read: "sees runs and everything about them", submit: "starts runs, and sends to addresses and runs", operate: "changes runs, schedules and queues, and answers questions",
  admin: "makes keys, sets policies and deletes; may do everything but listen", "listen:*": "takes deliveries of all addresses",
};

export function KeysPage({ caller }) {
  const missingScope = describeMissingScope(caller, "admin");
  return html`<header><h1>Keys</h1></header>${missingScope ? html`<${EmptyState}>${missingScope} It takes an administrator to see the keys.<//>` : html`<${KeyList} caller=${caller} />`}`;
}

function KeyList({ caller }) {
  const { data, problem, refresh } = useGet("/v1/keys");
  const [dialog, setDialog] = useState(null);
  const close = () => setDialog(null);
  const getState = (one) => (one.revoked_at ? ["bad", "revoked"] : one.expires_at && Date.parse(one.expires_at) <= Date.now() ? ["warn", "expired"] : ["good", "valid"]);
  return html`<p><button class="main" disabled=${!data} onClick=${() => setDialog({ type: "make", isFirst: !data.items.length })}>New key</button></p>
    <${ProblemNote} problem=${problem} refresh=${refresh} />
    ${data ? html`<${List} label="keys" rows=${data.items} getKey=${(one) => one.id}
      empty=${html`<p>There is no key: programs of the same user on this machine may do everything, and nobody else anything.</p><p>From the first key on, every request needs one, also those of this page. Make one with the scope admin first.</p>`}
      columns=${[
        { name: "Name", tone: "wide", render: (one) => html`<strong>${one.name}</strong> <span class="faint">${one.id}${one.id === caller?.key_id ? ", yours" : ""}</span>` },
        { name: "State", render: (one) => html`<${Badge} tone=${getState(one)[0]}>${getState(one)[1]}<//>` },
        { name: "Scopes", tone: "wide", render: (one) => one.scopes.join(", ") },
        { name: "Made", render: (one) => html`<${RelativeTime} at=${one.created_at} />` },
        { name: "Until", render: (one) => (one.revoked_at ? html`revoked <${RelativeTime} at=${one.revoked_at} />` : one.expires_at ? formatTime(one.expires_at) : "for ever") },
        { name: "", hiddenName: "acts", render: (one) => (one.revoked_at ? null : html`<button class="danger" aria-label="revoke ${one.name}" onClick=${() => setDialog({ type: "revoke", one })}>Revoke</button>`) },
      ]} />` : null}
    ${dialog?.type === "make" ? html`<${KeyForm} isFirst=${dialog.isFirst} onClose=${() => { close(); refresh(); }} />` : null}
    ${dialog?.type === "revoke" ? html`<${ConfirmDialog} title="Revoke ${dialog.one.name}?" confirmLabel="Revoke it" onClose=${close}
      text=${`It opens nothing any more: at once here, within two seconds on other servers. That cannot be taken back.${dialog.one.id === caller?.key_id ? " It is the key that you are using." : ""}`}
      action=${async () => { await remove(`/v1/keys/${encodePart(dialog.one.id)}`); showToast(`${dialog.one.name} is revoked.`, "good"); refresh(); }} />` : null}`;
}

function KeyForm({ isFirst, onClose }) {
  const [name, setName] = useState("");
  const [scopes, setScopes] = useState(() => new Set(isFirst ? ["admin"] : ["read"]));
  const [address, setAddress] = useState("");
  const [days, setDays] = useState("");
  const [createdKey, setCreatedKey] = useState(null);
  const toggle = (scope) => (event) => setScopes((before) => new Set(event.target.checked ? [...before, scope] : [...before].filter((one) => one !== scope)));
  const allScopes = [...scopes, ...(address.trim() ? [`listen:${address.trim()}`] : [])];
  const check = () => {
    const errors = {};
    if (!name.trim()) errors.name = "What do people call it?";
    if (!allScopes.length) errors.scopes = "A key without a scope may do nothing.";
    else if (isFirst && !scopes.has("admin")) errors.scopes = "From the first key on, every request needs one: give it the scope admin, or nobody could make another one here.";
    if (days.trim() && !(Number(days) > 0)) errors.days = "A number of days, or nothing: for ever.";
    return errors;
  };
  const { errors, problem, isBusy, onSubmit } = useSubmit(check, async () => {
    const answer = await post("/v1/keys", { name: name.trim(), scopes: allScopes, ...(days.trim() ? { expires_in: Number(days) * 86400 } : {}) });
    setCreatedKey(answer);
    if (isFirst) apiKey.set(answer.token); // from now on, this page needs a key, too; without it, the token would not be shown
  });
  if (createdKey) return html`<${KeyToken} createdKey=${createdKey} isFirst=${isFirst} onClose=${onClose} />`;
  return html`<${Dialog} title="New key" onClose=${onClose}>
    <form onSubmit=${onSubmit} novalidate>
      <${TextInput} label="Name" value=${name} onChange=${setName} error=${errors.name} />
      <fieldset class="choices"><legend>It may</legend>
        ${Object.entries(SCOPE_DESCRIPTIONS).map(([scope, description]) => html`<label key=${scope} class="line"><input type="checkbox" checked=${scopes.has(scope)} onChange=${toggle(scope)} /><span><code>${scope}</code> <span class="faint">${description}</span></span></label>`)}
        ${errors.scopes ? html`<span class="fault" role="alert">${errors.scopes}</span>` : null}
      </fieldset>
      <${TextInput} label="Takes deliveries of one address" hint="nothing: of none" value=${address} onChange=${setAddress} />
      <${TextInput} label="Days until it expires" hint="nothing: never" inputmode="numeric" value=${days} onChange=${setDays} error=${errors.days} />
      <${ProblemNote} problem=${problem} />
      <div class="does"><button type="button" onClick=${onClose}>Leave it</button><button class="main" disabled=${isBusy}>Make it</button></div>
    </form>
  <//>`;
}

function KeyToken({ createdKey, isFirst, onClose }) {
  const [copyStatus, setCopyStatus] = useState("");
  const copy = async () => setCopyStatus((await copyText(createdKey.token)) ? "It is copied." : COPY_FAILED);
  return html`<${Dialog} title="The key ${createdKey.name}" onClose=${onClose}>
    <p>This is its token. It is shown this once: nobody can learn it later.</p>
    <pre class="value mono token" tabindex="0" role="region" aria-label="token">${createdKey.token}</pre>
    ${isFirst ? html`<div class="note warn">From now on every request needs a key. This tab uses this one.</div>` : null}
    <div class="does">
      <span role="status" class="faint">${copyStatus}</span>
      <button onClick=${copy}>Copy</button>
      <button class="main" onClick=${onClose}>I have kept it</button>
    </div>
  <//>`;
}
