// Enhancements beyond links and forms. The pages work without all of them.
"use strict";
(() => {
  const $ = (selector, within = document) => within.querySelector(selector);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const root = document.body.dataset.root;
  const remember = (name, value) => { try { localStorage.setItem(name, value); } catch { /* off */ } };

  // -- how long ago ---------------------------------------------------------------------------
  const tellTimes = () => all("time[data-ago], time[data-due], time[data-since]").forEach((time) => {
    const away = Math.round((Date.parse(time.dateTime) - Date.now()) / 1000);
    const isLate = "due" in time.dataset && away < 0;
    const words = isLate ? `due since ${times.coarse(-away)}`
      : "since" in time.dataset ? times.coarse(Math.max(0, -away)) : times.relative(away);
    if (time.textContent !== words) time.textContent = words;
  });

  // -- theme ----------------------------------------------------------------------------------
  const themes = ["system", "light", "dark"];
  const themeButton = $("#theme");
  const theme = () => document.documentElement.dataset.theme || "system";
  const nextTheme = () => {
    const next = themes[(themes.indexOf(theme()) + 1) % themes.length];
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    remember("duly-theme", next);
    themeButton.textContent = `Theme: ${next}`;
  };
  if (themeButton) {
    themeButton.hidden = false;
    themeButton.textContent = `Theme: ${theme()}`;
    themeButton.addEventListener("click", nextTheme);
  }

  // -- live -----------------------------------------------------------------------------------
  // A stream from the page's own address: an added element connects, and is removed to pause.
  const anchor = $("#live");
  const state = $("#state");
  let paused = false;
  let closed = false;
  let late = null;
  let source = null;
  let held = null;
  const say = (words) => { if (state) { state.textContent = words; state.hidden = !words; } };
  const sayClosed = () => {
    disconnect();
    closed = true;
    say("You are signed out. ");
    const link = document.createElement("a");
    link.href = location.href;
    link.textContent = "Sign in again";
    if (state) state.append(link);
  };
  const connect = () => {
    if (!anchor || paused || closed || document.hidden || source) return;
    held = null;
    source = document.createElement("div");
    source.hidden = true;
    source.setAttribute("hx-ext", "sse,morph");
    source.setAttribute("sse-connect", anchor.dataset.address);
    source.innerHTML = "<div sse-swap=\"page\" hx-target=\"#page\" hx-swap=\"morph:innerHTML\"></div><div sse-swap=\"trouble\"></div>";
    document.body.append(source);
    htmx.process(source);
  };
  const disconnect = () => {
    if (!source) return;
    htmx.trigger(source, "htmx:beforeCleanupElement"); // Otherwise its stream stays open until the next change.
    htmx.remove(source);
    source = null;
  };
  const togglePause = () => {
    if (!anchor || closed) return;
    paused = !paused;
    if (paused) { disconnect(); say("Paused. r resumes"); } else { say(""); connect(); }
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
  document.addEventListener("htmx:sseOpen", () => { clearTimeout(late); if (!paused) say(""); });
  document.addEventListener("htmx:sseError", () => {
    if (paused || document.hidden || closed) return;
    // A stream ends from time to time, and is reopened at once.
    clearTimeout(late);
    late = setTimeout(() => { if (!paused && !closed) say("Reconnecting …"); }, 1500);
    fetch(anchor.dataset.address, { method: "HEAD", headers: { Accept: "text/plain" } })
      .then((answer) => { if (answer.status === 401 || answer.status === 403) sayClosed(); })
      .catch(() => { /* no answer: keep reconnecting */ });
  });
  // Do not change the page while the user is editing something.
  const busy = () => {
    const at = document.activeElement;
    return $("#page details.inline[open]") || (at && at.closest("#page") && /^(INPUT|TEXTAREA|SELECT)$/.test(at.tagName) && at.type !== "checkbox");
  };
  document.addEventListener("htmx:sseBeforeMessage", (event) => {
    const { type, data } = event.detail;
    if (type === "trouble") { event.preventDefault(); say(data); return; }
    if (type !== "page") return;
    say("");
    held = busy() ? data : null;
    if (held || !data) event.preventDefault();
  });
  // Show an update that arrived in the meantime as soon as the user has finished.
  const showHeld = () => setTimeout(() => {
    if (held === null || busy() || !window.Idiomorph) return;
    Idiomorph.morph($("#page"), held, { morphStyle: "innerHTML" });
    held = null;
    ready();
  });
  document.addEventListener("focusout", showHeld);
  document.addEventListener("toggle", showHeld, true);
  if (window.Idiomorph) {
    Idiomorph.defaults.ignoreActiveValue = true;
    // Keep what the user has opened, ticked, chosen and typed.
    const isTyped = (node) => node.matches("input, textarea") && node.value !== node.defaultValue;
    Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) =>
      !(name === "open" && node.tagName === "DETAILS") && !(name === "hidden" && node.matches(".copy"))
      && !["checked", "selected"].includes(name) && !(name === "value" && isTyped(node));
    const before = Idiomorph.defaults.callbacks.beforeNodeMorphed;
    const changed = (field) => (field instanceof HTMLSelectElement
      ? [...field.options].some((option) => option.selected && !option.defaultSelected && option.index > 0)
      : field.value !== field.defaultValue);
    Idiomorph.defaults.callbacks.beforeNodeMorphed = (old, fresh) => {
      if (old.id === "plot") return false; // The script draws it from the table below.
      // Keep values that the user has entered but not yet sent.
      if (old instanceof Element && old.matches("input:not([type=checkbox]), textarea, select") && changed(old)) return false;
      // A parsed page has no ticked boxes, so keep those that the user has ticked.
      if (old instanceof HTMLInputElement && old.type === "checkbox") { fresh.checked = old.checked; if (old.checked) fresh.setAttribute("checked", ""); }
      return before ? before(old, fresh) : true;
    };
  }
  // Fade the edge of a box that can be scrolled further.
  const showEdges = () => all(".scroll").forEach((box) =>
    box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 2));
  document.addEventListener("scroll", showEdges, true);
  window.addEventListener("resize", showEdges);
  // Updates do not contain the navigation. Its count is sent with the page.
  const countDead = () => {
    const now = $("#dead-now");
    const shown = $("#dead-count");
    if (!now || !shown) return;
    shown.textContent = now.value;
    shown.hidden = !now.value;
  };
  const ready = () => {
    countDead();
    all(".copy").forEach((button) => { button.hidden = false; });
    showEdges();
    tellTimes();
    showRow();
    countSelected();
    document.dispatchEvent(new Event("duly:shown"));
  };
  document.addEventListener("htmx:afterSwap", ready);
  document.addEventListener("htmx:sseMessage", ready);

  // -- copying, over plain HTTP too -----------------------------------------------------------
  const copy = async (text) => {
    if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
    const box = document.createElement("textarea");
    box.value = text;
    box.className = "hidden";
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
    return undefined;
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    await copy(button.dataset.copy);
    button.classList.add("done");
    setTimeout(() => button.classList.remove("done"), 1200);
  });

  // -- selecting ------------------------------------------------------------------------------
  const boxes = () => all("#bulk input[name=id]");
  const countSelected = () => {
    const words = $("[data-count]");
    if (!words) return;
    const number = boxes().filter((box) => box.checked).length;
    words.textContent = `${number} selected`;
    words.hidden = number === 0;
    all("[data-bulk]").forEach((button) => { button.disabled = number === 0; });
  };
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-all]")) boxes().forEach((box) => { box.checked = event.target.checked; });
    countSelected();
  });

  // -- keys -----------------------------------------------------------------------------------
  let row = null;
  let led = false;
  const rows = () => all("[data-row]");
  const rowKey = (element) => element && (element.id || element.dataset.href);
  function showRow() { rows().forEach((each) => each.classList.toggle("at", row !== null && rowKey(each) === row)); }
  const move = (by) => {
    const list = rows();
    if (!list.length) return;
    const at = list.findIndex((each) => rowKey(each) === row);
    const next = list[Math.max(0, Math.min(list.length - 1, at < 0 ? 0 : at + by))];
    row = rowKey(next);
    next.scrollIntoView({ block: "nearest" });
    showRow();
  };
  const current = () => rows().find((each) => rowKey(each) === row);
  const help = $("#help");
  const openHelp = () => help.showModal();
  const helpButton = $("#help-open");
  if (helpButton) { helpButton.hidden = false; helpButton.addEventListener("click", openHelp); }
  const acts = {
    "/": () => { const box = $("#q"); if (box) box.focus(); else location.href = `${root}/runs`; },
    j: () => move(1), k: () => move(-1),
    x: () => { const box = current() && $("input[type=checkbox]", current()); if (box) { box.checked = !box.checked; countSelected(); } },
    Enter: () => { const found = current(); if (found) location.href = found.dataset.href; },
    r: togglePause, t: nextTheme, "?": openHelp,
  };
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]");
    if (typing || event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (led) {
      led = false;
      const link = $(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); location.href = link.href; }
      return;
    }
    if (event.key === "g") { led = true; setTimeout(() => { led = false; }, 1200); return; }
    if (event.key === "Enter" && event.target.closest("a, button, summary")) return;
    const act = acts[event.key];
    if (act) { event.preventDefault(); act(); }
  });

  setInterval(tellTimes, 5000);
  ready();
  connect();
})();
