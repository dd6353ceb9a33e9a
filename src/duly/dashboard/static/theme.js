// Runs before the first paint, so that the page does not flash.
(() => {
  let theme = "system";
  try { theme = localStorage.getItem("duly-theme") || "system"; } catch { /* storage may be off */ }
  if (theme !== "system") document.documentElement.dataset.theme = theme;
})();
