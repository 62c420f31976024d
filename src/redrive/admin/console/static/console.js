/* What the console does with JavaScript. All of it can be read, planned and re-driven without.

   data-live="URL" data-every="5"      fetch that page every so many seconds and put what it has by this id in its place
   data-events="URL"                   and at once when the server says that something changed
   data-also="#a #b"                   together with these
   data-plan="rate reason"             a form that shows a plan: its button (data-acts) waits until the fields are as planned, but
                                       for these; data-changed="TEXT" says so
   data-copies="#id"                   a button that copies a text; data-copies-address: the page's own
   data-confirms="TEXT"                and until exactly this is typed
   data-key="g o"                      press that to go there, or to come here
*/
"use strict";

const all = (selector, root = document) => [...root.querySelectorAll(selector)];

/* Regions that are fetched anew ------------------------------------------------------------------------ */

const shown = new WeakMap();

const fetchPage = async (address) => {
  const answer = await fetch(address, { headers: { Accept: "text/html" }, credentials: "same-origin", redirect: "follow" });
  if (answer.redirected) location.reload(); /* the session is over: to the door, and back here */
  if (!answer.ok) throw new Error(`${answer.status}`);
  return new DOMParser().parseFromString(await answer.text(), "text/html");
};

/* Somebody is typing there, has typed something that is not sent yet, or marks a text. */
const isBusy = (region) => {
  const active = document.activeElement;
  const marked = document.getSelection();
  return (region.contains(active) && active.matches("input:not([type=checkbox]), textarea, select"))
    || all("input, textarea", region).some(isChanged)
    || (!marked.isCollapsed && marked.containsNode(region, true));
};

const away = (is) => { const told = document.getElementById("away"); if (told) told.hidden = !is; };

const put = (region, page) => {
  const next = page.getElementById(region.id);
  if (!next || isBusy(region) || next.innerHTML === shown.get(region)) return;
  const opened = all("details[open]", region).map((one) => all("details", region).indexOf(one));
  const focused = region.contains(document.activeElement) ? all("a, button", region).indexOf(document.activeElement) : -1;
  shown.set(region, next.innerHTML);
  region.replaceChildren(...next.childNodes);
  region.className = next.className;
  if (!next.dataset.live) delete region.dataset.live;
  opened.forEach((place) => all("details", region)[place]?.setAttribute("open", ""));
  if (focused >= 0) all("a, button", region)[focused]?.focus({ preventScroll: true });
  begin(region);
};

const live = (region) => {
  const parts = () => [region, ...(region.dataset.also ?? "").split(" ").filter(Boolean).map((one) => document.querySelector(one))];
  let asking = false;
  let again = false;
  const refresh = async () => {
    if (asking) { again = true; return; }
    asking = true;
    try {
      const page = await fetchPage(region.dataset.live);
      for (const part of parts()) if (part) put(part, page);
      if (!region.dataset.live) events?.close();
      if (page.title) document.title = page.title;
      away(false);
    } catch { away(true); }
    asking = false;
    if (again && region.dataset.live) { again = false; refresh(); }
  };
  let events = null;
  const timer = setInterval(() => {
    if (!region.isConnected || !region.dataset.live) { clearInterval(timer); events?.close(); return; }
    if (!document.hidden && events?.readyState !== EventSource.OPEN) refresh();
  }, Number(region.dataset.every ?? 5) * 1000);
  if (region.dataset.events && "EventSource" in window) {
    events = new EventSource(region.dataset.events);
    events.addEventListener("operation", (event) => {
      if (/"state":"(CANCELLED|SUCCEEDED|PARTIAL|STOPPED_BY_GUARD|FAILED)"/.test(event.data)) events.close();
      refresh();
    });
    window.addEventListener("pagehide", () => events.close());
  }
  document.addEventListener("visibilitychange", () => { if (!document.hidden && region.dataset.live) refresh(); });
};

/* Times that pass -------------------------------------------------------------------------------------- */

const UNITS = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];

const roughly = (seconds) => {
  const first = UNITS.findIndex(([, size]) => seconds >= size);
  if (first < 0) return "0s";
  let left = seconds;
  return UNITS.slice(first, first + 2).map(([unit, size]) => {
    const count = Math.floor(left / size);
    left -= count * size;
    return count ? `${count}${unit}` : "";
  }).join("");
};

const passing = () => {
  for (const one of all("time[title]")) {
    const seconds = Math.floor((Date.now() - Date.parse(one.dateTime)) / 1000);
    if (/ ago$|^just now$/.test(one.textContent) && seconds >= 0) {
      const said = seconds < 2 ? "just now" : `${roughly(seconds)} ago`;
      if (said !== one.textContent) one.textContent = said;
    }
  }
};

