"""What kernels of the site run first: `%%bash` that prints what a command printed, at once, and stops at the first error."""

import os
import subprocess

from IPython.core.magic import register_cell_magic


@register_cell_magic
def bash(line: str, cell: str) -> None:
    """Run a cell's commands without colours."""
    plain = {key: value for key, value in os.environ.items() if "COLOR" not in key}
    done = subprocess.run(["bash", "-ec", cell], env=plain, capture_output=True, text=True)
    print(done.stdout, end="")
    if done.returncode:
        raise RuntimeError(done.stderr)
