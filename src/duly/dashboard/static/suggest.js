// Completes the term of the filter that is being typed. Without this script only the first is suggested.
"use strict";
(() => {
  const MOST = 8;
  const box = () => document.querySelector("#q");
  const list = () => document.querySelector("#suggest");
  const options = () => [...list().children];
  let at = -1;

  // The term at the caret: it starts after the last space that is outside quotes.
  const term = (input) => {
    const before = input.value.slice(0, input.selectionStart);
    let begin = 0;
    let quoted = false;
    let escaped = false;
    [...before].forEach((character, place) => {
      if (character === "\"" && !escaped) quoted = !quoted;
      escaped = quoted && character === "\\" && !escaped;
      if (character === " " && !quoted) begin = place + 1;
    });
    const rest = input.value.slice(input.selectionStart).search(/\s|$/);
    return { begin, end: input.selectionStart + rest, text: before.slice(begin).toLowerCase() };
  };
  const close = () => {
    at = -1;
    list().replaceChildren();
    list().hidden = true;
    box().setAttribute("aria-expanded", "false");
    box().removeAttribute("aria-activedescendant");
  };
  const mark = (place) => {
    at = place;
    options().forEach((option, number) => option.setAttribute("aria-selected", String(number === at)));
    if (at >= 0) box().setAttribute("aria-activedescendant", options()[at].id);
    else box().removeAttribute("aria-activedescendant");
  };
  const open = () => {
    const input = box();
    const { text } = term(input);
    const known = [...document.querySelectorAll("#suggestions option")].map((option) => option.value);
    const fits = (value) => value.toLowerCase() !== text && value.toLowerCase().includes(text);
    // Suggestions that start with the text come first.
    const found = known.filter(fits).sort((one, other) =>
      other.toLowerCase().startsWith(text) - one.toLowerCase().startsWith(text));
    if (!text || !found.length) { close(); return; }
    list().replaceChildren(...found.slice(0, MOST).map((value, place) => {
      const option = document.createElement("li");
      option.id = `suggest-${place}`;
      option.setAttribute("role", "option");
      option.textContent = value;
      return option;
    }));
    list().hidden = false;
    input.setAttribute("aria-expanded", "true");
    mark(-1);
  };
  const take = (value) => {
    const input = box();
    const { begin, end } = term(input);
    const text = /[:.=]$/.test(value) ? value : `${value} `;
    input.value = input.value.slice(0, begin) + text + input.value.slice(end).trimStart();
    input.setSelectionRange(begin + text.length, begin + text.length);
    close();
  };

  const prepare = () => {
    const input = box();
    if (!input || !list()) return;
    input.removeAttribute("list");
    input.setAttribute("role", "combobox");
    input.setAttribute("aria-autocomplete", "list");
    input.setAttribute("aria-controls", "suggest");
    input.setAttribute("aria-expanded", String(!list().hidden));
  };
  document.addEventListener("input", (event) => { if (event.target.id === "q") open(); });
  document.addEventListener("focusin", (event) => { if (event.target.id === "q") prepare(); });
  document.addEventListener("focusout", (event) => { if (event.target.id === "q") close(); });
  document.addEventListener("mousedown", (event) => {
    const option = event.target.closest("#suggest li");
    if (option) { event.preventDefault(); take(option.textContent); }
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.id !== "q" || list().hidden) return;
    const number = options().length;
    const keys = {
      ArrowDown: () => mark((at + 1) % number),
      ArrowUp: () => mark((at <= 0 ? number : at) - 1),
      Escape: close,
      Enter: at < 0 ? null : () => take(options()[at].textContent),
      Tab: at < 0 ? null : () => take(options()[at].textContent),
    };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  document.addEventListener("htmx:afterSwap", prepare);
  prepare();
})();
