// The frame around every page: navigation, the caller, and the current page.

import { html, render, useEffect, useState } from "./html.js";
import { apiKey, get, isKeyRejected } from "./api.js";
import { Dialog, ToastList } from "./components.js";
import { startChangeFeed, useChangeFeed } from "./data.js";
import { formatCount } from "./format.js";
import { buildHref, navigate, useRoute } from "./router.js";
import { describeMissingScope } from "./scopes.js";
import { listShortcuts, useShortcuts } from "./shortcuts.js";
import { PAGES } from "./pages/index.js";

const THEMES = { "": "as the system", light: "light", dark: "dark" };
const RETRY_DELAY_MS = 2000; // until /v1/whoami is requested again

function useTheme() {
  const [theme, setTheme] = useState(localStorage.getItem("holdfast-theme") ?? "");
  useEffect(() => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    localStorage.setItem("holdfast-theme", theme);
  }, [theme]);
  const next = () => setTheme(Object.keys(THEMES)[(Object.keys(THEMES).indexOf(theme) + 1) % 3]);
  return [theme, next];
}

function useCaller() {
  const [state, setState] = useState({ isRejected: isKeyRejected(), caller: null });
  useEffect(() => {
    let lastRequest = 0;
    let timer = 0;
    const load = () => {
      clearTimeout(timer);
      const request = ++lastRequest;
      const update = (caller) => request === lastRequest && setState({ isRejected: isKeyRejected(), caller });
      get("/v1/whoami").then(update, () => {
        update(null);
        if (request === lastRequest && !isKeyRejected()) timer = setTimeout(load, RETRY_DELAY_MS);
      });
    };
    let wasRejected = isKeyRejected();
    const stop = apiKey.onChange(() => {
      if (isKeyRejected() && wasRejected) return; // it is known to be rejected, and another request would only count against the rate limit
      wasRejected = isKeyRejected();
      load();
    });
    load();
    return () => {
      stop();
      clearTimeout(timer);
      lastRequest += 1;
    };
  }, []);
  return state;
}

function SignInPage() {
  const [typed, setTyped] = useState("");
  // A key that was valid until now is no longer valid.
  const [problem, setProblem] = useState(apiKey.get() ? new Error("The key is not known here, was revoked, or has expired.") : null);
  const open = (token) => {
    setProblem(null);
    apiKey.set(token);
    get("/v1/whoami").catch(setProblem); // a valid key opens the page
  };
  const submit = (event) => {
    event.preventDefault();
    open(typed.trim());
  };
  return html`<main class="sign-in">
    <img src="/ui/icon.svg" alt="" width="44" height="44" />
    <h1>Holdfast</h1>
    <p>This server needs an API key. <code>holdfast keys create</code> makes one, for whoever may open its store.</p>
    ${problem ? html`<div class="note bad" role="alert">${problem.message}</div>` : null}
    <form onSubmit=${submit}>
      <label class="field">API key
        <input type="password" autocomplete="off" required value=${typed} onInput=${(event) => setTyped(event.target.value)} placeholder="hf_…" />
        <span class="hint">It is kept in this tab, until the tab is closed.</span>
      </label>
      <div class="does"><button class="main">Open</button>${apiKey.get() ? html`<button type="button" onClick=${() => open("")}>Without a key</button>` : null}</div>
    </form>
  </main>`;
}

function Sidebar({ page, caller, theme, nextTheme }) {
  const { overview, state } = useChangeFeed();
  return html`<aside class="side">
    <a class="brand" href="#/runs" aria-label="Holdfast"><img src="/ui/icon.svg" alt="" /><span>Holdfast</span></a>
    <nav aria-label="pages">
      ${PAGES.filter((one) => one.label && !(one.scope && (!caller || describeMissingScope(caller, one.scope)))).map((one) => {
        const number = overview && one.count ? one.count(overview) : 0;
        return html`<a key=${one.page} href=${buildHref(one.page)} aria-current=${one.page === page ? "page" : undefined}>
          ${one.label}${number ? html`<span class="count ${one.tone ?? ""}">${formatCount(number)}</span>` : null}
        </a>`;
      })}
    </nav>
    <div class="below">
      <span class="live ${state}" role="status">${state === "live" ? "live" : "not connected"}</span>
      ${caller && caller.namespace ? html`<span class="faint" title="whose runs these are">${caller.namespace}</span>` : null}
      <button class="plain" onClick=${nextTheme} aria-label="theme: ${THEMES[theme]}; change it">◐ ${THEMES[theme]}</button>
      ${apiKey.get() ? html`<button class="plain" onClick=${() => apiKey.set("")}>Forget the key</button>` : null}
    </div>
  </aside>`;
}

function ShortcutsDialog({ onClose }) {
  return html`<${Dialog} title="Keyboard" onClose=${onClose}>
    <dl>${listShortcuts().map((one) => html`<dt><kbd>${one.keys}</kbd></dt><dd>${one.label}</dd>`)}</dl>
    <div class="does"><button onClick=${onClose}>Close</button></div>
  <//>`;
}

function App() {
  const route = useRoute();
  const [theme, nextTheme] = useTheme();
  const [isHelpOpen, setHelpOpen] = useState(false);
  const { isRejected, caller } = useCaller();
  useShortcuts({
    "?": ["what the keys do", () => setHelpOpen(true)],
    ...Object.fromEntries(PAGES.filter((one) => one.key).map((one) => [`g ${one.key}`, [`go to ${one.label.toLowerCase()}`, () => navigate(one.page)]])),
  });
  const found = PAGES.find((one) => one.page === route.page && Boolean(one.hasArg) === Boolean(route.arg)) ?? PAGES[0];
  useEffect(() => {
    document.title = `${route.arg || found.label} · Holdfast`;
    document.getElementById("page")?.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }, [route.page, route.arg]);
  if (isRejected) return html`<${SignInPage} />`;
  const Page = found.component;
  return html`<a class="skip" href="#page" onClick=${(event) => {
    event.preventDefault();
    document.getElementById("page").focus();
  }}>Skip to the page</a>
  <div class="frame">
    <${Sidebar} page=${found.page} caller=${caller} theme=${theme} nextTheme=${nextTheme} />
    <main class="page" id="page" tabindex="-1"><${Page} key=${`${route.page}/${route.arg}`} arg=${route.arg} query=${route.query} caller=${caller} /></main>
  </div>
  ${isHelpOpen ? html`<${ShortcutsDialog} onClose=${() => setHelpOpen(false)} />` : null}
  <${ToastList} />`;
}

startChangeFeed();
render(html`<${App} />`, document.getElementById("app"));
