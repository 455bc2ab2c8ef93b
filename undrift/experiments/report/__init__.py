"""Reports: what runs have shown, as a page, a plot and tables.

From the bottom up, each module imports only those above it in this list:

    timing, load    run directories -> frozen records
    stats           every number, defined once: final quality, curves, the cost of reaching a quality
    summary         one row per method
    format, text    numbers and sentences          a new sentence: a function in text.ANSWER or text.NOTES
    tables          page, terminal, CSV            a new column: an entry in tables.list_columns
    plots, charts   curves.png, plots of the page  a new axis: an entry in plots.AXES; a new plot: one in charts.CHARTS
    html            page.html (jinja), page.css, page.js, time.js
    write           summarise, write_report
"""

from undrift.experiments.report.summary import Row, Summary
from undrift.experiments.report.tables import terminal_table
from undrift.experiments.report.write import Options, summarise, write_files, write_report

__all__ = [
    "Options",
    "Row",
    "Summary",
    "summarise",
    "terminal_table",
    "write_files",
    "write_report",
]
