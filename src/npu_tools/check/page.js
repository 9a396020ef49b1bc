"use strict";
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const show = () => { button.textContent = dark() ? "Light" : "Dark"; button.setAttribute("aria-label", `Switch to ${dark() ? "light" : "dark"} colours`); };
  button.hidden = false;
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; show(); });
  show();
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
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
})();
