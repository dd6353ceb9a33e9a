// Durations as people read them. `core/time_text.py` writes the same words for pages without scripts.
"use strict";
const times = (() => {
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const coarse = (seconds) => {
    const [unit, name] = units.find(([size]) => seconds >= size) || [1, "s"];
    return `${Math.floor(seconds / unit)} ${name}`;
  };
  const relative = (away) => {
    if (Math.abs(away) < 1) return "now";
    return away > 0 ? `in ${coarse(away)}` : `${coarse(-away)} ago`;
  };
  const duration = (microseconds) => {
    if (microseconds < 1e3) return `${Math.floor(microseconds)} µs`;
    if (microseconds < 1e4) return `${(Math.floor(microseconds / 100) / 10).toFixed(1)} ms`;
    if (microseconds < 1e6) return `${Math.floor(microseconds / 1e3)} ms`;
    if (microseconds < 1e7) return `${(Math.floor(microseconds / 1e4) / 100).toFixed(2)} s`;
    if (microseconds < 6e7) return `${(Math.floor(microseconds / 1e5) / 10).toFixed(1)} s`;
    let rest = Math.floor(microseconds / 1e6);
    const parts = [];
    for (const [size, name] of units) {
      if (rest >= size) parts.push(`${Math.floor(rest / size)} ${name}`);
      rest %= size;
    }
    return parts.slice(0, 2).join(" ");
  };
  return { coarse, relative, duration };
})();
