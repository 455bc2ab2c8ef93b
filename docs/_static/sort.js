// Tables of the class "sortable" are sorted by the column whose heading is clicked, and the other way round when it is clicked again.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("table.sortable")) {
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => {
      heading.tabIndex = 0;
      const sort = () => {
        const down = heading.getAttribute("aria-sort") === "ascending";
        headings.forEach((each) => each.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", down ? "descending" : "ascending");
        const text = (row) => row.cells[column].textContent.trim();
        const rows = [...table.tBodies[0].rows].sort((a, b) => text(a).localeCompare(text(b), "en", { numeric: true }));
        table.tBodies[0].append(...(down ? rows.reverse() : rows));
      };
      heading.addEventListener("click", sort);
      heading.addEventListener("keydown", (event) => event.key === "Enter" && sort());
    });
  }
});
