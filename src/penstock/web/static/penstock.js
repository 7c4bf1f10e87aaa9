// What a page can do beyond showing facts: tabs, updates as they come, buttons without a new page.
// Without this script the page shows the same and its forms work; it is only not updated.
"use strict";
(() => {
  const one = (selector, from = document) => from.querySelector(selector);
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const announcer = one("#announcer");
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const CALM_MS = 5000;
  const MOVING = new Set(["lag", "speeds", "summary", "stage-lag", "stage-summary"]);

  // --- tabs: one panel at a time, arrow keys between them ------------------------------------
  const list = one("[data-tabs]");
  const tabs = list ? all("a", list) : [];
  const panelOf = (tab) => one(tab.getAttribute("href"));

  function select(tab, { focus = false, remember = true } = {}) {
    for (const each of tabs) {
      const chosen = each === tab;
      each.setAttribute("aria-selected", String(chosen));
      each.tabIndex = chosen ? 0 : -1;
      panelOf(each).hidden = !chosen;
    }
    if (focus) tab.focus();
    if (remember) history.replaceState(null, "", tab.getAttribute("href"));
  }

  // The address may name a panel, or anything inside one.
  function namedByHash() {
    return location.hash ? document.getElementById(decodeURIComponent(location.hash.slice(1))) : null;
  }

  function tabOf(element) {
    return tabs.find((tab) => panelOf(tab).contains(element));
  }

  // Show what the address names: its panel, open, and near the top. A panel is shown with the tabs
  // above it, and without scrolling if they are in the upper part of the window.
  function goToHash() {
    const named = namedByHash();
    const tab = named && tabOf(named);
    if (!tab) return false;
    select(tab, { remember: false });
    for (let each = named.closest("details"); each; each = each.parentElement.closest("details")) {
      each.open = true;
    }
    scrollTo(0, 0);
    const isPanel = named === panelOf(tab);
    if (!isPanel) named.scrollIntoView({ block: "start" });
    else if (list.getBoundingClientRect().bottom > innerHeight * 0.65) list.scrollIntoView();
    return true;
  }

  function onKey(event) {
    const at = tabs.indexOf(event.currentTarget);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (event.key === " ") {
      event.preventDefault();
      select(event.currentTarget);
    } else if (to !== undefined && !event.altKey && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      select(tabs[(to + tabs.length) % tabs.length], { focus: true });
    }
  }

  if (list) {
    list.setAttribute("role", "tablist");
    for (const tab of tabs) {
      const panel = panelOf(tab);
      tab.id = `tab-${panel.id}`;
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-controls", panel.id);
      panel.setAttribute("role", "tabpanel");
      panel.setAttribute("aria-labelledby", tab.id);
      panel.tabIndex = 0;
      tab.addEventListener("keydown", onKey);
      tab.addEventListener("click", (event) => {
        event.preventDefault();
        select(tab);
      });
    }
    const first = tabOf(namedByHash()) || one(`[href="#${list.dataset.first}"]`, list);
    select(first, { remember: false });
    // The browser has gone to where the part was before all others were hidden.
    addEventListener("load", () => {
      if (document.activeElement?.getAttribute("role") === "tabpanel") document.activeElement.blur();
      goToHash();
    });
    addEventListener("hashchange", goToHash);
  }

  // --- updates ---------------------------------------------------------------------------------
  const page = one("[data-events]");
  const connection = one("#connection");
  const hold = one("#hold");
  const waiting = new Map();
  const moved = new Map();
  let held = false;
  let pressed = false;
  let heard = null;

  function show(state, text) {
    connection.className = `connection ${state}`;
    connection.textContent = text;
  }

  function isRead(region) {
    // Text that is selected is about to be copied: it must not vanish under the hand.
    const selection = getSelection();
    return !selection.isCollapsed && region.contains(selection.anchorNode);
  }

  function put(name, html) {
    const region = one(`[data-region="${name}"]`);
    if (!region) return;
    const open = all("details[open]", region).map((each) => each.id);
    const inside = region.contains(document.activeElement);
    const focused = inside ? focusId(document.activeElement) : "";
    region.innerHTML = html;
    for (const id of open) {
      const again = document.getElementById(id);
      if (again) again.open = true;
    }
    if (focused) focusOn(focused);
  }

  // A summary has no id of its own: it is found by that of its details.
  function focusId(element) {
    return element.id || element.closest("details")?.id || "";
  }

  function focusOn(id) {
    const found = document.getElementById(id);
    const target = found?.tagName === "DETAILS" ? one("summary", found) : found;
    target?.focus({ preventScroll: true });
  }

  // What is being read stays where it is when a part above it grows or shrinks.
  function keepPlace(change) {
    const seen = scrollY > 0
      && all("[data-region]").find((each) => each.getBoundingClientRect().bottom > 0);
    const before = seen ? seen.getBoundingClientRect().top : 0;
    change();
    const moved = seen ? seen.getBoundingClientRect().top - before : 0;
    if (moved) scrollBy({ top: moved, behavior: "instant" });
  }

  function update() {
    keepPlace(putWaiting);
    filterRows();
  }

  function putWaiting() {
    const now = performance.now();
    for (const [name, html] of waiting) {
      const region = one(`[data-region="${name}"]`);
      const early = calm.matches && MOVING.has(name) && now - (moved.get(name) ?? -1e9) < CALM_MS;
      if (held || pressed || early || (region && isRead(region))) continue;
      waiting.delete(name);
      moved.set(name, now);
      put(name, html);
    }
  }

  // --- a filter for long tables ----------------------------------------------------------------
  const filter = one("#filter");

  function filterRows() {
    if (!filter) return;
    const wanted = filter.value.trim().toLowerCase();
    const rows = all("[data-filtered] > tr");
    filter.closest(".filter").hidden = rows.length < Number(filter.dataset.least);
    let count = 0;
    for (const row of rows) {
      row.hidden = Boolean(wanted) && !row.cells[0].textContent.toLowerCase().includes(wanted);
      if (!row.hidden) count += 1;
    }
    one("#filter-count").textContent = wanted ? `${count} of ${rows.length}` : "";
  }

  if (filter) {
    filter.addEventListener("input", filterRows);
    filterRows();
  }

  function announce(announcements) {
    if (heard === null) {
      heard = { ...announcements };
      return;
    }
    const news = Object.entries(announcements).filter(([name, text]) => heard[name] !== text);
    Object.assign(heard, announcements);
    if (news.length) announcer.textContent = news.map(([, text]) => text).join(". ");
  }

  if (page) {
    one(".live").hidden = false;
    const source = new EventSource(page.dataset.events);
    source.addEventListener("open", () => show(held ? "held" : "", held ? "held" : "live"));
    source.addEventListener("error", () => show("lost", "no connection, trying again"));
    source.addEventListener("page", (event) => {
      const latest = JSON.parse(event.data);
      document.title = latest.title;
      for (const [name, html] of Object.entries(latest.regions)) waiting.set(name, html);
      announce(latest.announcements);
      update();
    });
    source.addEventListener("broken", (event) => {
      source.close();
      show("lost", JSON.parse(event.data));
    });
    // What is under a finger must not be replaced before it is lifted: the press would be lost.
    addEventListener("pointerdown", () => { pressed = true; });
    for (const end of ["pointerup", "pointercancel"]) {
      addEventListener(end, () => setTimeout(() => { pressed = false; update(); }));
    }
    hold.addEventListener("click", () => {
      held = !held;
      hold.setAttribute("aria-pressed", String(held));
      show(held ? "held" : "", held ? "held" : "live");
      update();
    });
    addEventListener("pagehide", () => source.close());
  }

  // --- buttons ---------------------------------------------------------------------------------
  const notice = one("#notice");
  const AGAIN_MS = 1000; // the second click of a double click must not undo the first
  const NOTICE_MS = 8000;
  const sent = new Map();
  let vanishes = 0;

  function say(ok, text) {
    clearTimeout(vanishes);
    notice.className = ok ? "notice good" : "notice";
    notice.setAttribute("role", ok ? "status" : "alert");
    notice.hidden = false;
    one("#notice-text").textContent = text;
    if (ok) vanishes = setTimeout(() => { notice.hidden = true; }, NOTICE_MS);
  }

  function addressOf(form, button) {
    return button?.hasAttribute("formaction") ? button.formAction : form.action;
  }

  // What a press is about: pause and resume of one table are the same thing.
  function subject(address, fields) {
    return [address.replace(/[^/]*$/, ""), fields.get("schema"), fields.get("table")].join("\n");
  }

  async function send(form, button, address, fields) {
    const answer = await fetch(address, {
      method: "POST",
      headers: { Accept: "application/json" },
      body: fields,
    });
    const kind = answer.headers.get("content-type") || "";
    if (!kind.includes("json")) throw new Error(`answer ${answer.status}`);
    const said = await answer.json();
    if (answer.ok) {
      say(true, said.notice);
      form.reset();
      const details = button?.closest("details");
      if (details) document.getElementById(details.id)?.removeAttribute("open");
    } else {
      say(false, [said.code, said.error, said.hint].filter(Boolean).join(": "));
    }
    const id = answer.ok && button?.closest("details")?.id || button?.id;
    if (id) focusOn(id);
  }

  if (page && notice) {
    one("#notice-close").addEventListener("click", () => { notice.hidden = true; });
    document.addEventListener("submit", (event) => {
      if (!page.contains(event.target)) return;
      event.preventDefault();
      const { target: form, submitter: button } = event;
      const address = addressOf(form, button);
      const fields = new URLSearchParams(new FormData(form));
      const what = subject(address, fields);
      const busy = button?.getAttribute("aria-disabled") === "true";
      if (busy || performance.now() - (sent.get(what) ?? -AGAIN_MS) < AGAIN_MS) return;
      sent.set(what, performance.now());
      send(form, button, address, fields).catch((error) => say(false, `not sent: ${error.message}`));
    });
  }
})();