/* Forms ------------------------------------------------------------------------------------------------ */

/* Compared with what the server wrote, not with what was there first: a browser that goes back restores what was typed. */
const isChanged = (field) => {
  if (field.type === "checkbox") return field.checked !== field.defaultChecked;
  return "defaultValue" in field && field.value !== field.defaultValue.replace(/\r\n?/g, "\n");
};

const plan = (form) => {
  const button = form.querySelector("[data-acts]");
  if (!button) return;
  const said = form.querySelector("[data-changed]");
  const later = form.dataset.plan.split(" ");
  let sent = 0;
  const check = () => {
    const changed = [...form.elements].some((field) => field.name && !later.includes(field.name) && isChanged(field));
    const confirmed = all("[data-confirms]", form).every((field) => field.value.trim() === field.dataset.confirms);
    button.disabled = changed || !confirmed;
    form.classList.toggle("stale", changed);
    const words = changed ? said.dataset.changed : "";
    if (said.textContent !== words) said.textContent = words;
  };
  form.addEventListener("input", check);
  form.addEventListener("change", check);
  form.addEventListener("submit", (event) => { /* a double click; the server does nothing twice either */
    if (event.submitter !== button) return;
    if (Date.now() - sent < 2000) event.preventDefault(); else sent = Date.now();
  });
  window.addEventListener("pageshow", check);
  check();
};

const needs = (box) => {
  const show = () => { document.querySelector(box.dataset.needs).hidden = !box.checked; };
  box.addEventListener("change", show);
  show();
};

const selects = (box) => {
  const boxes = all(`input[name="${box.dataset.selects}"]`, box.form);
  const button = box.form.querySelector("[data-counts]");
  const words = button.textContent;
  const count = () => {
    const chosen = boxes.filter((one) => one.checked).length;
    button.disabled = !chosen;
    button.textContent = chosen ? `Re-drive ${chosen} selected…` : words;
    box.checked = chosen === boxes.length;
    box.indeterminate = chosen > 0 && chosen < boxes.length;
  };
  box.hidden = false;
  box.addEventListener("change", () => { boxes.forEach((one) => { one.checked = box.checked; }); count(); });
  boxes.forEach((one) => one.addEventListener("change", count));
  count();
};

const copies = (button, text) => {
  if (!navigator.clipboard) return;
  const words = button.textContent;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text());
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = words; }, 1500);
  });
};

/* Keys ------------------------------------------------------------------------------------------------- */

const keys = () => {
  const help = document.getElementById("keys");
  const on = document.getElementById("keys-on");
  if (!help) return;
  try { on.checked = localStorage.getItem("redrive-keys") !== "off"; } catch { /* then they are on */ }
  on.addEventListener("change", () => { try { localStorage.setItem("redrive-keys", on.checked ? "on" : "off"); } catch { /* for this page */ } });
  let before = "";
  const rows = () => all(".row a.name, .row.group .act a:first-child, tbody a.name");
  const step = (by) => {
    const places = rows();
    const place = places.indexOf(document.activeElement);
    places[Math.max(0, Math.min(places.length - 1, place + by))]?.focus();
  };
  document.addEventListener("keydown", (event) => {
    if (!on.checked || event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (event.target.matches("input:not([type=checkbox]), textarea, select")) return;
    const pressed = before ? `${before} ${event.key}` : event.key;
    before = event.key === "g" ? "g" : "";
    const found = all("[data-key]").find((one) => one.dataset.key === pressed);
    if (found) {
      event.preventDefault();
      if (found.matches("input")) found.focus(); else found.click();
    } else if (pressed === "?") help.showModal();
    else if (pressed === "j") step(1);
    else if (pressed === "k") step(-1);
    else if (pressed === "x") document.activeElement.closest("tr")?.querySelector("input[name=ids]")?.click();
  });
};

/* All of it -------------------------------------------------------------------------------------------- */

const begin = (root) => {
  all("[data-copies]", root).forEach((one) => copies(one, () => document.querySelector(one.dataset.copies).textContent));
  all("[data-copies-address]", root).forEach((one) => copies(one, () => location.href.split("#")[0]));
  all("[data-needs]", root).forEach(needs);
  all("[data-selects]", root).forEach(selects);
};

begin(document);
all("[data-live]").forEach(live);
all("[data-plan]").forEach(plan);
all("[data-shows]").forEach((one) => { one.hidden = false; one.addEventListener("click", () => document.querySelector(one.dataset.shows).showModal()); });
keys();
setInterval(passing, 5000);
