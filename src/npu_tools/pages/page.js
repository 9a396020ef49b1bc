"use strict";
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const views = [];
  const show = () => {
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to ${dark() ? "light" : "dark"} colours`);
    views.forEach((draw) => draw());
  };
  root.classList.add("scripted");
  button.hidden = false;
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; show(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  for (const field of document.querySelectorAll("input[data-filter]")) {
    const rows = [...document.querySelectorAll(`#${field.dataset.filter} tbody tr`)];
    const count = document.getElementById(`${field.dataset.filter}-count`);
    field.hidden = false;
    field.addEventListener("input", () => {
      const wanted = field.value.toLowerCase();
      let shown = 0;
      for (const row of rows) { row.hidden = !row.textContent.toLowerCase().includes(wanted); shown += !row.hidden; }
      count.textContent = `${shown} of ${rows.length} rows`;
    });
  }
  for (const table of document.querySelectorAll("table.sortable")) {
    table.querySelectorAll("thead th").forEach((head, index) => {
      const sort = document.createElement("button");
      sort.type = "button";
      sort.textContent = head.textContent;
      head.replaceChildren(sort);
      sort.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        table.querySelectorAll("thead th").forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const key = (row) => { const cell = row.cells[index]; return cell.dataset.value ?? cell.textContent; };
        const body = table.tBodies[0];
        [...body.rows].sort((a, b) => {
          const [x, y] = [key(a), key(b)];
          const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
          return up ? order : -order;
        }).forEach((row) => body.append(row));
      });
    });
  }

  const timeline = (box) => {
    const { rows, blocks } = JSON.parse(box.querySelector("script").textContent);
    const view = box.querySelector("canvas"), said = box.querySelector(".block");
    const last = Math.max(...blocks.map((b) => b[1] + b[2]), 1e-3), foot = 18;
    let from = 0, to = last, dragged = null, chosen = -1;
    const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
    const units = (us) => us >= 1e6 ? `${(us / 1e6).toFixed(2)} s` : us >= 1e3 ? `${(us / 1e3).toFixed(2)} ms` : `${us.toFixed(1)} µs`;
    const draw = () => {
      const scale = devicePixelRatio || 1, width = view.clientWidth, height = view.clientHeight;
      view.width = width * scale; view.height = height * scale;
      const c = view.getContext("2d"), high = (height - foot) / rows.length, ink = colour("--text"), inside = colour("--card");
      c.scale(scale, scale); c.font = "12px system-ui, sans-serif";
      blocks.forEach(([row, at, long, name, style], index) => {
        const x = (at - from) / (to - from) * width, w = Math.max(1, long / (to - from) * width);
        if (x + w < 0 || x > width) return;
        const y = row * high + 15, h = Math.max(3, high - 19);
        c.fillStyle = colour(`--${style}`); c.fillRect(x, y, w, h);
        if (index === chosen) { c.strokeStyle = ink; c.lineWidth = 2; c.strokeRect(x - 1, y - 1, w + 2, h + 2); }
        if (w > 60) { c.save(); c.beginPath(); c.rect(x, y, w - 4, h); c.clip(); c.fillStyle = inside;
          c.fillText(name, Math.max(x, 0) + 4, y + h / 2 + 4); c.restore(); }
      });
      c.fillStyle = colour("--soft");
      rows.forEach((name, i) => c.fillText(name, 2, i * high + 11));
      c.fillText(`${units(to - from)} shown, from ${units(from)}`, 2, height - 4);
    };
    const tell = (b) => { said.textContent = b ? `${rows[b[0]]}: ${b[3]}, ${units(b[2])}, at ${units(b[1])}` : "\u00a0"; };
    const zoom = (by, at) => { const m = from + (to - from) * at; from = m - (m - from) * by; to = m + (to - m) * by; draw(); };
    const move = (share) => { const d = (to - from) * share; from += d; to += d; draw(); };
    const choose = (by) => {
      chosen = Math.min(blocks.length - 1, Math.max(0, chosen + by));
      const [, at, long] = blocks[chosen];
      if (at < from || at + long > to) { const half = Math.max((to - from) / 2, long); from = at - half; to = at + long + half; }
      tell(blocks[chosen]); draw();
    };
    view.addEventListener("wheel", (e) => { if (e.ctrlKey || document.activeElement === view) {
      e.preventDefault(); zoom(e.deltaY > 0 ? 1.25 : 0.8, e.offsetX / view.clientWidth); } }, { passive: false });
    view.addEventListener("pointerdown", (e) => { dragged = e.clientX; view.setPointerCapture(e.pointerId); });
    view.addEventListener("pointerup", () => { dragged = null; });
    view.addEventListener("pointermove", (e) => {
      if (dragged !== null) { move((dragged - e.clientX) / view.clientWidth); dragged = e.clientX; return; }
      const t = from + (to - from) * e.offsetX / view.clientWidth, near = (to - from) / view.clientWidth;
      const row = Math.floor(e.offsetY / ((view.clientHeight - foot) / rows.length));
      tell(blocks.find((b) => b[0] === row && b[1] - near <= t && t <= b[1] + b[2] + near));
    });
    const keys = { "+": () => zoom(0.8, 0.5), "-": () => zoom(1.25, 0.5), ArrowLeft: () => move(-0.1), ArrowRight: () => move(0.1),
      ArrowDown: () => choose(1), ArrowUp: () => choose(-1), Home: () => { from = 0; to = last; chosen = -1; tell(); draw(); } };
    view.addEventListener("keydown", (e) => { if (keys[e.key]) { e.preventDefault(); keys[e.key](); } });
    box.hidden = false;
    new ResizeObserver(draw).observe(view);
    views.push(draw);
  };
  document.querySelectorAll(".timeline").forEach(timeline);
  show();
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
})();
