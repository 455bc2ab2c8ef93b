"""The site: `make docs` builds it into build/docs, without a network."""

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for _generate

from undrift.version import __version__ as release  # noqa: F401

project = "Undrift"
author = "The Undrift developers"
copyright = "The Undrift developers, Apache-2.0"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx_copybutton", "_generate"]
exclude_patterns = ["_build"]

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
myst_update_mathjax = False
nb_execution_mode = "force"  # figures are of this code, not of an earlier one
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 600  # a cell takes seconds, on a busy machine minutes
nb_merge_streams = True
# cells find the commands of this environment and lines are wide enough for its tables; kernels do not warn that they talk over loopback
profile = Path(tempfile.mkdtemp()) / "profile_default"
profile.mkdir()
kernel = Path(__file__).with_name("_kernel.py")
(profile / "ipython_kernel_config.py").write_text(
    f"c.IPKernelApp.log_level = 40\nc.InteractiveShellApp.exec_files = [{str(kernel)!r}]\n"
)
os.environ |= {
    "COLUMNS": "150",
    "IPYTHONDIR": str(profile.parent),
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
}
smartquotes = False  # "--" is the beginning of an option
highlight_language = "none"
copybutton_prompt_text = "$ "

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # signatures stay readable; what may be given is in the docstrings

html_theme = "furo"
html_title = f"Undrift {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["sort.js"]
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "monokai"
mathjax_path = "mathjax/tex-chtml.js"
